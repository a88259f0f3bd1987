"""Which flushes start, when, and how many run at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from node import Gate, Stage, Wrapper, acked, batch, settle

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import NotLeader
from streamhouse.log.flush_policy import FlushPace
from streamhouse.log.leased.commit import Committer
from streamhouse.log.leased.flusher import Flusher
from streamhouse.metadata.contract import (
    EntryKind,
)
from streamhouse.objectstore.contract import ObjectStore

ROOM_FOR_LARGE: dict[str, Any] = {
    "segment_max_bytes": 5_000_000,
    "max_buffer_bytes": 64 << 20,
    "wal_bytes": 256 << 20,
}
LONG_WAITS = FlushPace(puts_per_second=10_000, longest_wait_ms=60_000, quiet_ms=60_000)


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


async def test_what_no_client_waits_for_is_flushed_when_it_is_old_enough(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=1))
        stage.cluster.clock.advance(59_999)
        node.log._flusher.wake()
        await settle()
        assert node.log.flushes == 0
        stage.cluster.clock.advance(1)
        node.log._flusher.wake()
        await settle()
        assert (node.log.flushes, await stage.cluster.high_watermark(key)) == (1, 1)


async def test_only_so_many_flushes_run_at_a_time_and_the_rest_shares_the_next(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        store = Gate(stage.cluster.store, is_open=False)
        node = await stage.node(store=store)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        appends = []
        for number in range(10):
            appends.append(node.log.append(key, batch(f"v{number}"), acks=-1))
            await settle()
        assert (node.log.flushes, node.log.flushes_under_way, store.puts) == (4, 4, 4)
        store.open.set()
        await acked(*appends)
        assert node.log.flushes == 5
        assert node.log.flushes_under_way == 0
        assert len(await stage.cluster.entries(key)) == 5


async def test_a_flush_takes_a_bounded_share_of_a_partition_and_goes_on_with_the_rest(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(segment_max_bytes=1 << 20)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        data = batch("x" * 500)
        node.log._flusher._max_chunk_bytes = 2 * len(data)
        for _ in range(5):
            node.log.append(key, data, acks=1)
        await node.log.flush()
        entries = await stage.cluster.entries(key)
        assert [(entry.base_offset, entry.record_count) for entry in entries] == [(0, 2), (2, 2), (4, 1)]
        led = node.log.partition(key)
        assert led is not None
        assert not led.dirty, "nothing of it is left to flush"


async def test_a_partition_that_is_dropped_is_not_flushed_any_more(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        store = Gate(stage.cluster.store)
        node = await stage.node(store=store)
        gone, stays = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        await acked(node.log.append(gone, batch("a"), acks=1))
        node.log.drop_partition(gone, "the lease ran out")
        node.log._flusher.wake()
        await settle()
        assert (node.log.flushes, store.puts) == (0, 0)
        await acked(node.log.append(stays, batch("b"), acks=-1))
        assert await stage.cluster.high_watermark(gone) == 0


async def test_a_flush_that_breaks_ends_the_leaderships_concerned_and_later_flushes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug: the order of their commits is broken, and their clients must not wait for ever."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=2), await stage.node()
        broken, fine = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)

        async def breaks(*arguments: object, **options: object) -> list[object]:
            raise RuntimeError("a bug")

        with monkeypatch.context() as patch:
            patch.setattr(Committer, "pack", breaks)
            doomed = node.log.append(broken, batch("a"), acks=-1)
            with pytest.raises(NotLeader):
                await acked(doomed)
        assert [(key, "RuntimeError('a bug')" in reason) for key, reason in node.dropped] == [(broken, True)]
        await acked(node.log.append(fine, batch("b"), acks=-1))
        assert await stage.cluster.high_watermark(fine) == 1


async def test_a_flush_loop_that_breaks_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await settle()
        errors = [ValueError("a bug in the plan")]

        start_blob = Flusher._start_blob

        def breaks_once(self: Flusher, now_ms: int, pace: FlushPace) -> float | None:
            if errors:
                raise errors.pop()
            return start_blob(self, now_ms, pace)

        monkeypatch.setattr(Flusher, "_start_blob", breaks_once)
        node.log._flusher.wake()
        await settle()
        assert not errors
        await acked(node.log.append(key, batch("a"), acks=-1))
        assert await stage.cluster.high_watermark(key) == 1


async def test_a_full_window_of_requests_shares_one_flush_at_once(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(pace=LONG_WAITS)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        appends = [node.log.append(key, batch("a", producer=(7, 0, number)), acks=-1) for number in range(4)]
        await settle()
        assert node.log.flushes == 0, "the client may send another one"
        appends.append(node.log.append(key, batch("a", producer=(7, 0, 4)), acks=-1))
        await acked(*appends)
        assert node.log.flushes == 1


async def test_over_the_budget_batches_wait_and_share_a_flush(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        pace = FlushPace(puts_per_second=2, longest_wait_ms=0, quiet_ms=0)
        topic, node = await stage.cluster.topic(), await stage.node(pace=pace)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        for _ in range(2):  # the burst
            await acked(node.log.append(key, batch("a"), acks=-1))
        later = []
        for _ in range(5):
            later.append(node.log.append(key, batch("b"), acks=-1))
            await settle()
        assert node.log.flushes == 2
        assert node.log.flush_pace.held_back == 1
        stage.cluster.clock.advance(500)
        node.log._flusher.wake()
        await acked(*later)
        assert (node.log.flushes, node.log.flush_pace.puts) == (3, 3)


async def test_what_is_worth_its_put_does_not_wait_for_the_budget(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        pace = FlushPace(puts_per_second=1, longest_wait_ms=0, quiet_ms=0, unbudgeted_bytes=2000, enough_bytes=10_000)
        topic, node = await stage.cluster.topic(), await stage.node(pace=pace)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a"), acks=-1))
        small = node.log.append(key, batch("b"), acks=-1)
        await settle()
        assert not small.done.done()
        await acked(node.log.append(key, batch("x" * 2000), acks=-1), small)


async def test_a_flush_that_is_asked_for_does_not_wait_for_the_budget(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        pace = FlushPace(puts_per_second=1, longest_wait_ms=0, quiet_ms=0)
        topic, node = await stage.cluster.topic(), await stage.node(pace=pace)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        for _ in range(3):
            await acked(node.log.append(key, batch("a"), acks=1))
            async with asyncio.timeout(5):
                await node.log.flush()
        assert await stage.cluster.high_watermark(key) == 3


async def test_a_small_write_does_not_wait_for_the_uploads_of_large_ones(tmp_path: Path) -> None:
    """All large uploads hang, and what comes after them in the same partitions waits; nothing else does."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=5)
        store = LargeWait(stage.cluster.store)
        node = await stage.node(
            store=store, segment_max_bytes=5_000_000, max_buffer_bytes=64 << 20, wal_bytes=256 << 20
        )
        large, small = topic.partition_keys()[:4], topic.partition_keys()[4]
        for number in range(5):
            await node.lead(topic, number)
        held = []
        for key in large:
            held.append(node.log.append(key, batch("x" * (5 << 20)), acks=-1))
            await settle()
        assert store.waiting == 4
        for number in range(3):
            held += [node.log.append(key, batch("behind"), acks=-1) for key in large]
            await acked(node.log.append(small, batch(f"small {number}"), acks=-1))
        assert not any(append.done.done() for append in held)
        store.let_go.set()
        await acked(*held)


