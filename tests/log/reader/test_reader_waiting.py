"""Long polls: what wakes them, what they cost while nothing happens, and that none sleeps through a commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from reading import Library, Shelf, at_once, batches, offsets_in, settle

from streamhouse.core.errors import MetadataUnavailable, NotLeader, PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.log.reader.cursor import ReadRequest, ReadResult
from streamhouse.log.reader.protocols import BufferedBatch, LedPartition
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.reader.views import PartitionView, Question
from streamhouse.log.reader.waiting import WaitingRoom
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import Change, Durability, MetadataStore, PartitionState
from streamhouse.wire.batch import BatchHeader, read_header

HOUR_MS = 3_600_000


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Deaf:
    """A metadata store that tells nothing, and counts what it is asked."""

    def __init__(self, inner: MetadataStore, *, broken: bool = False) -> None:
        self._inner = inner
        self._broken = broken
        self.looks: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def subscribe(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        return self._silence()

    @asynccontextmanager
    async def _silence(self) -> AsyncIterator[AsyncIterator[Change]]:
        if self._broken:
            raise MetadataUnavailable("no notifications today")

        async def nothing() -> AsyncIterator[Change]:
            await asyncio.Event().wait()
            yield Change(kind="any")  # type: ignore[arg-type]

        yield nothing()

    async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
        self.looks.append(len(keys))
        return await self._inner.get_partitions(keys)


class Buffered:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.header: BatchHeader = read_header(data)
        self.base_offset = self.header.base_offset
        self.next_offset = self.header.next_offset


class Leader:
    """Leads one partition; shows batches as it is told to."""

    def __init__(self, key: PartitionKey, tail: TailCache | None) -> None:
        self._key = key
        self._tail = tail
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.epoch = 0
        self.high_watermark = 0
        self.visible_end = 0
        self.buffer: list[Buffered] = []
        self.leads = True
        self.waits = 0

    def show(self, *made: bytes) -> None:
        for each in made:
            batch = Buffered(each)
            if self._tail is not None:
                self._tail.publish(self._key, batch.base_offset, [each])
            self.buffer.append(batch)
            self.visible_end = batch.next_offset
        self._wake(None)

    def resign(self) -> None:
        self.leads = False
        self._wake(NotLeader(str(self._key), current_leader=None))

    def _wake(self, error: Exception | None) -> None:
        for offset, future in list(self._waiting):
            if error is not None and not future.done():
                future.set_exception(error)
            elif offset < self.visible_end and not future.done():
                future.set_result(None)

    def partition(self, key: PartitionKey) -> LedPartition | None:
        return self if self.leads and key == self._key else None

    def buffered_from(self, offset: int) -> Iterable[BufferedBatch]:
        return [each for each in self.buffer if each.next_offset > offset]

    async def wait_visible(self, key: PartitionKey, beyond_offset: int) -> None:
        self.waits += 1
        future = asyncio.get_running_loop().create_future()
        place = (beyond_offset, future)
        self._waiting.append(place)
        try:
            await future
        finally:
            self._waiting.remove(place)


def poll(reader: LogReader, shelf: Shelf, offset: int = 0, **how: int) -> asyncio.Task[ReadResult]:
    return asyncio.create_task(reader.read(shelf.key, offset, **{"max_bytes": 1 << 20, "max_wait_ms": HOUR_MS, **how}))


# Commits by others.


@at_once
async def test_a_commit_anywhere_wakes_a_long_poll_at_once() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        reader = library.reader()
        waiting = poll(reader, shelf)
        await asyncio.sleep(100)
        assert not waiting.done()
        before = now_s()
        await shelf.add(2)
        assert offsets_in(await waiting) == [0, 1, 2, 3]
        assert now_s() == before


@at_once
async def test_the_poll_ends_with_its_time_and_says_where_the_log_ends() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(2)
        reader = library.reader()
        result = await reader.read(shelf.key, 4, max_bytes=100, max_wait_ms=7_000)
        assert now_s() == pytest.approx(7)
        assert (result.batches, result.next_offset, result.high_watermark) == ([], 4, 4)


@at_once
async def test_min_bytes_are_gathered_over_several_commits() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        reader = library.reader()
        size = len(batches(1)[0])
        waiting = poll(reader, shelf, min_bytes=5 * size)
        for _ in range(4):
            await asyncio.sleep(1)
            await shelf.add(1)
            await settle()
            assert not waiting.done()
        await shelf.add(1)
        result = await waiting
        assert offsets_in(result) == list(range(10))
        assert result.size_bytes == 5 * size
        # Less than that, when the time is over.
        late = await reader.read(shelf.key, 8, max_bytes=1 << 20, min_bytes=1 << 20, max_wait_ms=100)
        assert offsets_in(late) == [8, 9]


@at_once
async def test_more_min_bytes_than_max_bytes_do_not_wait_for_ever() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(9)
        reader = library.reader()
        result = await reader.read(shelf.key, 0, max_bytes=200, min_bytes=1 << 20, max_wait_ms=HOUR_MS)
        assert 0 < result.size_bytes <= 200
        assert now_s() == 0


@at_once
async def test_a_full_answer_does_not_wait_for_partitions_that_have_nothing() -> None:
    async with Library() as library:
        full, empty = await library.shelves("many", 2)
        await full.add(9)
        reader = library.reader()
        requests = [ReadRequest(key=each.key, offset=0, max_bytes=1 << 20) for each in (empty, full)]
        size = len(batches(1)[0])
        results = await reader.read_many(requests, max_bytes=3 * size, min_bytes=1 << 20, max_wait_ms=HOUR_MS)
        assert [len(each.batches) for each in results if isinstance(each, ReadResult)] == [0, 3]
        assert now_s() == 0


@at_once
async def test_s2_18_without_notifications_the_recheck_finds_it() -> None:
    for broken in (False, True):
        async with Library() as library:
            shelf = await library.shelf()
            reader = library.reader(metadata=Deaf(library.metadata, broken=broken), recheck_interval_ms=300)  # type: ignore[arg-type]
            waiting = poll(reader, shelf)
            await asyncio.sleep(10)
            before = now_s()
            await shelf.add(1)
            assert offsets_in(await waiting) == [0, 1]
            assert now_s() - before <= 0.3


@at_once
async def test_a_commit_during_the_look_that_found_nothing_is_not_slept_through() -> None:
    """The look saw the log before the commit, the notice came before there was anybody to wake."""
    async with Library() as library:
        shelf, other = await library.shelf(), await library.shelf("other")

        class Slow(Deaf):
            def subscribe(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
                return self._inner.subscribe()

            async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
                states = await self._inner.get_partitions(keys)
                await asyncio.sleep(1)
                return states

        reader = library.reader(metadata=Slow(library.metadata), recheck_interval_ms=HOUR_MS)  # type: ignore[arg-type]
        idle = poll(reader, other)  # so that the reader listens
        await asyncio.sleep(5)
        waiting = poll(reader, shelf)
        await asyncio.sleep(0.5)
        await shelf.add(1)
        assert offsets_in(await waiting) == [0, 1]
        assert now_s() < 10
        idle.cancel()


@at_once
async def test_a_commit_before_the_reader_listens_is_not_slept_through() -> None:
    async with Library() as library:
        shelf = await library.shelf()

        class SlowToSubscribe(Deaf):
            @asynccontextmanager
            async def _silence(self) -> AsyncIterator[AsyncIterator[Change]]:
                await asyncio.sleep(1)
                async with self._inner.subscribe() as changes:
                    yield changes

        reader = library.reader(metadata=SlowToSubscribe(library.metadata), recheck_interval_ms=HOUR_MS)  # type: ignore[arg-type]
        waiting = poll(reader, shelf)
        await asyncio.sleep(0.5)
        await shelf.add(1)
        assert offsets_in(await waiting) == [0, 1]
        assert now_s() == 1


@at_once
async def test_a_partition_that_is_deleted_ends_the_poll_with_an_error() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        reader = library.reader()
        waiting = poll(reader, shelf)
        await asyncio.sleep(1)
        await library.metadata.delete_topic(shelf.key.topic_id)
        with pytest.raises(PartitionNotFound):
            await waiting
        assert now_s() == 1


@at_once
async def test_closing_the_reader_ends_polls_as_if_their_time_had_passed() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        reader = library.reader()
        waiting = poll(reader, shelf)
        await asyncio.sleep(1)
        await reader.close()
        assert (await waiting).batches == []
        assert now_s() == 1


# Partitions led here.


@at_once
async def test_what_the_leader_here_shows_wakes_a_poll_without_metadata_or_store() -> None:
    for has_tail in (True, False):
        async with Library() as library:
            shelf = await library.shelf()
            tail = TailCache(1 << 20)
            leader = Leader(shelf.key, tail if has_tail else None)
            deaf = Deaf(library.metadata)
            reader = library.reader(metadata=deaf, leading=leader, tail=tail, recheck_interval_ms=HOUR_MS)  # type: ignore[arg-type]
            made = batches(6)
            for number in range(3):
                waiting = poll(reader, shelf, 4 * number)
                await settle()
                leader.show(*made[2 * number : 2 * number + 2])
                result = await waiting
                assert offsets_in(result) == [4 * number + each for each in range(4)]
                assert result.high_watermark == result.next_offset
            assert library.store.gets == []
            assert len(deaf.looks) <= 2
            assert (reader.stats.tail_bytes > 0) is has_tail
            assert (reader.stats.buffer_bytes > 0) is not has_tail


@at_once
async def test_a_record_shown_while_the_poll_was_busy_with_another_partition_is_not_slept_through() -> None:
    async with Library() as library:
        cold, led = await library.shelf(), await library.shelf("led")
        await cold.add(1)
        leader = Leader(led.key, None)
        reader = library.reader(leading=leader, recheck_interval_ms=HOUR_MS)
        await reader.read(led.key, 0, max_bytes=1)
        leader_watch = poll(reader, led)  # so that somebody watches the leader already
        await settle()
        library.store.gate.clear()
        requests = [ReadRequest(key=each.key, offset=0, max_bytes=1000) for each in (led, cold)]
        waiting = asyncio.create_task(reader.read_many(requests, max_bytes=1 << 20, min_bytes=150, max_wait_ms=HOUR_MS))
        await settle()
        leader.show(*batches(1))
        await settle()
        library.store.gate.set()
        results = await waiting
        assert [offsets_in(each) for each in results if isinstance(each, ReadResult)] == [[0, 1], [0, 1]]
        assert now_s() < 1
        await leader_watch


@at_once
async def test_polls_of_one_partition_share_one_watch_of_its_leader() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        leader = Leader(shelf.key, None)
        reader = library.reader(leading=leader, recheck_interval_ms=1000)
        polls = [poll(reader, shelf) for _ in range(50)]
        await settle()
        assert leader.waits == 1
        leader.show(*batches(1))
        assert [offsets_in(await each) for each in polls] == [[0, 1]] * 50
        again = poll(reader, shelf, 2)
        await settle()
        assert leader.waits == 2  # the same watch, waiting on
        again.cancel()
        await asyncio.sleep(5)
        assert reader._wakeups.leaders_watched == 0  # let go once nobody came back
        assert reader._wakeups.partitions_waited_for == 0


@at_once
async def test_when_the_leadership_ends_the_poll_goes_on_with_what_others_commit() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        leader = Leader(shelf.key, None)
        reader = library.reader(leading=leader)
        waiting = poll(reader, shelf)
        await settle()
        leader.resign()
        await settle()
        assert not waiting.done()
        before = now_s()
        await shelf.add(1)
        assert offsets_in(await waiting) == [0, 1]
        assert now_s() == before


@at_once
async def test_a_poll_that_began_before_the_leadership_hears_of_it() -> None:
    """With the WAL as durability the metadata says nothing of what the new leader shows."""
    async with Library() as library:
        shelf = await library.shelf()
        leader = Leader(shelf.key, None)
        leader.leads = False
        reader = library.reader(leading=leader, durability=Durability.WAL, recheck_interval_ms=300)
        waiting = poll(reader, shelf)
        await asyncio.sleep(1)
        leader.leads = True
        leader.show(*batches(1))
        before = now_s()
        assert offsets_in(await waiting) == [0, 1]
        assert now_s() - before <= 0.3


@at_once
async def test_a_poll_beyond_the_watermark_ends_with_its_leadership() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        leader = Leader(shelf.key, None)
        leader.show(*batches(2))
        reader = library.reader(leading=leader, durability=Durability.WAL)
        waiting = poll(reader, shelf, 4)
        await asyncio.sleep(1)
        leader.resign()
        with pytest.raises(NotLeader):
            await waiting
        assert now_s() == 1


# What it costs.


@at_once
async def test_a_thousand_idle_polls_on_a_hundred_partitions_ask_little() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 100)
        deaf = Deaf(library.metadata)
        reader = library.reader(metadata=deaf, recheck_interval_ms=1000)  # type: ignore[arg-type]
        requests = [ReadRequest(key=shelf.key, offset=0, max_bytes=1000) for shelf in shelves]
        polls = [
            asyncio.create_task(reader.read_many(requests, max_bytes=1 << 20, max_wait_ms=HOUR_MS)) for _ in range(1000)
        ]
        await settle()
        deaf.looks.clear()
        tasks_before = len(asyncio.all_tasks())
        await asyncio.sleep(60.5)
        assert deaf.looks == [100] * 60, "one call for all of them each interval"
        assert len(asyncio.all_tasks()) <= tasks_before
        assert tasks_before <= 1000 + 5
        await shelves[42].add(1)
        done = await asyncio.gather(*polls)
        assert all(isinstance(each[42], ReadResult) and offsets_in(each[42]) == [0, 1] for each in done)
        assert reader._wakeups.partitions_waited_for == 0
        assert library.entry_lookups == 1, "what a thousand want to know is asked once"


@at_once
async def test_cancelled_polls_leave_nothing_behind() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 10)
        reader = library.reader()
        requests = [ReadRequest(key=shelf.key, offset=0, max_bytes=1000) for shelf in shelves]
        polls = [
            asyncio.create_task(reader.read_many(requests, max_bytes=1 << 20, max_wait_ms=HOUR_MS)) for _ in range(20)
        ]
        await settle()
        assert reader._wakeups.partitions_waited_for == 10
        for each in polls:
            each.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        assert reader._wakeups.partitions_waited_for == 0
        await asyncio.sleep(10)
        assert reader._wakeups._rechecker is None, "nobody waits: nothing is rechecked"


async def some_views(count: int) -> list[PartitionView]:
    async with Library() as library:
        keys = (await library.topic(partitions=count)).partition_keys()
        states = await library.metadata.get_partitions(keys)
        return [PartitionView(state, Question(0, 0), 0) for state in states]


@at_once
async def test_a_crowd_is_rechecked_part_by_part() -> None:
    room, views = WaitingRoom(), await some_views(10)
    waiter = asyncio.get_running_loop().create_future()
    for view in views:
        room.add(view, waiter, 0)
    seen = [*room.next_views(4), *room.next_views(4), *room.next_views(4)]
    assert seen == [*views, *views[:2]]
    assert room.next_views(100) == [*views[2:], *views[:2]]
    for view in views:
        room.remove(view, waiter)
        room.remove(view, waiter)
    assert not room


@at_once
async def test_waiters_are_woken_by_what_they_wait_for_only() -> None:
    room, (view,) = WaitingRoom(), await some_views(1)
    loop = asyncio.get_running_loop()
    near, far = loop.create_future(), loop.create_future()
    room.add(view, near, 5)
    room.add(view, far, 9)
    room.wake(view, 5)
    assert not near.done()
    room.wake(view, 6)
    assert near.result() is True
    assert not far.done()
    room.wake(view, None)
    assert far.result() is True
