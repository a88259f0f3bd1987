"""Behaviours of offsets: those of a log, found by place or time, and those that a group commits."""

from __future__ import annotations

from typing import Any

from behaviour_table import Scene, Table, refused

TABLE = Table()
behaviour = TABLE.behaviour


# Of a log.


@behaviour((0, 0))
async def an_empty_log_begins_and_ends_at_0(on: Scene) -> Any:
    await on.create()
    return await on.offset(-2), await on.offset(-1)


@behaviour((1, 3))
async def a_log_begins_where_records_were_deleted(on: Scene) -> Any:
    await on.create()
    await on.write(b"a", b"b", b"c")
    await on.delete_before(1)
    return await on.offset(-2), await on.offset(-1)


@behaviour((1, 1, -1))
async def an_offset_is_found_by_its_time(on: Scene) -> Any:
    await on.create()
    for time_ms in (1000, 2000, 3000):
        await on.write(b"v", at_ms=time_ms)
    return await on.offset(1001), await on.offset(2000), await on.offset(3001)


@behaviour(1)
async def the_record_with_the_largest_time_is_found(on: Scene) -> Any:
    await on.create()
    for time_ms in (1000, 3000, 2000):
        await on.write(b"v", at_ms=time_ms)
    return await on.offset(-3)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_question_for_an_offset_needs_a_topic(on: Scene) -> Any:
    return await on.offset(-1)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_question_for_an_offset_needs_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    return await on.offset(-1, partition=1)


# Of a group.


@behaviour((-1, 5, 6))
async def a_group_keeps_its_last_committed_offset(on: Scene) -> Any:
    await on.create()
    group = f"group-of-{on.topic}"
    none = await on.front.committed_offset(group, on.topic, 0)
    await on.front.commit_offset(group, on.topic, 0, 5)
    first = await on.front.committed_offset(group, on.topic, 0)
    await on.front.commit_offset(group, on.topic, 0, 6)
    return none, first, await on.front.committed_offset(group, on.topic, 0)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def an_offset_is_committed_for_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    await on.front.commit_offset(f"group-of-{on.topic}", on.topic, 3, 5)
