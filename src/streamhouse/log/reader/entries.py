"""The sparse index for the reader: a few pages in memory, the rest in the metadata store.

A sequential reader that reaches the end of its page gets a long page; other lookups get a short one. Pages may be out
of date: compaction replaces entries by others that cover the same offsets, and the objects of the old ones stay for a
grace period. If an object is gone, the reader forgets the partition's pages and looks again (R7). It also forgets them
when another leadership begins: if the metadata store had lost commits, the offsets belong to other records now (R23).

No page is used for longer than a minute. With an older one a reader could see a value that key compaction has dropped
since, and then miss the tombstone behind it, which goes after ``delete.retention.ms``: a deleted key would come back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataError, PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.sharing import Batched
from streamhouse.log.reader.views import Views
from streamhouse.metadata.contract import Entry, EntryPage, MetadataStore, ScanRange

_FIRST_PAGE: Final = 4  # a single lookup: the entry itself, and some more in case the reader goes on
_NEXT_PAGE: Final = 64
_PAGES_PER_PARTITION: Final = 8  # so many readers at different places of one partition do not disturb each other
_HOLE_ATTEMPTS: Final = 3
_MAX_PAGE_AGE_MS: Final = 60_000
_RANGES_PER_CALL: Final = 200

Place = tuple[PartitionKey, int]


class EntryCache:
    """Pages of consecutive entries. Pure. The least recently used page goes first."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._pages: OrderedDict[_Page, None] = OrderedDict()
        self._by_key: dict[PartitionKey, list[_Page]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, key: PartitionKey, offset: int, *, now_ms: int) -> Entry | None:
        for page in self._by_key.get(key, ()):
            if page.base_offset <= offset <= page.end_offset:
                if now_ms - page.read_at_ms > _MAX_PAGE_AGE_MS:
                    self._remove(page)
                    return None
                self._pages.move_to_end(page)
                return page.find(offset)
        return None

    def reaches(self, key: PartitionKey, offset: int) -> bool:
        """Whether a page ends right before ``offset``: the sign of a sequential reader."""
        return any(page.end_offset + 1 == offset for page in self._by_key.get(key, ()))

    def add(self, key: PartitionKey, entries: Sequence[Entry], *, read_at_ms: int) -> None:
        """Add entries in order. Those after a gap are left out and looked up when they are needed."""
        page = _Page(key, _unbroken(entries), read_at_ms)
        pages = self._by_key.setdefault(key, [])
        for other in [each for each in pages if each.overlaps(page)]:
            self._remove(other)
        if len(pages) >= _PAGES_PER_PARTITION:
            self._remove(pages[0])
        self._by_key.setdefault(key, pages).append(page)
        self._pages[page] = None
        self._count += len(page.entries)
        while self._count > self._max_entries:
            self._remove(next(iter(self._pages)))

    def forget(self, key: PartitionKey) -> None:
        for page in list(self._by_key.get(key, ())):
            self._remove(page)

    def _remove(self, page: _Page) -> None:
        del self._pages[page]
        self._count -= len(page.entries)
        pages = self._by_key[page.key]
        pages.remove(page)
        if not pages:
            del self._by_key[page.key]


class _Page:
    __slots__ = ("base_offset", "end_offset", "entries", "key", "read_at_ms")

    def __init__(self, key: PartitionKey, entries: Sequence[Entry], read_at_ms: int) -> None:
        self.key = key
        self.entries = entries
        self.read_at_ms = read_at_ms
        self.base_offset = entries[0].base_offset
        self.end_offset = entries[-1].end_offset

    def find(self, offset: int) -> Entry:
        return self.entries[bisect_left(self.entries, offset, key=_end_offset)]

    def overlaps(self, other: _Page) -> bool:
        return self.base_offset <= other.end_offset and other.base_offset <= self.end_offset


