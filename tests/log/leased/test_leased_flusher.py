"""Which flushes start, when, and how many run at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from node import Stage, acked, batch, settle

from streamhouse.metadata.contract import (
    EntryKind,
)


async def test_one_flush_few_objects(tmp_path: Path) -> None:
    """Many small partitions share one blob; a partition with a segment's worth gets its own object."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=40)
        node = await stage.node(segment_max_bytes=4096)
        for key in topic.partition_keys():
            await node.lead(topic, key.partition)
        appends = [node.log.append(key, batch(f"v{key.partition}"), acks=1) for key in topic.partition_keys()]
        large = topic.partition_keys()[7]
        appends.append(node.log.append(large, batch("x" * 5000), acks=1))
        await acked(*appends)
        await node.log.flush()
        objects = [info.key async for info in stage.cluster.store.list()]
        assert len([name for name in objects if name.startswith("wal-shared/")]) == 1
        assert len([name for name in objects if name.startswith("topics/")]) == 1
        assert [entry.kind for entry in await stage.cluster.entries(large)] == [EntryKind.SEGMENT]
        for key in topic.partition_keys():
            assert await stage.cluster.high_watermark(key) == (2 if key == large else 1)


async def test_a_waiting_reader_brings_a_flush(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        waiting = asyncio.create_task(node.log.wait_visible(key, 0))
        await settle()
        await acked(node.log.append(key, batch("a"), acks=1))
        async with asyncio.timeout(5):
            await waiting
        assert await stage.cluster.high_watermark(key) == 1
