"""A leased log without room, in memory or in the WAL: what waits is brought out, and writers can wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node import Stage, acked, batch, settle

from streamhouse.core.errors import BackPressureRejected


async def test_a_full_buffer_starts_a_flush(tmp_path: Path) -> None:
    """Nothing is old or large enough to be due, and nobody waits: only the refusal says that there is no room."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        node = await stage.node(max_buffer_bytes=2000)
        quiet, busy = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await acked(node.log.append(quiet, batch("a" * 1000), acks=1))
        with pytest.raises(BackPressureRejected):
            node.log.append(busy, batch("b" * 1000), acks=1)
        await settle()
        assert await stage.cluster.high_watermark(quiet) == 1
        node.log.append(busy, batch("b" * 1000), acks=1)
        with pytest.raises(BackPressureRejected):
            node.log.append(quiet, batch("c" * 1000), acks=1)
        await settle()
        assert await stage.cluster.high_watermark(busy) == 1


async def test_a_full_wal_starts_a_flush(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        node = await stage.node(max_buffer_bytes=1 << 30, segment_max_bytes=1 << 30)
        (key,) = topic.partition_keys()
        await node.lead(topic)

        async def fill() -> None:
            while True:
                await acked(node.log.append(key, batch("x" * 20_000), acks=1))

        with pytest.raises(BackPressureRejected, match="write-ahead log is full"):
            await fill()
        assert node.log.is_full(20_000)
        await settle(500)
        assert node.wal.unsettled_bytes == 0
        await node.log.wait_writable(key, 20_000)
        await acked(node.log.append(key, batch("x" * 20_000), acks=1))


async def test_a_write_can_wait_for_room(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        node = await stage.node(max_buffer_bytes=2000)
        first, second = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await node.log.wait_writable(first, 1000)
        await acked(node.log.append(first, batch("a" * 1000), acks=1))
        waits = [asyncio.create_task(node.log.wait_writable(key, 1000)) for key in (first, second)]
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        await settle()
        assert await asyncio.gather(*waits) == [None, None]
        await acked(node.log.append(second, batch("b" * 1000), acks=1))
        over = asyncio.create_task(node.log.wait_writable(second, 1000))
        await asyncio.sleep(0)
        node.log.drop_partition(second, "another agent leads")
        await over


async def test_a_write_that_waits_goes_on_when_a_deleted_topics_frames_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Stage(tmp_path) as stage:
        gone, stays = await stage.cluster.topic(name="gone"), await stage.cluster.topic(name="stays")
        node = await stage.node()
        for topic in (gone, stays):
            await node.lead(topic)
        await acked(node.log.append(gone.partition_keys()[0], batch("a" * 1000), acks=1))
        monkeypatch.setattr(node.wal, "is_full", lambda size_bytes: node.wal.unsettled_bytes > 0)
        node.log.drop_partition(gone.partition_keys()[0], "its topic was deleted")
        await stage.cluster.metadata.delete_topic(gone.topic_id)
        waits = asyncio.create_task(node.log.wait_writable(stays.partition_keys()[0], 1000))
        await settle()
        assert not waits.done()
        assert node.log.held_is_in_the_way
        assert await node.log.sweep_held() == 1
        await settle()
        assert waits.done()


async def test_a_write_that_waits_for_the_disk_goes_on_when_there_is_room_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The WAL's disk has no room for a file. Nothing is synced and nothing is committed when there is room again."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        node = await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        full = True
        monkeypatch.setattr(type(node.wal), "is_full", lambda wal, size_bytes: full)
        waiting = asyncio.create_task(node.log.wait_writable(key, 1000))
        await settle()
        assert not waiting.done()
        full = False
        node.log.look_for_room()
        await settle()
        assert waiting.done()
