"""How the member waits: for a signal, for a store that may be away, and between expensive looks at everything.

Time passes by the event loop only, so that a simulated loop decides how fast. ``TimeBudget`` is pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.randomness import Randomness

T = TypeVar("T")

_FIRST_PAUSE_MS: Final = 100
_LONGEST_PAUSE_MS: Final = 2_000
_PAUSES_PER_TIMEOUT: Final = 8  # a pause is short against the time-out, which is what a lease can spare


class Signal:
    """Wakes one waiter. Signals that come while there is no waiter are kept as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """Call this before the look that the signal asked for."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the signal. Returns True if it came, and False if the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Calls:
    """Calls to the metadata store. Each has a time-out. A repeated call is the identical one (R5, R20)."""

    def __init__(self, randomness: Randomness, *, timeout_ms: int) -> None:
        self._randomness = randomness
        self._timeout_s = timeout_ms / 1000
        longest_ms = min(_LONGEST_PAUSE_MS, max(1, timeout_ms // _PAUSES_PER_TIMEOUT))
        self._backoff = Backoff(first_ms=_FIRST_PAUSE_MS, longest_ms=longest_ms)

    async def once(self, call: Callable[[], Awaitable[T]]) -> T:
        """Also raises TimeoutError; the outcome is then unknown."""
        async with asyncio.timeout(self._timeout_s):
            return await call()

    async def until_answered(self, call: Callable[[], Awaitable[T]], *, give_up_ms: int) -> T:
        """Repeat the call while there is no answer. Raises MetadataUnavailable or TimeoutError after ``give_up_ms``."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + give_up_ms / 1000
        failures = 0
        while True:
            try:
                return await self.once(call)
            except (MetadataUnavailable, TimeoutError):
                failures += 1
                if loop.time() >= give_up_s:
                    raise
            await self.pause(failures)

    async def pause(self, failures: int) -> None:
        await asyncio.sleep(self.pause_s(failures))

    def pause_s(self, failures: int) -> float:
        """The pause after this many failures in a row."""
        return self._backoff.pause_s(failures, self._randomness)


class TimeBudget:
    """Limits an expensive task to a share of the time, but allows a burst at once.

    The budget starts full, with ``burst_s``. Each run takes out the time it took; time that passes puts ``share`` of
    itself back. A run must wait while the budget is below zero, but never longer than ``longest_s``.

    A pause in proportion to the last run alone would be worse: one slow run, in a store that was busy for a moment,
    would delay everything after it, and even the first run in an hour would have to wait.
    """

    def __init__(self, *, share: float, burst_s: float, longest_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._lowest_s = -longest_s * share
        self._left_s = burst_s
        self._at_s: float | None = None

    def spent(self, took_s: float, *, now_s: float) -> None:
        self._left_s = max(self._now_left_s(now_s) - took_s, self._lowest_s)
        self._at_s = now_s

    def wait_s(self, *, now_s: float) -> float:
        """How long to wait before the next run; 0 while the budget is not below zero."""
        return max(-self._now_left_s(now_s) / self._share, 0.0)

    def _now_left_s(self, now_s: float) -> float:
        elapsed_s = 0.0 if self._at_s is None else now_s - self._at_s
        return min(self._left_s + self._share * elapsed_s, self._burst_s)