class EntryFinder:
    def __init__(self, *, metadata: MetadataStore, views: Views, clock: Clock, options: ReaderOptions) -> None:
        self._metadata = metadata
        self._clock = clock
        self._views = views
        self._cache = EntryCache(options.max_cached_entries)
        self._first_pages: Batched[Place, EntryPage | None] = Batched(self._scan_first, max_keys=_RANGES_PER_CALL)
        self._next_pages: Batched[Place, EntryPage | None] = Batched(self._scan_next, max_keys=_RANGES_PER_CALL)

    async def find(self, key: PartitionKey, offset: int) -> Entry | None:
        """The entry that covers ``offset``; None if a fresh read shows that the offset is outside of the log.

        Raises PartitionNotFound, MetadataError.
        """
        found = self._cache.find(key, offset, now_ms=self._clock.boot_ms())
        if found is not None:
            return found
        pages = self._next_pages if self._cache.reaches(key, offset) else self._first_pages
        for attempts_left in reversed(range(_HOLE_ATTEMPTS)):
            page = await pages.get((key, offset))
            if page is None:
                raise _no_partition(key)
            first = page.entries[0] if page.entries else None
            if first is not None and first.base_offset <= offset:
                return first
            log_start, watermark = page.partition.log_start_offset, page.partition.high_watermark
            if not log_start <= offset < watermark:
                return None
            # R17: a store that moves entries one by one shows a hole for a moment. Look again, never step over it.
            if not attempts_left:
                raise MetadataError(
                    f"{key}: no entry covers offset {offset}, though its log holds {log_start} to {watermark - 1}",
                    hint="the metadata store has lost entries: restore it from a backup",
                )
        raise AssertionError("unreachable")

    async def page(self, key: PartitionKey, offset: int) -> EntryPage:
        """A long page from ``offset`` on, fresh. Raises PartitionNotFound, MetadataError."""
        page = await self._next_pages.get((key, offset))
        if page is None:
            raise _no_partition(key)
        return page

    def forget(self, key: PartitionKey) -> None:
        self._cache.forget(key)

    async def close(self) -> None:
        await self._first_pages.close()
        await self._next_pages.close()

    async def _scan_first(self, places: Sequence[Place]) -> Mapping[Place, EntryPage | None]:
        return await self._scan(places, _FIRST_PAGE)

    async def _scan_next(self, places: Sequence[Place]) -> Mapping[Place, EntryPage | None]:
        return await self._scan(places, _NEXT_PAGE)

    async def _scan(self, places: Sequence[Place], limit: int) -> Mapping[Place, EntryPage | None]:
        found: dict[Place, EntryPage | None] = dict.fromkeys(places)
        for offsets in _one_per_partition(places):
            asked, asked_at_ms = self._views.question(), self._clock.boot_ms()
            ranges = [ScanRange(key=key, from_offset=offset) for key, offset in offsets.items()]
            for page in await self._metadata.scan_entries(ranges, limit=limit):
                key = page.partition.key
                found[key, offsets[key]] = page
                view = self._views.learn(page.partition, asked)
                if page.entries and page.partition.leader_epoch == view.state.leader_epoch:
                    self._cache.add(key, page.entries, read_at_ms=asked_at_ms)
        return found


def _one_per_partition(places: Sequence[Place]) -> list[dict[PartitionKey, int]]:
    """The answer names only partitions, so one call asks for one place of each."""
    rounds: list[dict[PartitionKey, int]] = []
    depth: dict[PartitionKey, int] = {}
    for key, offset in places:
        level = depth.get(key, 0)
        depth[key] = level + 1
        if level == len(rounds):
            rounds.append({})
        rounds[level][key] = offset
    return rounds


def _unbroken(entries: Sequence[Entry]) -> Sequence[Entry]:
    for at in range(1, len(entries)):
        if entries[at].base_offset != entries[at - 1].end_offset + 1:
            return entries[:at]
    return entries


def _no_partition(key: PartitionKey) -> PartitionNotFound:
    return PartitionNotFound(f"there is no partition {key}", hint="its topic was deleted, or never was")


def _end_offset(entry: Entry) -> int:
    return entry.end_offset
