"""Pages of the index in memory, and holes in it, which are looked at again and never stepped over."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import Library, at_once, offsets_in, run_virtually

from streamhouse.core.errors import MetadataError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.log.reader.entries import EntryCache
from streamhouse.metadata.contract import SEGMENT_V1, Entry, EntryKind, EntryPage, PartitionState

KEYS = [PartitionKey(TopicId(uuid.UUID(int=7)), number) for number in range(2)]


def entry(base: int, end: int, generation: int = 0) -> Entry:
    return Entry(
        base_offset=base,
        end_offset=end,
        kind=EntryKind.SEGMENT,
        object_key=f"objects/{base}-{end}-{generation}",
        byte_offset=0,
        byte_length=1,
        record_count=1,
        encoding=SEGMENT_V1,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        epoch=1,
        created_at_ms=0,
    )


def test_pages_answer_for_the_offsets_they_cover() -> None:
    cache = EntryCache(100)
    cache.add(KEYS[0], [entry(0, 9), entry(10, 19), entry(20, 29)], read_at_ms=0)
    cache.add(KEYS[0], [entry(50, 59)], read_at_ms=0)
    found = [cache.find(KEYS[0], offset, now_ms=0) for offset in (0, 9, 10, 29, 30, 49, 50, 60)]
    assert [each and each.base_offset for each in found] == [0, 0, 10, 20, None, None, 50, None]
    assert cache.find(KEYS[1], 0, now_ms=0) is None
    assert [cache.reaches(KEYS[0], offset) for offset in (29, 30, 60)] == [False, True, True]
    cache.forget(KEYS[0])
    assert cache.find(KEYS[0], 0, now_ms=0) is None
    assert len(cache) == 0


def test_what_comes_after_a_gap_is_not_taken_for_covered() -> None:
    cache = EntryCache(100)
    cache.add(KEYS[0], [entry(0, 9), entry(20, 29)], read_at_ms=0)
    assert cache.find(KEYS[0], 12, now_ms=0) is None
    assert cache.find(KEYS[0], 25, now_ms=0) is None


def test_r18_a_page_is_not_used_for_longer_than_a_minute() -> None:
    """Else a value could be read that was compacted away, while the tombstone behind it is gone already."""
    cache = EntryCache(100)
    cache.add(KEYS[0], [entry(0, 9)], read_at_ms=1_000)
    assert cache.find(KEYS[0], 5, now_ms=61_000) is not None
    assert cache.find(KEYS[0], 5, now_ms=61_001) is None
    assert len(cache) == 0


def test_a_newer_page_replaces_what_it_overlaps() -> None:
    cache = EntryCache(100)
    cache.add(KEYS[0], [entry(0, 9), entry(10, 19)], read_at_ms=0)
    cache.add(KEYS[0], [entry(0, 19, generation=1), entry(20, 29)], read_at_ms=0)
    found = cache.find(KEYS[0], 12, now_ms=0)
    assert found is not None
    assert found.object_key == "objects/0-19-1"
    assert len(cache) == 2


@settings(max_examples=60, deadline=None)
@given(
    pages=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(1, 5)), max_size=40),
    max_entries=st.integers(1, 30),
)
def test_the_cache_keeps_its_bound_and_never_lies(pages: list[tuple[int, int, int]], max_entries: int) -> None:
    cache = EntryCache(max_entries)
    for which, start, count in pages:
        made = [entry(10 * number, 10 * number + 9) for number in range(start, start + count)]
        cache.add(KEYS[which], made, read_at_ms=0)
        assert len(cache) <= max_entries
        for offset in range(0, 460, 7):
            found = cache.find(KEYS[which], offset, now_ms=0)
            assert found is None or found.base_offset <= offset <= found.end_offset
    assert len(cache) == sum(len(page.entries) for page in cache._pages)


class Holey:
    """Shows the index without one of its entries, for some time."""

    def __init__(self, inner: Any, *, times: int) -> None:
        self._inner = inner
        self.times_left = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def scan_entries(self, ranges: Any, *, limit: int) -> list[EntryPage]:
        pages: list[EntryPage] = await self._inner.scan_entries(ranges, limit=limit)
        if self.times_left <= 0:
            return pages
        self.times_left -= 1
        return [
            EntryPage(
                partition=page.partition,
                entries=tuple(each for each in page.entries if each.base_offset != 4),
                more=False,
            )
            for page in pages
        ]


@at_once
async def test_r17_a_hole_in_the_index_is_looked_at_again() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for _ in range(3):
            await shelf.add(2)
        reader = library.reader(metadata=Holey(library.metadata, times=2))
        assert offsets_in(await reader.read(shelf.key, 4, max_bytes=1)) == [4, 5]


@at_once
async def test_r17_a_hole_that_stays_is_an_error_and_not_a_step() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for _ in range(3):
            await shelf.add(2)
        reader = library.reader(metadata=Holey(library.metadata, times=1000))
        result = await reader.read(shelf.key, 0, max_bytes=150)
        assert offsets_in(result) == [0, 1]
        with pytest.raises(MetadataError, match="no entry covers offset 4"):
            await shelf.read_all(reader)


@at_once
async def test_readers_at_several_places_of_one_partition_keep_their_pages() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for _ in range(60):
            await shelf.add(1)
        reader = library.reader()
        places = [0, 40, 80]
        for _ in range(18):
            places = [(await reader.read(shelf.key, offset, max_bytes=1)).next_offset for offset in places]
        assert places == [36, 76, 116]
        # 38 reads each of whole entries: a first page and a long one for each of the three, not one for each read.
        assert library.entry_lookups <= 6


class Forgetful:
    """A metadata store that loses all commits of a partition when it is told to; another leader has begun since."""

    def __init__(self, inner: Any, before: PartitionKey, after: PartitionKey) -> None:
        self._inner = inner
        self._before = before
        self._after = after
        self.lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_partitions(self, keys: Any) -> list[PartitionState]:
        return [self._shown(found) for found in await self._inner.get_partitions([self._asked(key) for key in keys])]

    async def scan_entries(self, ranges: Any, *, limit: int) -> list[EntryPage]:
        asked = [replace(each, key=self._asked(each.key)) for each in ranges]
        found = await self._inner.scan_entries(asked, limit=limit)
        return [replace(page, partition=self._shown(page.partition)) for page in found]

    def _asked(self, key: PartitionKey) -> PartitionKey:
        return self._after if self.lost and key == self._before else key

    def _shown(self, found: PartitionState) -> PartitionState:
        return replace(found, key=self._before, leader_epoch=found.leader_epoch + self.lost)


class LaterLeader:
    """This agent, which leads the partition once it has an epoch."""

    epoch: int | None = None
    visible_end = high_watermark = 7

    def partition(self, key: PartitionKey) -> Any:
        return None if self.epoch is None else self

    def buffered_from(self, offset: int) -> Any:
        return ()

    async def wait_visible(self, key: PartitionKey, beyond_offset: int) -> None:
        raise AssertionError("no read of this test waits")


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_r23_what_a_lost_commit_had_listed_is_not_read_after_a_take_over(leads: bool) -> None:
    """Other records have its offsets now, and their batches begin elsewhere."""
    run_virtually(_reads_what_is_there_now(leads))


async def _reads_what_is_there_now(leads: bool) -> None:
    async with Library() as library:
        old, new = await library.shelf("old"), await library.shelf("new")
        for shelf, sizes in ((old, (1, 3, 3)), (new, (1, 2, 4))):
            for records in sizes:
                await shelf.add(1, kind="blob", records=records)
        metadata = Forgetful(library.metadata, old.key, new.key)
        leader = LaterLeader()
        reader = library.reader(metadata=metadata, leading=leader)
        assert offsets_in(await reader.read(old.key, 0, max_bytes=10_000)) == [0, 1, 2, 3, 4, 5, 6]
        metadata.lost = True
        (state,) = await metadata.get_partitions([old.key])
        leader.epoch = state.leader_epoch if leads else None
        if not leads:
            await reader.end_offsets(old.key)
        assert offsets_in(await reader.read(old.key, 3, max_bytes=10_000)) == [3, 4, 5, 6]
