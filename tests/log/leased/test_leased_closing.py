"""A stop while the object store is away: how long it waits, and that nothing acknowledged is lost by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from node import Node, Stage, acked, batch, settle, stored

from streamhouse.core.errors import NotLeader, StoreUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Durability, Topic
from streamhouse.objectstore.contract import ObjectStore

FOR_EVER_S = 10**6


class Away:
    """A store that answers nothing, or nothing good."""

    def __init__(self, inner: ObjectStore, *, says_so: bool) -> None:
        self._inner = inner
        self._says_so = says_so

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, *arguments: Any, **options: Any) -> Any:
        if not self._says_so:
            await asyncio.Event().wait()
        raise StoreUnavailable("nobody is there")


async def leading(stage: Stage, durability: Durability, *, says_so: bool) -> tuple[Node, Topic, PartitionKey]:
    topic = await stage.cluster.topic()
    node = await stage.node(durability=durability, store=Away(stage.cluster.store, says_so=says_so))
    await node.lead(topic)
    return node, topic, topic.partition_keys()[0]


@pytest.mark.parametrize("says_so", [True, False], ids=["refuses", "hangs"])
async def test_with_durability_object_a_stop_waits_as_long_as_it_was_told(tmp_path: Path, says_so: bool) -> None:
    async with Stage(tmp_path) as stage:
        node, topic, key = await leading(stage, Durability.OBJECT, says_so=says_so)
        await acked(node.log.append(key, batch("acknowledged"), acks=1))
        unheard = node.log.append(key, batch("not acknowledged"), acks=-1)
        node.log.limit_closing(0.05)
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailable, match="2 batches are not in the log"):
                await node.log.close_partition(key)
        node.log.drop_partition(key, "the agent stops")
        with pytest.raises(NotLeader):
            await unheard.done
        assert node.log.held_batches == 2
        await node.stop()
        again = await stage.node()
        stage.cluster.clock.advance(40_000)
        await again.lead(topic)
        assert [value for _, value in await stored(stage.cluster, key)] == ["acknowledged", "not acknowledged"]


async def test_with_durability_object_a_refused_upload_alone_is_no_reason_to_give_up(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        node, _, key = await leading(stage, Durability.OBJECT, says_so=True)
        await acked(node.log.append(key, batch("a"), acks=1))
        node.log.limit_closing(FOR_EVER_S)
        closing = asyncio.create_task(node.log.close_partition(key))
        await settle()
        assert node.log.health.store_problem
        assert not closing.done()
        node.log._committer.store = stage.cluster.store
        async with asyncio.timeout(5):
            assert await closing == 1


async def test_with_durability_wal_a_stop_does_not_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        node, topic, key = await leading(stage, Durability.WAL, says_so=True)
        last = node.log.append(key, batch("a"), acks=-1)
        node.log.limit_closing(FOR_EVER_S)
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailable, match="the write-ahead log keeps them"):
                await node.log.close_partition(key)
        node.log.drop_partition(key, "the agent stops")
        assert last.done.done()
        assert last.done.exception() is None, "it is in the WAL, which is what acknowledges here"
        await node.stop()
        again = await stage.node(durability=Durability.WAL)
        stage.cluster.clock.advance(40_000)
        await again.lead(topic)
        await again.log.flush()
        assert [value for _, value in await stored(stage.cluster, key)] == ["a"]


@pytest.mark.parametrize("durability", list(Durability))
async def test_a_stop_brings_everything_out_while_the_store_is_there(tmp_path: Path, durability: Durability) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=2), await stage.node(durability=durability)
        full, empty = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await acked(node.log.append(full, batch("a"), acks=1))
        node.log.limit_closing(FOR_EVER_S)
        assert await node.log.close_partition(full) == 1 == await stage.cluster.high_watermark(full)
        node.log.limit_closing(0)
        assert await node.log.close_partition(empty) == 0, "nothing to wait for"


async def test_with_durability_wal_a_stop_does_not_wait_for_flushes_once_the_wal_has_failed(tmp_path: Path) -> None:
    """The store hangs and nobody knows yet; what was acknowledged comes back after a restart."""
    async with Stage(tmp_path) as stage:
        node, topic, key = await leading(stage, Durability.WAL, says_so=False)
        await acked(node.log.append(key, batch("acknowledged"), acks=-1))
        node.log.limit_closing(FOR_EVER_S)
        closing = asyncio.create_task(node.log.close_partition(key))
        await settle()
        assert not closing.done()
        node.wal._failed(OSError(28, "No space left on device"))
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailable, match="the write-ahead log keeps them"):
                await closing
        await node.stop()
        again = await stage.node(durability=Durability.WAL)
        stage.cluster.clock.advance(40_000)
        await again.lead(topic)
        await again.log.flush()
        assert [value for _, value in await stored(stage.cluster, key)] == ["acknowledged"]


async def test_with_durability_object_a_failed_wal_is_no_reason_to_give_flushes_up(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        node, _, key = await leading(stage, Durability.OBJECT, says_so=False)
        await acked(node.log.append(key, batch("a"), acks=1))
        node.wal._failed(OSError(28, "No space left on device"))
        node.log.limit_closing(FOR_EVER_S)
        closing = asyncio.create_task(node.log.close_partition(key))
        await settle()
        assert not closing.done()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await node.stop()
