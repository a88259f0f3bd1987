"""An outage is two lines, whatever is tried in between."""

from __future__ import annotations

import asyncio
import logging

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.outage import Outage

LOG = logging.getLogger("streamhouse.test.outage")


async def settled(outage: Outage) -> None:
    assert outage._settling is not None
    await asyncio.sleep(0)
    outage._settling.cancel()
    outage._settled()  # the timer, without the wait


async def test_a_store_that_comes_and_goes_within_a_moment_is_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outage = Outage("the store", clock=clock, log=LOG)
    outage.works()
    for attempt in range(1000):
        outage.fails(OSError(f"attempt {attempt}"))
        clock.advance(20)
        if attempt % 3 == 0:
            outage.works()  # another call, beside
    outage.works()
    await settled(outage)
    assert caplog.messages == ["problem with the store: attempt 0", "the store works again after 20.0 s"]


async def test_the_next_outage_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("the store", clock=ManualClock(), log=LOG)
    outage.fails(TimeoutError())
    outage.works()
    await settled(outage)
    outage.fails("full")
    assert [line for line in caplog.messages if "problem" in line] == [
        "problem with the store: TimeoutError",
        "problem with the store: full",
    ]
