"""Behaviours of reads: where they may begin, how much they give, and how long they wait."""

from __future__ import annotations

import asyncio
from typing import Any

from behaviour_table import SOON_S, Scene, Table, refused

TABLE = Table()
behaviour = TABLE.behaviour


@behaviour([])
async def there_is_nothing_at_the_end_of_a_log(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    return await on.read(1)


@behaviour([b"b", b"c"])
async def a_read_may_begin_within_a_batch(on: Scene) -> Any:
    await on.create()
    await on.write(b"a", b"b", b"c")
    return await on.read(1)


@behaviour([b"x" * 1000])
async def the_first_batch_is_given_whole(on: Scene) -> Any:
    await on.create()
    await on.write(b"x" * 1000)
    await on.write(b"y" * 1000)
    return await on.read(max_bytes=1)


@behaviour([b"a"])
async def a_read_waits_at_the_end_of_the_log(on: Scene) -> Any:
    await on.create()
    reading = asyncio.create_task(on.read(wait_ms=10_000))
    await asyncio.sleep(SOON_S)
    await on.write(b"a")
    return await reading


@behaviour([])
async def a_read_does_not_wait_longer_than_it_was_asked_to(on: Scene) -> Any:
    await on.create()
    return await on.read(wait_ms=20)


@behaviour([b"a", b"b"])
async def records_are_read_from_objects(on: Scene) -> Any:
    await on.create()
    await on.write(b"a")
    await on.write(b"b")
    await on.sh.flush()
    return await on.read()


@behaviour(refused("OFFSET_OUT_OF_RANGE"))
async def an_offset_beyond_the_end_is_out_of_range(on: Scene) -> Any:
    await on.create()
    return await on.read(1)


@behaviour(refused("OFFSET_OUT_OF_RANGE"))
async def a_negative_offset_is_out_of_range(on: Scene) -> Any:
    await on.create()
    return await on.read(-1)


@behaviour(refused("OFFSET_OUT_OF_RANGE"))
async def an_offset_before_the_log_start_is_out_of_range(on: Scene) -> Any:
    await on.create()
    await on.write(b"a", b"b")
    await on.delete_before(1)
    return await on.read(0)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_read_needs_a_topic(on: Scene) -> Any:
    return await on.read()


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_read_needs_a_partition_that_exists(on: Scene) -> Any:
    await on.create()
    return await on.read(partition=7)
