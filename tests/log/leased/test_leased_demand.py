"""What the flush loop knows of all that waits, without looking at each partition."""

from __future__ import annotations

from pathlib import Path

from node import Stage, batch, settle

from streamhouse.log.flush_policy import WINDOW_REQUESTS, FlushPace
from streamhouse.log.leased.flusher import Flusher
from streamhouse.log.leased.partition import PartitionLog

NEVER = FlushPace(puts_per_second=1, longest_wait_ms=60_000, quiet_ms=60_000)


async def test_a_full_window_of_each_waiting_producer_is_known(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(pace=NEVER)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        demand = node.log._flusher._demand
        for number in range(WINDOW_REQUESTS):
            assert not demand.windows_full
            node.log.append(key, batch("a", producer=(7, 0, number)), acks=-1)
        assert demand.windows_full
        node.log.append(key, batch("b", producer=(8, 0, 0)), acks=-1)
        assert not demand.windows_full, "another producer may send more"
        await node.log.flush()
        assert not demand.windows_full
        assert not demand.is_waiting
        assert demand.size_bytes == 0


async def test_a_client_without_idempotence_never_fills_a_window(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(pace=NEVER)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        for _ in range(WINDOW_REQUESTS + 1):
            node.log.append(key, batch("a"), acks=-1)
        assert node.log._flusher._demand.is_waiting
        assert not node.log._flusher._demand.windows_full


async def test_a_client_that_the_wal_has_answered_does_not_wait(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(pace=NEVER)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        data = batch("a")
        node.log.append(key, data, acks=1)
        demand = node.log._flusher._demand
        assert not demand.is_waiting
        assert demand.size_bytes == len(data)


async def test_a_partition_that_is_dropped_is_not_counted_any_more(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=2), await stage.node(pace=NEVER)
        gone, stays = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        data = batch("a", producer=(7, 0, 0))
        dropped = node.log.append(gone, data, acks=-1)
        kept = node.log.append(stays, data, acks=-1)
        flusher: Flusher = node.log._flusher
        node.log.drop_partition(gone, "the lease ran out")
        dropped.done.exception()
        assert flusher._demand.size_bytes == len(data)
        partition = node.log.partition(stays)
        assert isinstance(partition, PartitionLog)
        await node.log.flush()
        await settle()
        assert kept.done.done()
        assert flusher._demand.size_bytes == 0
