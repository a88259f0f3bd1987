"""What an earlier leadership left behind: how fast it comes back, how much memory that takes, who hears of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node import Gate, Stage, acked, batch, left_behind, settle, values_of

from streamhouse.metadata.contract import Durability


async def test_a_reader_that_began_to_wait_during_the_opening_hears_of_what_came_back(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        await left_behind(stage, topic, ["mine"])
        store = Gate(stage.cluster.store, is_open=False)
        node = await stage.node("agent-1", store=store)
        opening = asyncio.create_task(node.lead(topic))
        await settle()
        waiting = asyncio.create_task(node.log.wait_visible(key, 1))
        await settle()
        store.open.set()
        await opening
        async with asyncio.timeout(5):
            await waiting


@pytest.mark.parametrize("durability", list(Durability))
async def test_a_replay_takes_no_more_memory_than_the_write_buffer(tmp_path: Path, durability: Durability) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        shut = Gate(stage.cluster.store, is_open=False)
        node = await stage.node(durability=durability, store=shut)
        await node.lead(topic)
        values = [f"{number:03}" + "x" * 1000 for number in range(40)]
        await acked(*(node.log.append(key, batch(value), acks=1) for value in values))
        await node.crash()
        store = Gate(stage.cluster.store)
        again = await stage.node(durability=durability, store=store, max_buffer_bytes=8000)
        store.node = again
        await again.lead(topic)
        assert again.log.stats.replayed_batches == 40
        await again.log.flush()
        assert max(store.buffered) <= 8000
        assert await values_of(stage, key) == values
        assert again.wal.unsettled_bytes == again.log.buffer_bytes == 0


async def test_r3_frames_of_an_ended_leadership_are_read_back_from_the_wal_and_replayed(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node = await stage.node("agent-1")
        await node.lead(topic)
        values = [f"value-{number}" for number in range(20)]
        for value in values:
            await acked(node.log.append(key, batch(value), acks=1))
        node.log.drop_partition(key, "the lease ran out")
        assert all(frame.batch is None for frame in node.log._held.frames_of(key))
        stage.cluster.clock.advance(31_000)
        await node.lead(topic)
        await node.log.flush()
        assert await values_of(stage, key) == values
        assert node.wal.unsettled_bytes == node.log.buffer_bytes == 0
