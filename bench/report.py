"""What every benchmark shares: repeat, take the median, print one row with its target beside it.

Absolute figures drift on shared machines, so a row may also give a ratio against a peer measured in the same run.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """CPU and wall seconds of one call, medians over the rounds."""

    cpu_s: float
    wall_s: float


def measure(call: Callable[[], object], *, rounds: int = 7, warm_up: int = 1) -> Timing:
    for _ in range(warm_up):
        call()
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(rounds):
        gc.collect()
        cpu_before, wall_before = time.process_time(), time.perf_counter()
        call()
        cpu.append(time.process_time() - cpu_before)
        wall.append(time.perf_counter() - wall_before)
    return Timing(cpu_s=statistics.median(cpu), wall_s=statistics.median(wall))


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def row(name: str, figure: str, *, target: str = "", ratio: str = "") -> None:
    """One line: what, how much, what was aimed for, and against whom."""
    print(f"  {name:<58} {figure:>22}  {('target ' + target) if target else '':<28} {ratio}".rstrip())
