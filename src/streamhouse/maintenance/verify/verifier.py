"""Runs a verification: walks the entries of the asked partitions page by page and has each object read and judged.

Writers, retention, compaction and vacuum go on meanwhile, and none of what they do may look like damage:

    a page        is one consistent read, and is judged by itself (entry_pages.py)
    epochs        are read after the page, so the history knows every epoch that the page shows
    objects       are kept by a pin that was taken before the first page (R7)
    bad bytes     are read a second time: the download may have been damaged
    still bad     the entry is looked up again. A finding stands only if the metadata still names the very same bytes;
                  else the entry that has replaced it is verified instead

The run ends at the watermark that it has met first in each partition, so a writer cannot keep it going. An error of a
store ends the whole run: a run that could not look at everything must not look like one that found nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from streamhouse.core.errors import NotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.log.offload import InlineOffload, Offload
from streamhouse.maintenance.kept_pin import KeptPin
from streamhouse.maintenance.verify.entry_pages import can_be_read, check_entry, check_epochs, check_page
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.maintenance.verify.findings import DamagedEntry, Finding, FindingKind
from streamhouse.maintenance.verify.objects import EntryReader
from streamhouse.maintenance.verify.options import VerifyOptions, VerifyProgress, VerifySummary
from streamhouse.maintenance.verify.slice_map import SliceMap
from streamhouse.metadata.contract import Entry, EntryKind, EntryPage, MetadataStore, ScanRange, Topic
from streamhouse.objectstore.contract import ObjectStore

T = TypeVar("T")
Tell = Callable[[Finding | VerifyProgress], None]
"""Called at once for each finding, and for each partition after each page."""
TellDamaged = Callable[[DamagedEntry], None]
"""Called for each entry with findings once it was judged, also for those that are told of once for a whole blob."""

_LOOKS_AT_ENTRY: Final = 4
"""An entry that was replaced each time is given up: nothing replaces entries that fast."""
_REMEMBERED_BLOBS: Final = 10_000  # damaged blobs already told of, 200 bytes each
_TOLD_ONCE: Final = (FindingKind.BLOB_HEADER, FindingKind.NEWER_FORMAT)


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One partition under way."""

    topic: str
    key: PartitionKey
    last: Entry | None = None
    """The last entry of the page before: the next page begins with it, unless it was replaced."""
    replaced: set[tuple[str, int]] = field(default_factory=set)
    """Objects and offsets of entries of this page that had taken the place of others and were verified then."""


