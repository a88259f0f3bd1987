"""Mutated frames of every API: no crash, no hang, memory flat, others served throughout (issue: 10⁶ in `make fuzz`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from fuzz_frames import KEYS, mutated
from fuzzing import Report, Victim, fuzz

FRAMES = int(os.environ.get("FRAMES", "10000"))
SEED = int(os.environ.get("SEED", "1"))
MAX_GROWTH_BYTES = 24 << 20
CREATING = (19, 37)
"""CreateTopics, CreatePartitions."""


@contextmanager
def stub_victim() -> Iterator[tuple[Victim, subprocess.Popen[str]]]:
    command = [sys.executable, str(Path(__file__).with_name("fuzz_victim.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            yield Victim(int(child.stdout.readline()), child.pid), child
        finally:
            if child.poll() is None:
                child.kill()


@contextmanager
def platform_victim(directory: Path) -> Iterator[tuple[Victim, Path]]:
    """The whole platform with all its handlers, on embedded defaults, and where it writes its log."""
    log = directory / "log.txt"
    command = [
        *(sys.executable, "-m", "streamhouse", "dev"),
        *("--kafka-listen", "127.0.0.1:0", "--data-dir", str(directory / "data")),
    ]
    with log.open("w") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as child:
        try:
            yield Victim(_kafka_port(child, log), child.pid), log
            child.terminate()
            assert child.wait(60) == 0, log.read_text()[-3000:]
        finally:
            if child.poll() is None:
                child.kill()


def _kafka_port(child: subprocess.Popen[bytes], log: Path) -> int:
    for _ in range(1200):
        text = log.read_text()
        if "\nready" in text and (found := re.search(r"^kafka +127\.0\.0\.1:(\d+)$", text, re.MULTILINE)):
            return int(found[1])
        assert child.poll() is None, text
        time.sleep(0.05)
    raise AssertionError(f"not ready after a minute: {text}")


def frames(count: int, *, only: Container[int] = (), never: Container[int] = ()) -> Iterator[bytes]:
    """``only``, ``never``: API keys as the server reads them, whatever the damage made of the frame."""
    rng = Random(SEED)
    while count:
        frame = mutated(rng, [key for key in KEYS if not only or key in only])
        key = int.from_bytes(frame[4:6], "big")
        if key not in never and (not only or key in only):
            count -= 1
            yield frame


def assert_unharmed(report: Report, count: int) -> None:
    if "FRAMES" in os.environ:
        sys.stderr.write(f"\n{report}\n")
    assert report.frames == count
    assert report.rss_end_bytes - report.rss_start_bytes < MAX_GROWTH_BYTES, report


def test_every_api_by_its_schema() -> None:
    assert len(KEYS) > 50
    with stub_victim() as (victim, child):
        report = fuzz(victim, frames(FRAMES), warm_up=FRAMES // 4)
        assert_unharmed(report, FRAMES)
        counted, complaints = child.communicate(timeout=30)
    stats = json.loads(counted)
    assert child.returncode == 0
    assert stats["closed"].get("failed", 0) == 0, complaints
    assert complaints == ""
    assert report.outcomes["answered"] > FRAMES // 20, "most of the damage must pass the first check to be worth doing"
    assert report.outcomes["closed"] > FRAMES // 20


def test_every_handler_on_a_running_platform(tmp_path: Path) -> None:
    """Long polls are in order here, so a frame without an answer is left behind; the good client must never wait.
    Damaged requests for topics come last: one that asks for thirty thousand partitions and gets them takes memory."""
    with platform_victim(tmp_path) as (victim, log):
        report = fuzz(victim, frames(FRAMES, never=CREATING), warm_up=FRAMES // 2, patience_s=0.05)
        assert_unharmed(report, FRAMES)
        fuzz(victim, frames(FRAMES // 20, only=CREATING), warm_up=0, patience_s=0.05)
    assert "Traceback" not in log.read_text(), log.read_text()[-5000:]
    assert report.outcomes["answered"] > FRAMES // 20
