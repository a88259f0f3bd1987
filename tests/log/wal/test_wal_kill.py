"""Real processes on a real disk: killed at random moments, and kept apart."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from wal_harness import a_wal
from wal_victim import OPTIONS, payload

VICTIM = Path(__file__).with_name("wal_victim.py")


def start(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, VICTIM, directory], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Witness:
    """Hears what the victims say, over all their lives."""

    def __init__(self) -> None:
        self.said = {"first": 0, "settle": 0, "synced": 0}

    def kill_after(self, victim: subprocess.Popen[bytes], lines: int) -> None:
        """Counts lines rather than time: the moment of the kill is as random, and a slow machine changes nothing."""
        assert victim.stdout is not None
        for number, line in enumerate(victim.stdout):
            what, _, value = line.decode().partition(" ")
            self.said[what] = int(value)
            if number == lines:
                victim.kill()
        victim.wait()
        victim.stdout.close()
        if victim.stderr is not None:
            assert victim.stderr.read() == b""
            victim.stderr.close()


async def test_r12_kill_9_at_full_speed_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    rng = random.Random(os.getpid())
    witness = Witness()
    moments = [0, 1, 2, rng.randint(3, 60), rng.randint(3, 60), rng.randint(60, 200)]
    rng.shuffle(moments)
    for lines in moments:
        witness.said["first"] = 0
        victim = start(tmp_path)
        witness.kill_after(victim, lines=lines)
        assert victim.returncode == -9
        first, settled, synced = (witness.said[what] for what in ("first", "settle", "synced"))
        async with a_wal(tmp_path, options=OPTIONS) as (_, recovered):
            frames = {frame.lsn: frame for frame in recovered.frames()}
            missing = set(range(max(first, settled + 1), synced + 1)) - frames.keys()
            assert not missing, f"reported as synced and gone: {len(missing)}, the first is {min(missing)}"
            for lsn, frame in frames.items():
                assert frame.payload == payload(frame.base_offset)
                if lsn >= first:
                    assert frame.base_offset == lsn - first
    assert witness.said["synced"] > 100


def test_r2_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert first.stdout is not None
    first.stdout.readline()
    drain = threading.Thread(target=first.stdout.read)
    drain.start()
    try:
        second = subprocess.run([sys.executable, VICTIM, tmp_path], capture_output=True, text=True, timeout=60)
    finally:
        first.kill()
        drain.join()
        first.communicate()
    assert second.returncode == 1
    assert second.stderr.startswith("WalInUse: the write-ahead log in")
    assert f"in use by process {first.pid}" in second.stderr
    witness = Witness()
    witness.kill_after(start(tmp_path), lines=3)
    assert witness.said["synced"], "the lock died with its holder"