class Verifier:
    """One run. ``tell`` gets findings as they are found; nothing but counts is kept of them."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        randomness: Randomness,
        tell: Tell,
        options: VerifyOptions | None = None,
        offload: Offload | None = None,
        tell_damaged: TellDamaged | None = None,
    ) -> None:
        self._options = options or VerifyOptions()
        self.summary = VerifySummary(depth=self._options.depth)
        self._metadata = metadata
        self._randomness = randomness
        self._tell = tell
        self._tell_damaged = tell_damaged
        self._slices = SliceMap()
        self._told_blobs: OrderedDict[str, None] = OrderedDict()
        self._objects = EntryReader(
            store=store, offload=offload or InlineOffload(), options=self._options, summary=self.summary
        )

    async def run(self, topics: Sequence[str] | None = None) -> VerifySummary:
        """Verify these topics, or all. Raises TopicNotFound, StoreError, MetadataError."""
        options = self._options
        pin = KeptPin(self._metadata, self._randomness.uuid(), owner=options.owner, ttl_ms=options.pin_ttl_ms)
        try:
            async with pin:
                asked = await self._topics(topics)
                walks = (_Walk(topic=topic.name, key=key) for topic in asked for key in topic.partition_keys())
                await for_each(walks, self._verify_partition, at_a_time=options.partitions_at_a_time)
        finally:
            self.summary.pin_lapses = pin.lapses
            await self._objects.close()
        return self.summary

    async def _topics(self, names: Sequence[str] | None) -> Sequence[Topic]:
        if names is None:
            return await self._metadata.list_topics()
        return [await self._metadata.get_topic(name) for name in dict.fromkeys(names)]

    # One partition.

    async def _verify_partition(self, walk: _Walk) -> None:
        from_offset, until = 0, None
        while True:
            page = await self._page(walk.key, from_offset)
            if page is None:
                await self._no_partition(walk)
                return
            watermark = page.partition.high_watermark
            until = watermark if until is None else until
            self._report(walk, check_page(page, from_offset))
            await self._verify_page(walk, page)
            next_offset = page.entries[-1].end_offset + 1 if page.entries else watermark
            is_done = not page.more or next_offset >= until
            self._tell(
                VerifyProgress(
                    topic=walk.topic,
                    key=walk.key,
                    next_offset=next_offset,
                    high_watermark=watermark,
                    is_done=is_done,
                )
            )
            if is_done:
                break
            walk.last, from_offset = page.entries[-1], next_offset - 1
        self.summary.partitions += 1
        if page.more:
            await self._check_tail(walk, watermark)

    async def _check_tail(self, walk: _Walk, watermark: int) -> None:
        """The log has grown since the walk began: judge the present tail without reading what is new there."""
        from_offset = max(watermark - 1, 0)
        page = await self._page(walk.key, from_offset)
        if page is not None:
            self._report(walk, check_page(page, from_offset))

    async def _page(self, key: PartitionKey, from_offset: int) -> EntryPage | None:
        pages = await self._metadata.scan_entries(
            [ScanRange(key=key, from_offset=from_offset)], limit=self._options.page_entries
        )
        return pages[0] if pages else None

    async def _no_partition(self, walk: _Walk) -> None:
        key = walk.key
        try:
            topic = await self._metadata.get_topic_by_id(key.topic_id)
        except NotFound:
            self.summary.gone_partitions += 1
            return
        if await self._metadata.get_partitions([key]):
            return  # it is there after all: a partition never leaves a topic and comes back
        problem = f"the topic has {topic.partition_count} partitions, and the store has no row of this one"
        finding = Finding(kind=FindingKind.MISSING_PARTITION, key=key, base_offset=0, end_offset=-1, problem=problem)
        self._report(walk, [finding])

    async def _verify_page(self, walk: _Walk, page: EntryPage) -> None:
        entries = [entry for entry in page.entries if entry != walk.last]
        history = await self._metadata.epoch_history(walk.key)
        epochs = EpochLine(history)
        found = list(check_epochs(page.partition, entries, epochs))
        if found and not await self._metadata.get_partitions([walk.key]):
            return  # deleted since, and its history with it; the next page will say so
        self._report(walk, found)
        walk.replaced.clear()

        async def verify(entry: Entry) -> None:
            mine = [finding for finding in found if finding.end_offset == entry.end_offset]
            await self._verify_entry(walk, entry, epochs, mine)

        await for_each(entries, verify, at_a_time=self._options.entries_at_a_time)

    # One entry.

    async def _verify_entry(self, walk: _Walk, entry: Entry, epochs: EpochLine, found: Sequence[Finding]) -> None:
        """``found``: what was told of the entry before."""
        self.summary.entries += 1
        for _ in range(_LOOKS_AT_ENTRY):
            own = list(check_entry(walk.key, entry))
            if entry.kind is EntryKind.WAL and can_be_read(own):
                own += filter(None, [self._slices.add(walk.key, entry)])
            self._report(walk, own)
            findings = await self._read(walk.key, entry, epochs) if can_be_read(own) else []
            present = await present_entry(self._metadata, walk.key, entry) if findings else entry
            if present == entry:
                self._report(walk, findings)
                self._report_damaged(walk, entry, (*found, *own, *findings))
                return
            found = ()
            self.summary.changed_entries += 1
            if present is None or (present.object_key, present.base_offset) in walk.replaced:
                return
            walk.replaced.add((present.object_key, present.base_offset))
            entry, epochs = present, EpochLine(await self._metadata.epoch_history(walk.key))
        self.summary.unsettled_entries += 1

    async def _read(self, key: PartitionKey, entry: Entry, epochs: EpochLine) -> list[Finding]:
        """Findings of two reads in a row; those of the second."""
        if not await self._objects.check(key, entry, epochs):
            return []
        findings = await self._objects.check(key, entry, epochs, again=True)
        self.summary.repeated_reads += not findings
        return findings

    # What is told.

    def _report(self, walk: _Walk, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding.kind in _TOLD_ONCE and not self._is_news(finding.object_key):
                continue
            self.summary.findings[finding.kind] += 1
            self._tell(replace(finding, topic=walk.topic))

    def _report_damaged(self, walk: _Walk, entry: Entry, findings: tuple[Finding, ...]) -> None:
        if findings and self._tell_damaged is not None:
            self._tell_damaged(DamagedEntry(topic=walk.topic, key=walk.key, entry=entry, findings=findings))

    def _is_news(self, object_key: str) -> bool:
        """A blob has up to 50,000 slices: its header is told of once."""
        is_news = object_key not in self._told_blobs
        self._told_blobs[object_key] = None
        if len(self._told_blobs) > _REMEMBERED_BLOBS:
            self._told_blobs.popitem(last=False)
        return is_news


async def present_entry(metadata: MetadataStore, key: PartitionKey, entry: Entry) -> Entry | None:
    """The entry that stands there now. None when these offsets are no longer part of the log."""
    try:
        found = (await metadata.find_entry(key, entry.end_offset)).entry
    except NotFound:
        return None
    return found if found is not None and found.base_offset <= entry.end_offset else None


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_a_time: int) -> None:
    """Run ``work`` for every item, some at a time. The first error ends the others and is raised."""
    rest = iter(items)

    async def worker() -> None:
        for item in rest:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_a_time):
                group.create_task(worker())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
