"""A metered metadata store: every call is timed under its name, and nothing is changed."""

from __future__ import annotations

import asyncio

import pytest

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import MetadataError, TopicNotFound
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.metering import MetadataMeter, metered
from streamhouse.metadata.opening import open_metadata


async def test_calls_count_under_their_names_and_only_failures_are_errors() -> None:
    meter = MetadataMeter()
    store = open_metadata("sqlite:///:memory:", clock=SystemClock(), randomness=SeededRandomness(1), threads=False)
    async with store:
        timed = metered(store, meter)
        assert await timed.list_topics() == await store.list_topics()
        await timed.list_topics()
        with pytest.raises(TopicNotFound):
            await timed.get_topic("none")
        async with timed.subscribe():
            pass
    with pytest.raises(MetadataError):
        await timed.list_topics()
    assert {name: latency.count for name, latency in meter.latency.items()} == {"list_topics": 3, "get_topic": 1}
    assert meter.errors == {"list_topics": 1}


async def test_a_cancelled_call_is_an_error() -> None:
    class Hanging:
        async def now_ms(self) -> int:
            await asyncio.Event().wait()
            return 0

    meter = MetadataMeter()
    call = asyncio.ensure_future(metered(Hanging(), meter).now_ms())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (meter.errors, meter.latency["now_ms"].count) == ({"now_ms": 1}, 1)