async def test_the_chunks_of_one_partition_are_committed_in_order_whatever_their_size(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        store = LargeWait(stage.cluster.store)
        node = await stage.node(
            store=store, segment_max_bytes=5_000_000, max_buffer_bytes=64 << 20, wal_bytes=256 << 20
        )
        (key,) = topic.partition_keys()
        await node.lead(topic)
        first = node.log.append(key, batch("x" * (5 << 20)), acks=-1)
        await settle()
        second = node.log.append(key, batch("a"), acks=-1)
        await settle()
        assert not second.done.done(), "what comes later in the same partition waits"
        store.let_go.set()
        await acked(first, second)
        assert [entry.base_offset for entry in await stage.cluster.entries(key)] == [0, 1]


class LargeWait(Wrapper):
    """A store in which large puts wait until they may go on."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.waiting = 0
        self.let_go = asyncio.Event()

    async def put(self, key: str, buffers: Any, **options: Any) -> Any:
        if sum(map(len, buffers)) > 4 << 20:
            self.waiting += 1
            await self.let_go.wait()
        return await self.inner.put(key, buffers, **options)


async def test_what_is_left_of_a_large_partition_goes_with_the_small_ones(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        store = LargeWait(stage.cluster.store)
        node = await stage.node(store=store, **ROOM_FOR_LARGE)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        first = node.log.append(key, batch("x" * (5 << 20)), acks=-1)
        await settle()
        rest = [node.log.append(key, batch("a"), acks=acks) for acks in (-1, 1)]
        store.let_go.set()
        await acked(first, *rest)
        assert [(entry.kind, entry.record_count) for entry in await stage.cluster.entries(key)] == [
            (EntryKind.SEGMENT, 1),
            (EntryKind.WAL, 2),
        ]
        led = node.log.partition(key)
        assert led is not None
        assert not led.dirty


async def test_large_uploads_take_nothing_of_the_budget_of_small_ones(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        pace = FlushPace(puts_per_second=1, longest_wait_ms=0, quiet_ms=0)
        topic = await stage.cluster.topic(partitions=2)
        node = await stage.node(pace=pace, **ROOM_FOR_LARGE)
        large, small = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        for _ in range(3):
            await acked(node.log.append(large, batch("x" * (5 << 20)), acks=-1))
        await acked(node.log.append(small, batch("a"), acks=-1))
        late = node.log.append(small, batch("b"), acks=-1)
        await acked(node.log.append(large, batch("x" * (5 << 20)), acks=-1))
        assert not late.done.done(), "no small object rides along with a large one"


async def test_a_partition_that_waited_for_a_place_is_flushed_when_one_is_free(tmp_path: Path) -> None:
    """It holds a segment's worth of acks=1 records, so no client asks for it."""
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=5)
        store = LargeWait(stage.cluster.store)
        node = await stage.node(store=store, **ROOM_FOR_LARGE)
        for number, key in enumerate(topic.partition_keys()):
            await node.lead(topic, number)
            await acked(node.log.append(key, batch("x" * (5 << 20)), acks=1))
        await settle()
        assert (store.waiting, node.log.flushes) == (4, 4)
        store.let_go.set()
        await node.log.partition(topic.partition_keys()[4]).wait_committed(1)  # type: ignore[union-attr]


