"""An event loop whose time passes only when everybody sleeps: hours of retries run in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _InstantSelector(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.instant = _InstantSelector()
        super().__init__(self.instant)

    def time(self) -> float:
        return self.instant.now_s


class LoopClock:
    """The running loop's time as both clocks."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.boot_ms()

    def boot_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
