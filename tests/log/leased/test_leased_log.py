"""The leased log: offsets, acknowledgements, flushes, and what each verdict does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node import Stage, acked, batch, settle, values_in

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import (
    BackPressureRejected,
    CorruptBatch,
    NotLeader,
)
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.leased import commit, opening
from streamhouse.metadata.contract import (
    Durability,
    EntryKind,
    LeasedSlice,
    MetadataStore,
    SliceOutcome,
    Verdict,
)
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.faults import FaultTimes, FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore
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


async def test_several_flushes_in_flight_commit_in_order(tmp_path: Path) -> None:
    store = FaultyStore(
        MemoryStore(clock=Stage(tmp_path).cluster.clock),
        plan=ScriptedFaults([StoreFault.LATENCY, None, StoreFault.LATENCY, None] * 5),
        randomness=SeededRandomness(3),
        times=FaultTimes(latency_ms=20),
    )
    async with Stage(tmp_path, store) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        appends = []
        for number in range(12):
            appends.append(node.log.append(key, batch(f"v{number}"), acks=-1))
            await settle(3)
        await acked(*appends)
        assert [append.base_offset for append in appends] == list(range(12))
        entries = await stage.cluster.entries(key)
        assert [entry.base_offset for entry in entries] == [0, *(entry.end_offset + 1 for entry in entries[:-1])]
        assert entries[-1].end_offset == 11


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


async def test_r1_a_stale_leader_cannot_commit_and_its_producers_hear_not_leader(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        old, new = await stage.node("agent-1"), await stage.node("agent-2")
        (key,) = topic.partition_keys()
        await old.lead(topic)
        stage.cluster.clock.advance(40_000)
        await new.lead(topic)
        doomed = old.log.append(key, batch("old"), acks=-1)
        with pytest.raises(NotLeader):
            await acked(doomed)
        kept = new.log.append(key, batch("new"), acks=-1)
        await acked(kept)
        assert kept.base_offset == 0
        assert await stage.cluster.high_watermark(key) == 1
        assert [reason for _, reason in old.dropped] == ["the commit at offset 0 was refused: fenced"]
        with pytest.raises(NotLeader):
            old.log.append(key, batch("later"), acks=1)


async def test_r10_one_lost_lease_does_not_fail_the_others(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=3)
        old, new = await stage.node("agent-1"), await stage.node("agent-2")
        for key in topic.partition_keys():
            await old.lead(topic, key.partition)
        stage.cluster.clock.advance(40_000)
        await new.lead(topic, 1)
        appends = [old.log.append(key, batch("v"), acks=-1) for key in topic.partition_keys()]
        results = await asyncio.gather(*(append.done for append in appends), return_exceptions=True)
        assert [isinstance(result, NotLeader) for result in results] == [False, True, False]
        assert [await stage.cluster.high_watermark(key) for key in topic.partition_keys()] == [1, 0, 1]


async def test_r11_stale_object_uploads_the_same_batches_again_at_the_same_offsets(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=-1))
        stage.cluster.clock.jump_wall(5_000)  # the store's clock leaps ahead of what this node has measured
        await stage.cluster.metadata.raise_gc_horizon(await stage.cluster.metadata.now_ms())
        append = node.log.append(key, batch("b"), acks=-1)
        await acked(append)
        assert append.base_offset == 1
        assert len([info.key async for info in stage.cluster.store.list()]) == 3  # one of them refused
        assert [entry.base_offset for entry in await stage.cluster.entries(key)] == [0, 1]


class NotYet:
    """Metadata that says of one partition, for the first commits, that what comes before has not arrived."""

    def __init__(self, inner: MetadataStore, times: int) -> None:
        self._inner = inner
        self.key: PartitionKey | None = None
        self.times = times
        self.sent: list[AppendId] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit_leased(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        self.sent.append(append_id)
        if len(self.sent) > self.times:
            return await self._inner.commit_leased(append_id, slices)
        now = await self._inner.commit_leased(append_id, [piece for piece in slices if piece.key != self.key])
        answers = {outcome.key: outcome for outcome in now}
        return [answers.get(piece.key) or SliceOutcome(key=piece.key, verdict=Verdict.NOT_YET) for piece in slices]


async def test_r10_not_yet_sends_the_identical_commit_again_and_keeps_the_leadership(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        metadata = NotYet(stage.cluster.metadata, times=2)
        node = await stage.node(metadata=metadata)
        metadata.key, other = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await acked(node.log.append(metadata.key, batch("a"), acks=-1), node.log.append(other, batch("b"), acks=-1))
        assert len(metadata.sent) == 3
        assert len(set(metadata.sent)) == 1
        assert node.dropped == []
        assert [await stage.cluster.high_watermark(key) for key in topic.partition_keys()] == [1, 1]


async def test_r10_not_yet_for_long_ends_the_leadership(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log ends elsewhere than this leader believes; waiting for ever would stop every other partition's flushes."""
    monkeypatch.setattr(commit, "_BACKOFF", Backoff(first_ms=1, longest_ms=64))
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        metadata = NotYet(stage.cluster.metadata, times=10**9)
        node = await stage.node(metadata=metadata)
        metadata.key, other = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        doomed, fine = (node.log.append(key, batch("a"), acks=-1) for key in (metadata.key, other))
        with pytest.raises(NotLeader, match="not_yet"):
            await acked(doomed)
        await acked(fine)
        assert [key for key, _ in node.dropped] == [metadata.key]


