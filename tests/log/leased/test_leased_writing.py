"""How a batch is appended: every check first, then its offsets, and the acknowledgement once it is durable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node import Stage, acked, batch, settle, values_in

from streamhouse.core.errors import (
    BackPressureRejected,
    CorruptBatch,
    LimitExceeded,
    NotLeader,
)
from streamhouse.metadata.contract import (
    Durability,
    EntryKind,
)
from streamhouse.wire.batch import read_header


async def test_acks_all_returns_after_object_and_commit(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        first = node.log.append(key, batch("a", "b"), acks=-1)
        second = node.log.append(key, batch("c"), acks=-1)
        assert (first.base_offset, first.last_offset, second.base_offset) == (0, 1, 2)
        assert not first.done.done()
        await acked(first, second)
        assert await stage.cluster.high_watermark(key) == 3
        (entry,) = await stage.cluster.entries(key)
        assert (entry.base_offset, entry.end_offset, entry.kind) == (0, 2, EntryKind.WAL)
        assert (await stage.cluster.store.head(entry.object_key)).size_bytes >= entry.byte_length
        assert node.wal.unsettled_bytes == 0
        assert node.log.buffer_bytes == 0


async def test_acks_1_returns_after_the_sync_and_is_not_visible_before_the_commit(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        append = node.log.append(key, batch("a"), acks=1)
        await acked(append)
        partition = node.log.partition(key)
        assert partition is not None
        assert partition.visible_end == 0
        assert await stage.cluster.high_watermark(key) == 0
        assert list(partition.buffered_from(0)) == []
        await node.log.flush()
        assert partition.visible_end == 1


async def test_durability_wal_acknowledges_and_shows_after_the_sync(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        node = await stage.node(durability=Durability.WAL)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        append = node.log.append(key, batch("a"), acks=-1)
        await acked(append)
        partition = node.log.partition(key)
        assert partition is not None
        assert partition.visible_end == 1
        assert await stage.cluster.high_watermark(key) == 0
        assert values_in(*(pending.data for pending in partition.buffered_from(0))) == [(0, "a")]


async def test_r11_every_refusal_comes_before_an_offset_is_assigned(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(max_message_bytes="500")
        node = await stage.node(max_buffer_bytes=2000)
        (key,) = topic.partition_keys()
        with pytest.raises(NotLeader):
            node.log.append(key, batch("early"), acks=1)
        await node.lead(topic)
        damaged = bytearray(batch("x"))
        damaged[-1] ^= 1
        with pytest.raises(CorruptBatch):
            node.log.append(key, damaged, acks=1)
        first = node.log.append(key, batch("a" * 300), acks=1)
        node.log.append(key, batch("b" * 300), acks=1)
        with pytest.raises(BackPressureRejected, match="wait to be committed"):
            node.log.append(key, batch("c" * 300), acks=1)
        await node.log.flush()
        third = node.log.append(key, batch("d"), acks=1)
        assert (first.base_offset, third.base_offset) == (0, 2)


async def test_r20_an_invalid_guard_refuses_writes(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        node.guards[key].held = False
        with pytest.raises(NotLeader):
            node.log.append(key, batch("late"), acks=1)


async def test_log_append_time_is_stamped_by_the_leader(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(message_timestamp_type="LogAppendTime")
        node = await stage.node(durability=Durability.WAL)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        append = node.log.append(key, batch("a"), acks=-1)
        await acked(append)
        partition = node.log.partition(key)
        assert partition is not None
        (pending,) = partition.buffered_from(0)
        assert append.log_append_time_ms == read_header(pending.data).max_timestamp == stage.cluster.clock.wall_ms()


async def test_a_batch_larger_than_the_whole_write_buffer_is_refused_for_good(tmp_path: Path) -> None:
    """Not with back pressure: its producer would send it again for ever."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(max_buffer_bytes=2000)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        with pytest.raises(LimitExceeded, match=r"memory\.write_buffer_bytes\) holds 2000 in all"):
            node.log.append(key, batch("x" * 2000), acks=1)
        assert node.log.append(key, batch("y"), acks=1).base_offset == 0


async def test_a_refusal_for_want_of_room_says_what_keeps_the_room_taken(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(max_buffer_bytes=2000)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        node.log.append(key, batch("a" * 1000), acks=1)
        with pytest.raises(BackPressureRejected, match="waiting for: the flushes under way"):
            node.log.append(key, batch("b" * 1000), acks=1)
        node.log.health.metadata_problem = "no answer from the database"
        with pytest.raises(BackPressureRejected, match="waiting for: no answer from the database"):
            node.log.append(key, batch("b" * 1000), acks=1)


async def test_r9_a_producers_batch_waits_for_its_commit_whatever_its_acks_unless_the_wal_is_the_durability(
    tmp_path: Path,
) -> None:
    waits: dict[Durability, list[bool]] = {}
    async with Stage(tmp_path) as stage:
        for durability in Durability:
            topic = await stage.cluster.topic(durability)
            node = await stage.node(f"agent-{durability}", durability=durability)
            (key,) = topic.partition_keys()
            await node.lead(topic)
            led = node.log.partition(key)
            assert led is not None
            node.log.append(key, batch("a"), acks=1)
            node.log.append(key, batch("b"), acks=-1)
            node.log.append(key, batch("c", producer=(9, 0, 0)), acks=1)
            waits[durability] = [each.waits_for_commit for each in led.pending]
    assert waits == {Durability.OBJECT: [False, True, True], Durability.WAL: [False, False, False]}


async def test_a_sync_shows_nothing_of_a_leadership_that_has_ended(tmp_path: Path) -> None:
    """Else a reader would find records in the tail cache that another leader may have overwritten."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(durability=Durability.WAL)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=1))
        tail = node.log._tail
        assert tail.end_offset(key) == 1
        late = node.log.append(key, batch("b"), acks=1)
        node.log.drop_partition(key, "the lease ran out")
        outcome = await asyncio.gather(late.done, return_exceptions=True)
        await node.wal.wait_synced(2)
        await settle()
        assert [type(each) for each in outcome] == [NotLeader]
        assert tail.end_offset(key) is None


async def test_the_counters_grow_with_what_was_taken_and_not_with_what_was_refused(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(max_buffer_bytes=2000)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        data = batch("a", "b", producer=(9, 0, 0))
        for _ in range(2):
            node.log.append(key, data, acks=1)
        with pytest.raises(BackPressureRejected):
            node.log.append(key, batch("x" * 1200), acks=1)
        stats = node.log.stats
        assert (stats.appended_batches, stats.appended_records, stats.appended_bytes) == (1, 2, len(data))
