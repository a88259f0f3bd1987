"""An event loop in virtual time: time passes only when every task sleeps, so hours of retries run in milliseconds.

The real code runs on it as it is, with the loop's time as its clock. Tests of one component use this loop; the
simulator has one of its own (simulator/loop.py), with many processes that can be paused and killed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_MS = 1_700_000_000_000
_DEADLOCK_S = 60.0


class _InstantSelector(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            ready = super().select(_DEADLOCK_S)  # no timer is set: only a thread can wake the loop
            if not ready:
                raise RuntimeError("every task waits, and nothing can wake one")
        elif not ready:
            self.now_s += timeout or 0.0
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._instant = _InstantSelector()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now_s


class LoopClock:
    """The time of the running loop, as both clocks. ``pause`` lets time pass in which no task runs."""

    def __init__(self) -> None:
        self._paused_ms = 0

    def pause(self, ms: int) -> None:
        self._paused_ms += ms

    def wall_ms(self) -> int:
        return START_MS + self.boot_ms()

    def boot_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self._paused_ms


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
