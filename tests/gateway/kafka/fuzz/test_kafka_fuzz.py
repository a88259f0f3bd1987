"""Mutated frames of every API: no crash, no hang, memory flat, others served throughout (issue: 10⁶ in `make fuzz`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from fuzz_frames import KEYS, mutated
from fuzzing import Report, Victim, fuzz

FRAMES = int(os.environ.get("FRAMES", "10000"))
SEED = int(os.environ.get("SEED", "1"))
MAX_GROWTH_BYTES = 24 << 20


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


def frames(count: int) -> Iterator[bytes]:
    rng = Random(SEED)
    return (mutated(rng) for _ in range(count))


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