async def test_segments_of_all_large_partitions_have_their_turn(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=2)
        node = await stage.node(**ROOM_FOR_LARGE)
        first, second = topic.partition_keys()
        await node.lead(topic, 0)
        await node.lead(topic, 1)
        flusher = node.log._flusher
        flusher._max_in_flight, flusher._max_chunk_bytes = 1, 1
        for _ in range(3):
            node.log.append(first, batch("x" * (5 << 20)), acks=1)
            node.log.append(second, batch("x" * (5 << 20)), acks=1)
        flown: list[str] = []
        fly = flusher._fly

        def note(lane: Any, large: Any, small: Any, **options: Any) -> None:
            flown.extend("second" if chunk.partition.key == second else "first" for chunk in large)
            fly(lane, large, small, **options)

        flusher._fly = note  # type: ignore[method-assign]
        await node.log.flush()
        assert flown[:4] in (["first", "second"] * 2, ["second", "first"] * 2)


async def test_the_loop_wakes_by_itself_when_the_budget_has_a_token(tmp_path: Path) -> None:
    """On the machine's own clock: two seconds pass until there is a token."""
    async with Stage(tmp_path) as stage:
        pace = FlushPace(puts_per_second=1, longest_wait_ms=0, quiet_ms=0)
        topic, node = await stage.cluster.topic(), await stage.node(pace=pace)
        flusher, clock = node.log._flusher, SystemClock()
        flusher._clock = clock
        (key,) = topic.partition_keys()
        await node.lead(topic)
        for _ in range(3):
            flusher._budget.spend(clock.boot_ms())
        append = node.log.append(key, batch("a"), acks=-1)
        await settle()
        assert not append.done.done()
        await acked(append)
        assert node.log.flush_pace.held_back == 1
