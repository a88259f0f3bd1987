"""Reads the entries of partitions, finds out what is clean, and has them planned. Writes nothing.

**What is clean** is written in the log itself. Key compaction writes sparse segments, and nothing else does. It commits
the entries of a partition in the order of their offsets, each against a map of all keys up to its own end at least. So
when a sparse entry is committed, every key occurs once at most below its end, and no later write below it can change
that: records are only ever dropped there. The clean end is therefore the end of the *highest* sparse entry.

The partition's compaction cursor cannot say this. The compaction of small objects moves it too, over records whose keys
were never compared, when a topic's policy was ``delete`` before; and it never goes back.

An entry with fewer records than offsets is sparse for certain. Of one without holes, the segment's footer tells. Mostly
the highest COMPACTED entry is the one that is looked for, and one footer is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import (
    CompactionConflict,
    CorruptData,
    LimitExceeded,
    ObjectNotFound,
    ReadPastEnd,
    UnsupportedVersion,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.topic_config import TopicConfig
from streamhouse.formats.segment_v1_reader import RangedReader
from streamhouse.maintenance.compaction.sources import check_footer, damaged
from streamhouse.maintenance.key_compaction.plan import KeyPlan, KeyRules, plan_keys
from streamhouse.metadata.contract import Entry, EntryKind, MetadataStore, PartitionState, ScanRange
from streamhouse.objectstore.contract import ObjectStore

_PAGE_ENTRIES: Final = 1_000
_MAX_ENTRIES_READ: Final = 50_000
"""Entries of one partition in one plan, about 35 MB. Clean ones have the size of an object: 6 TB of them."""
_MAX_KNOWN_FOOTERS: Final = 10_000
"""Segments of which it is remembered whether they are sparse, some 300 bytes each."""
_MAX_QUIET: Final = 100_000
"""Partitions whose watermark is remembered, some 100 bytes each. Others are looked at in every pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedKeys:
    plan: KeyPlan
    more: bool
    """True when the log has entries that the plan did not see."""


class KeyPlanner:
    def __init__(self, *, metadata: MetadataStore, store: ObjectStore, rules: KeyRules) -> None:
        self._metadata = metadata
        self._store = store
        self._rules = rules
        self._sparse: dict[str, bool] = {}
        """Whether a segment is sparse, for those whose footer was read. An object never changes."""
        self._quiet: dict[PartitionKey, int] = {}
        """The watermark of partitions without anything dirty: nothing is to be found until it moves."""

    async def plan(self, state: PartitionState, config: TopicConfig, *, now_ms: int) -> PlannedKeys | None:
        """None when the partition is gone, or has nothing dirty. ``now_ms`` is the store's time.

        Raises CompactionConflict when the entries change meanwhile; DamagedObject, LimitExceeded, StoreError,
        MetadataError.
        """
        key = state.key
        if self._quiet.get(key) == state.high_watermark:
            return None
        entries, state, more = await self._entries(state)
        clean_end = await self._clean_end(key, entries)
        plan = plan_keys(state, entries, clean_end=clean_end, config=config, rules=self._rules, now_ms=now_ms)
        if more and clean_end > entries[-1].end_offset:
            raise LimitExceeded(
                f"{key}: {len(entries)} entries are clean, and no more are read at a time",
                hint="raise the size of compacted objects",
            )
        if not more and clean_end >= (entries[-1].base_offset if entries else 0):
            self._remember_quiet(key, state.high_watermark)
            return None
        return PlannedKeys(plan=plan, more=more)

    async def _entries(self, state: PartitionState) -> tuple[list[Entry], PartitionState, bool]:
        entries: list[Entry] = []
        more = True
        while more and len(entries) < _MAX_ENTRIES_READ:
            start = entries[-1].end_offset + 1 if entries else state.log_start_offset
            pages = await self._metadata.scan_entries(
                [ScanRange(key=state.key, from_offset=start)], limit=_PAGE_ENTRIES
            )
            if not pages:
                return [], state, False
            page = pages[0]
            if entries and page.entries and page.entries[0].base_offset != start:
                raise CompactionConflict(f"the entries of {state.key} changed while they were read")
            entries += page.entries
            state, more = page.partition, page.more
        return entries, state, more

    async def _clean_end(self, key: PartitionKey, entries: Sequence[Entry]) -> int:
        for entry in reversed(entries):
            if entry.kind is EntryKind.COMPACTED and await self._is_sparse(key, entry):
                return entry.end_offset + 1
        return 0

    async def _is_sparse(self, key: PartitionKey, entry: Entry) -> bool:
        if entry.record_count < entry.end_offset - entry.base_offset + 1:
            return True
        known = self._sparse.get(entry.object_key)
        if known is None:
            known = await self._read_footer(key, entry)
            if len(self._sparse) >= _MAX_KNOWN_FOOTERS:
                del self._sparse[next(iter(self._sparse))]
            self._sparse[entry.object_key] = known
        return known

    async def _read_footer(self, key: PartitionKey, entry: Entry) -> bool:
        reader = RangedReader(entry.byte_length)
        try:
            while (need := reader.need()) is not None:
                reader.feed(await self._store.get_range(entry.object_key, need.offset, need.length))
            check_footer(reader.footer, key, entry)
        except ObjectNotFound as error:
            raise damaged(key, entry, error.message, missing=True) from error
        except (CorruptData, ReadPastEnd, UnsupportedVersion) as error:
            raise damaged(key, entry, error.message) from error
        return reader.footer.sparse

    def _remember_quiet(self, key: PartitionKey, high_watermark: int) -> None:
        self._quiet.pop(key, None)
        if len(self._quiet) >= _MAX_QUIET:
            del self._quiet[next(iter(self._quiet))]
        self._quiet[key] = high_watermark
