"""Passes on an interval: they pause in between, and longer after failures."""

from __future__ import annotations

import asyncio

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import StoreUnavailable
from streamhouse.maintenance.service import rounds
from streamhouse.maintenance.service.counters import ServiceCounters, ServiceStage


class Longest:
    """Randomness that always draws the longest pause."""

    def uniform(self, low: float, high: float) -> float:
        assert low <= high
        return high


async def test_pauses_grow_with_failures_and_a_success_ends_that(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    counters, clock = ServiceCounters(), ManualClock(wall_ms=5_000)
    errors = [None, StoreUnavailable("x"), StoreUnavailable("x"), StoreUnavailable("x"), None, None]

    async def run() -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    made = rounds.Rounds(
        ServiceStage.RETENTION,
        run,
        interval_ms=60_000,
        counters=counters,
        clock=clock,
        randomness=Longest(),  # type: ignore[arg-type]
    )
    for failing in (False, True, True, True, False, False):
        if failing:
            with pytest.raises(StoreUnavailable):
                await made.step()
        else:
            await made.step()
    assert pauses == [2, 60, 1, 2, 4, 60], "the first one soon; then the interval; then longer after each failure"
    assert counters.passes == {ServiceStage.RETENTION: 3}
    assert counters.failed_passes == 3
    assert counters.ended_at_s == {ServiceStage.RETENTION: 5.0}
    assert counters.stages[ServiceStage.RETENTION].count == 6
