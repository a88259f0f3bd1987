"""Behaviours of calls that wait: for room in memory, for an acknowledgement, and for a leader."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from behaviour_table import SOON_S, Scene, Table, outcome, refused

from streamhouse.broker import leading, produce
from streamhouse.cluster.lease_table import Stage
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record

TABLE = Table()
behaviour = TABLE.behaviour


# Room and time-outs.


@behaviour((refused("NOT_ENOUGH_REPLICAS"), []))
async def a_write_that_finds_no_room_is_refused_and_not_written(on: Scene) -> Any:
    await on.create()
    budget = on.sh.agent.log._budget
    with patch.object(budget, "max_bytes", 4000), patch.object(produce, "MAX_WAIT_S", SOON_S):
        budget.held_bytes += 3000  # which no flush brings out
        try:
            end = await outcome(on.write(b"x" * 2000))
        finally:
            budget.held_bytes -= 3000
    return end, await on.read()


@behaviour(0)
async def a_write_waits_for_room(on: Scene) -> Any:
    await on.create()
    budget = on.sh.agent.log._budget
    with patch.object(budget, "max_bytes", 4000):
        budget.held_bytes += 3000
        writing = asyncio.create_task(on.write(b"x" * 2000))
        await asyncio.sleep(SOON_S)
        assert not writing.done()
        budget.held_bytes -= 3000
        budget.look_again()
        return await writing


@behaviour(refused("MESSAGE_TOO_LARGE"))
async def a_batch_that_memory_can_never_hold_is_refused_for_good(on: Scene) -> Any:
    await on.create()
    with patch.object(on.sh.agent.log._budget, "max_bytes", 1000):
        return await on.write(b"x" * 2000)


@behaviour((refused("REQUEST_TIMED_OUT"), [b"a"]))
async def a_write_that_is_not_acknowledged_in_time_may_be_written_later(on: Scene) -> Any:
    await on.create()
    with on.no_acknowledgement():
        end = await outcome(on.write(b"a", timeout_ms=10))
    return end, await on.read(wait_ms=10_000)


# Hand-overs.


async def _never(*_: object) -> None:
    """Replaces the wait for a partition: the time-out comes first."""
    await asyncio.sleep(5 * SOON_S)


@behaviour(0)
async def a_write_waits_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    writing = asyncio.create_task(on.write(b"a"))
    await asyncio.sleep(SOON_S)
    assert not writing.done()
    opening.done()
    return await writing


@behaviour(([0, 1, 2], [b"a", b"b", b"c"]))
async def writes_that_wait_keep_their_order(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    batches = [[Record(value=value, timestamp_ms=1)] for value in (b"a", b"b", b"c")]
    writing = asyncio.create_task(on.front.produce(on.topic, 0, batches, acks=-1, codec=Codec.NONE, timeout_ms=30_000))
    await asyncio.sleep(SOON_S)
    opening.done()
    return await writing, await on.read()


@behaviour((refused("NOT_LEADER_OR_FOLLOWER"), []))
async def a_write_does_not_wait_for_ever_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    with patch.object(produce, "MAX_WAIT_S", SOON_S):
        end = await outcome(on.write(b"a"))
    opening.done()
    return end, await on.read()


@behaviour((refused("REQUEST_TIMED_OUT"), []))
async def a_write_whose_time_is_up_before_it_has_an_offset_is_never_written(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    with patch.object(produce.Produce, "_append_later", _never):
        end = await outcome(on.write(b"a", timeout_ms=10))
    opening.done()
    return end, await on.read()


@behaviour(refused("NOT_LEADER_OR_FOLLOWER"))
async def a_write_to_a_partition_that_another_agent_leads_is_refused_at_once(on: Scene) -> Any:
    await on.create()
    key = await on.key()
    opening = await on.opening()
    on.sh.agent.member.lease_table.get(key).stage = Stage.CLOSED  # type: ignore[union-attr]
    try:
        with on.led_elsewhere(key):
            return await on.write(b"a")
    finally:
        opening.done()


@behaviour([b"a"])
async def a_read_waits_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    opening = await on.opening()
    reading = asyncio.create_task(on.read(wait_ms=10_000))
    await asyncio.sleep(SOON_S)
    opening.done()
    return await reading


@behaviour(1)
async def a_question_for_an_offset_waits_for_a_partition_that_opens(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    opening = await on.opening()
    asking = asyncio.create_task(on.offset(-1))
    await asyncio.sleep(SOON_S)
    assert not asking.done()
    opening.done()
    return await asking


@behaviour(refused("NOT_LEADER_OR_FOLLOWER"))
async def a_question_for_an_offset_does_not_wait_for_ever(on: Scene) -> Any:
    await on.create()
    opening = await on.opening()
    try:
        with patch.object(leading, "MAX_WAIT_S", SOON_S):
            return await on.offset(-1)
    finally:
        opening.done()
