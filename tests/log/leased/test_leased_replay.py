"""What an earlier leadership left behind: how fast it comes back, how much memory that takes, who hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node import Node, Stage, acked, batch, settle, stored

from streamhouse.core.errors import BackPressureRejected
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import Durability, MetadataStore, SliceOutcome, Topic
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Overlap(Wrapper):
    """Metadata that takes a while for a commit, and tells how many were under way at once. May stop answering."""

    def __init__(self, inner: MetadataStore, *, stops_after: int = 10**9) -> None:
        super().__init__(inner)
        self.now = self.most = self.commits = 0
        self.stops_after = stops_after

    async def commit_leased(self, *arguments: Any) -> list[SliceOutcome]:
        self.now, self.commits = self.now + 1, self.commits + 1
        number, self.most = self.commits, max(self.most, self.now)
        try:
            await settle(10)
            if number > self.stops_after:
                await asyncio.Event().wait()
            outcomes: list[SliceOutcome] = await self.inner.commit_leased(*arguments)
            return outcomes
        finally:
            self.now -= 1


class Gate(Wrapper):
    """A store whose puts wait until it is opened; counts them, and how full the write buffer was."""

    def __init__(self, inner: ObjectStore, *, is_open: bool = True) -> None:
        super().__init__(inner)
        self.puts = 0
        self.buffered: list[int] = []
        self.node: Node | None = None
        self.open = asyncio.Event()
        if is_open:
            self.open.set()

    async def put(self, *arguments: Any, **options: Any) -> Any:
        self.puts += 1
        if self.node is not None:
            self.buffered.append(self.node.log.buffer_bytes)
        await self.open.wait()
        return await self.inner.put(*arguments, **options)


async def values_of(stage: Stage, key: PartitionKey) -> list[str]:
    return [value for _, value in await stored(stage.cluster, key)]


async def left_behind(stage: Stage, topic: Topic, values: Sequence[str]) -> None:
    """agent-1 acknowledges these on every partition from its WAL alone and dies; agent-2 leads for a while."""
    down = FaultyStore(
        stage.cluster.store, plan=ScriptedFaults([StoreFault.UNAVAILABLE] * 10_000), randomness=SeededRandomness(1)
    )
    node, other = await stage.node("agent-1", store=down), await stage.node("agent-2")
    for key in topic.partition_keys():
        await node.lead(topic, key.partition)
        await acked(*(node.log.append(key, batch(value), acks=1) for value in values))
    await node.crash()
    stage.cluster.clock.advance(40_000)
    for key in topic.partition_keys():
        await other.lead(topic, key.partition)
        await acked(other.log.append(key, batch("theirs"), acks=-1))
    stage.cluster.clock.advance(40_000)


async def test_r4_what_comes_back_shares_one_object_and_partitions_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=3)
        values = [f"v{number}" for number in range(30)]
        await left_behind(stage, topic, values)
        store, metadata = Gate(stage.cluster.store), Overlap(stage.cluster.metadata)
        node = await stage.node("agent-1", store=store, metadata=metadata)
        await asyncio.gather(*(node.lead(topic, key.partition) for key in topic.partition_keys()))
        assert store.puts == 1
        assert metadata.most == 3
        assert node.log.stats.resubmitted_batches == 90
        for key in topic.partition_keys():
            assert await values_of(stage, key) == ["theirs", *values]
            assert node.log.append(key, batch("next"), acks=1).base_offset == 31
        await node.log.flush()
        assert node.wal.unsettled_bytes == 0
        assert node.log._held._frames == {}


async def test_r4_a_resubmission_cut_short_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        values = [f"v{number}" for number in range(20)]
        await left_behind(stage, topic, values)
        metadata = Overlap(stage.cluster.metadata, stops_after=11)
        node = await stage.node("agent-1", metadata=metadata)
        opening = asyncio.create_task(node.lead(topic))
        await settle(500)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        assert await values_of(stage, key) == ["theirs", *values[:11]]
        metadata.stops_after = 10**9
        await node.crash()
        again = await stage.node("agent-1")
        stage.cluster.clock.advance(40_000)
        await again.lead(topic)
        assert await values_of(stage, key) == ["theirs", *values]
        assert again.log.stats.resubmitted_batches == 9


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


async def test_frames_of_an_ended_leadership_take_memory_only_until_they_are_synced(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        first, second = topic.partition_keys()
        node, other = await stage.node("agent-1", max_buffer_bytes=4000), await stage.node("agent-2")
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        append = node.log.append(first, batch("x" * 2500), acks=1)
        node.log.drop_partition(first, "the lease ran out")
        assert node.log.buffer_bytes > 2500
        with pytest.raises(BackPressureRejected, match="held for a new leadership"):
            node.log.append(second, batch("y" * 2500), acks=1)
        await node.wal.wait_synced(node.wal._state.next_lsn - 1)
        assert node.log.buffer_bytes == 0
        await acked(node.log.append(second, batch("y" * 2500), acks=1))
        assert append.base_offset == 0
        stage.cluster.clock.advance(700_000)
        await other.lead(topic, 0)
        await node.log.sweep_held()
        assert node.log._held._frames == {}


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


async def test_r4_frames_of_an_ended_leadership_are_read_back_from_the_wal_and_resubmitted(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        for value in ("a", "b"):
            await acked(node.log.append(key, batch(value), acks=1))
        node.log.drop_partition(key, "the lease ran out")
        stage.cluster.clock.advance(31_000)
        await other.lead(topic)
        await acked(other.log.append(key, batch("c"), acks=-1))
        other.log.drop_partition(key, "the lease ran out")
        stage.cluster.clock.advance(31_000)
        await node.lead(topic)
        assert await values_of(stage, key) == ["c", "a", "b"]
        assert node.wal.unsettled_bytes == 0


async def test_r4_acks_1_frames_that_take_all_room_are_given_up_after_half_a_minute(tmp_path: Path) -> None:
    """They keep every later file of the WAL, which is full before this agent leads their partition again."""
    given_up: list[tuple[PartitionKey, list[int]]] = []
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        first, _ = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        node.log._on_given_up = lambda key, frames: given_up.append((key, [frame.base_offset for frame in frames]))
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await acked(node.log.append(first, batch("x"), acks=1))
        node.log.drop_partition(first, "the lease ran out")
        stage.cluster.clock.advance(31_000)
        node.log._urge()
        assert await node.log.sweep_held() == 0, "no other agent has led since: it may be all there is (R3)"
        await other.lead(topic, 0)
        assert await node.log.sweep_held() == 0, "there is room: it may come back for ten minutes"
        assert node.log.stats.given_up_batches == 0
        node.log._urge()
        assert node.log.held_is_in_the_way
        assert await node.log.sweep_held() == 1
        assert given_up == [(first, [0])]
        assert (node.log.stats.given_up_batches, node.log.stats.dropped_batches) == (1, 0)
        assert node.wal.unsettled_bytes == 0


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
async def test_r4_held_frames_of_a_compacted_topic_led_elsewhere_do_not_pin_the_wal(
    tmp_path: Path, policy: str
) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(cleanup_policy=policy)
        (key,) = topic.partition_keys()
        node, other = await stage.node("agent-1"), await stage.node("agent-2")
        await node.lead(topic)
        await acked(node.log.append(key, batch("x"), acks=1))
        node.log.drop_partition(key, "the lease ran out")
        assert await node.log.sweep_held() == 0, "no other agent has led since: the frame is replayed (R3)"
        stage.cluster.clock.advance(31_000)
        await other.lead(topic)
        comes_back = policy == "delete"
        assert await node.log.sweep_held() == (0 if comes_back else 1)
        assert (node.wal.unsettled_bytes > 0) == comes_back
