"""Passes of one kind, one after the other: a pause before each, and a growing one after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from streamhouse.core.backoff import Backoff
from streamhouse.core.clock import Clock
from streamhouse.core.randomness import Randomness
from streamhouse.maintenance.service.counters import ServiceCounters, ServiceStage

RETRY: Final = Backoff(first_ms=1_000, longest_ms=300_000)
_FIRST_MS: Final = 2_000
"""The longest pause before the first pass: a process that does nothing else may begin soon."""


class Rounds:
    def __init__(
        self,
        stage: ServiceStage,
        run: Callable[[], Awaitable[None]],
        *,
        interval_ms: int,
        counters: ServiceCounters,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._stage = stage
        self._run = run
        self._interval_ms = interval_ms
        self._counters = counters
        self._clock = clock
        self._randomness = randomness
        self._failures = 0
        self._pause_s = self._jittered_s(min(interval_ms, _FIRST_MS))

    async def step(self) -> None:
        """One pass, after the pause that the one before has set. Raises what the pass raises."""
        await asyncio.sleep(self._pause_s)
        try:
            with self._counters.timed(self._stage):
                await self._run()
        except Exception:
            self._failures += 1
            self._counters.failed_passes += 1
            self._pause_s = RETRY.pause_s(self._failures, self._randomness)
            raise
        self._failures = 0
        self._pause_s = self._jittered_s(self._interval_ms)
        self._counters.passes[self._stage] += 1
        self._counters.ended_at_s[self._stage] = self._clock.wall_ms() / 1000

    def _jittered_s(self, longest_ms: int) -> float:
        """A random pause, so that several services take turns."""
        return self._randomness.uniform(longest_ms / 2, longest_ms) / 1000