class NotYetAndStale:
    """Metadata where nothing can be committed, and vacuum passes the object at every third commit."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.said: list[Verdict] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit_leased(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        number = len(self.said) + 1
        verdict = Verdict.FENCED if number > 30 else Verdict.NOT_YET if number % 3 else Verdict.STALE_OBJECT
        self.said.append(verdict)
        return [SliceOutcome(key=piece.key, verdict=verdict) for piece in slices]


async def test_r10_not_yet_counts_on_when_the_object_is_uploaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_BACKOFF", Backoff(first_ms=1, longest_ms=1))
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        metadata = NotYetAndStale(stage.cluster.metadata)
        node = await stage.node(metadata=metadata)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        with pytest.raises(NotLeader, match="not_yet"):
            await acked(node.log.append(key, batch("a"), acks=-1))
        assert metadata.said.count(Verdict.NOT_YET) == commit.NOT_YET_TRIES + 1
        assert metadata.said.count(Verdict.STALE_OBJECT) == 3
        assert [dropped for dropped, _ in node.dropped] == [key]


async def test_uploads_are_retried_and_keep_their_data(tmp_path: Path) -> None:
    faulty = FaultyStore(
        MemoryStore(clock=Stage(tmp_path).cluster.clock),
        plan=ScriptedFaults([StoreFault.UNAVAILABLE, StoreFault.SERVER_ERROR, StoreFault.ERROR_AFTER]),
        randomness=SeededRandomness(3),
    )
    async with Stage(tmp_path, faulty) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        append = node.log.append(key, batch("a"), acks=-1)
        await acked(append)
        assert node.log.health.uploads_retried == 3
        assert node.log.health.store_problem == ""
        (entry,) = await stage.cluster.entries(key)
        assert (await stage.cluster.store.head(entry.object_key)).key == entry.object_key


class BareErrors:
    """A store whose client lets errors of the operating system through, some without a text."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._errors = [ConnectionResetError(104, "connection reset by peer"), TimeoutError()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, *arguments: Any, **options: Any) -> Any:
        if self._errors:
            raise self._errors.pop()
        return await self._inner.put(*arguments, **options)


async def test_an_upload_that_fails_in_the_operating_system_is_retried_too(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        node = await stage.node(store=BareErrors(stage.cluster.store))
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=-1))
        assert node.log.health.uploads_retried == 2
        assert node.dropped == []


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


async def test_closing_refuses_writes_and_brings_everything_out(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        appends = [node.log.append(key, batch(f"v{number}"), acks=1) for number in range(3)]
        next_offset = await node.log.close_partition(key)
        assert next_offset == 3 == await stage.cluster.high_watermark(key)
        await acked(*appends)
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


async def test_an_epoch_is_led_once(tmp_path: Path) -> None:
    """A commit of the ended leadership may still be under way; only a higher epoch settles what it did."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        lease = await node.lead(topic)
        node.log.drop_partition(key, "test")
        with pytest.raises(NotLeader, match="led here already"):
            await node.log.open_partition(lease, topic, guard=node.guards[key])


async def test_the_memory_of_led_epochs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_MAX_REMEMBERED_EPOCHS", 2)
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=3), await stage.node()
        leases = [await node.lead(topic, key.partition) for key in topic.partition_keys()]
        assert len(node.log._openings._led_epochs) == 2
        last = topic.partition_keys()[2]
        node.log.drop_partition(last, "test")
        with pytest.raises(NotLeader, match="led here already"):
            await node.log.open_partition(leases[2], topic, guard=node.guards[last])


class SlowProducers:
    """Metadata that takes its time for the producers' windows."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.answers = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def load_producers(self, keys: Sequence[PartitionKey], **how: Any) -> Any:
        await self.answers.wait()
        return await self._inner.load_producers(keys, **how)


async def test_a_config_that_changes_while_a_partition_is_opened_holds_afterwards(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        metadata = SlowProducers(stage.cluster.metadata)
        node = await stage.node(metadata=metadata)
        (key,) = topic.partition_keys()
        opening = asyncio.create_task(node.lead(topic))
        await settle()
        changed = await stage.cluster.metadata.alter_topic_configs(
            topic.topic_id, set_configs={"max.message.bytes": "500"}
        )
        node.log.configure(changed)
        metadata.answers.set()
        await opening
        led = node.log.partition(key)
        assert led is not None
        assert led.config.max_message_bytes == 500, "by which the broker judges the next batch"


async def test_changed_topic_configs_hold_from_the_next_append_on(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        node.log.append(key, batch("x" * 600), acks=1)
        changed = await stage.cluster.metadata.alter_topic_configs(
            topic.topic_id, set_configs={"max.message.bytes": "500"}
        )
        node.log.configure(changed)
        led = node.log.partition(key)
        assert led is not None
        assert led.config.max_message_bytes == 500, "by which the broker judges the next batch"


async def test_many_take_overs_share_one_look_at_the_producers(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=20)
        old, new = await stage.node("agent-1"), await stage.node("agent-2")
        for key in topic.partition_keys():
            await old.lead(topic, key.partition)
            await acked(old.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1))
        stage.cluster.clock.advance(40_000)
        await asyncio.gather(*(new.lead(topic, key.partition) for key in topic.partition_keys()))
        for key in topic.partition_keys():
            assert new.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1).duplicate


async def test_a_flush_of_a_partition_that_is_not_led_here_is_refused(tmp_path: Path) -> None:
    """Else a flush request would be answered "done" while its records are held in the WAL."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=2), await stage.node()
        await node.lead(topic, 0)
        with pytest.raises(NotLeader):
            await node.log.flush(topic.partition_keys())
        await node.log.flush()
