"""Behaviours of topics: created, named, configured, deleted."""

from __future__ import annotations

from typing import Any

from behaviour_table import Scene, Table, refused

from streamhouse.core.limits import MAX_PARTITIONS_PER_TOPIC

TABLE = Table()
behaviour = TABLE.behaviour


@behaviour(3)
async def a_topic_has_the_partitions_that_were_asked_for(on: Scene) -> Any:
    return await on.create(3)


@behaviour(1)
async def minus_one_asks_for_the_default_partition_count(on: Scene) -> Any:
    return await on.create(-1)


@behaviour(refused("TOPIC_ALREADY_EXISTS"))
async def a_topic_is_created_once(on: Scene) -> Any:
    await on.create()
    return await on.create()


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_has_no_slash(on: Scene) -> Any:
    return await on.front.create_topic("a/b", 1, {})


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_is_not_a_dot(on: Scene) -> Any:
    return await on.front.create_topic(".", 1, {})


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_is_not_empty(on: Scene) -> Any:
    return await on.front.create_topic("", 1, {})


@behaviour(refused("INVALID_TOPIC_EXCEPTION"))
async def a_topic_name_has_at_most_249_characters(on: Scene) -> Any:
    return await on.front.create_topic("x" * 250, 1, {})


@behaviour(refused("INVALID_PARTITIONS"))
async def a_topic_has_at_least_one_partition(on: Scene) -> Any:
    return await on.create(0)


@behaviour(refused("INVALID_PARTITIONS"))
async def a_topic_has_no_negative_number_of_partitions(on: Scene) -> Any:
    return await on.create(-2)


@behaviour(refused("INVALID_PARTITIONS"))
async def a_topic_has_a_largest_number_of_partitions(on: Scene) -> Any:
    return await on.create(MAX_PARTITIONS_PER_TOPIC + 1)


@behaviour(refused("INVALID_CONFIG"))
async def an_unknown_config_is_refused(on: Scene) -> Any:
    return await on.create(retention_mss="1")


@behaviour(refused("INVALID_CONFIG"))
async def a_config_with_a_wrong_value_is_refused(on: Scene) -> Any:
    return await on.create(retention_ms="soon")


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_topic_is_deleted_once(on: Scene) -> Any:
    await on.create()
    await on.front.delete_topic(on.topic)
    await on.front.delete_topic(on.topic)


@behaviour(refused("UNKNOWN_TOPIC_OR_PARTITION"))
async def a_topic_that_never_was_cannot_be_deleted(on: Scene) -> Any:
    await on.front.delete_topic(on.topic)


@behaviour((0, [b"new"]))
async def a_topic_that_is_created_anew_begins_at_offset_0(on: Scene) -> Any:
    await on.create()
    await on.write(b"old")
    await on.front.delete_topic(on.topic)
    await on.create()
    return await on.write(b"new"), await on.read()
