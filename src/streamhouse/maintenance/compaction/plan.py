"""Decides which entries of a partition are rewritten into one object. Pure: entries in, items out.

    cursor
      ▼
    ┌──┬──┬──┬────────────┬──┬──┬──┬──┬──┐        a run: consecutive small entries
    │s │s │s │   large    │s │s │s │s │s │…       ends at a large entry, when it is full, or at the end of the log
    └──┴──┴──┴────────────┴──┴──┴──┴──┴──┘
    ╰─ run ──╯            ╰─── run ──────╯

The look begins at the partition's compaction cursor: what lies below it was compacted. An entry is left as it is when
it is large enough to be worth a request of its own, when it is the result of a compaction, or when it cannot be copied
batch by batch. So every record is rewritten once at most.

A full run is always worth an object. A shorter one is worth it once it has enough entries, or once its oldest entry is
old. Neither is worth it if all its entries lie in one object already.

The store moves the cursor only when a compaction begins at it or below it, so a large entry at the cursor holds it
there. The plan looks past such an entry and says up to which offset nothing is left to do (``settled_offset``). A
caller that remembers it does not look at the same entries again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from streamhouse.core.errors import ConfigError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_SEGMENT_BYTES, MIB
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, Entry, EntryKind, PartitionState

MAX_SOURCES: Final = 5_000
"""Entries that one compaction may replace. Commits to the partition wait while it is applied, some 100 ms for these."""
_MAX_OBJECT_BYTES: Final = MAX_SEGMENT_BYTES // 2
"""Half of what a segment may have: blocks that do not shrink, the index and the footer come on top of the estimate."""
_ENCODINGS: Final = {
    EntryKind.WAL: KAFKA_BATCHES,
    EntryKind.SEGMENT: SEGMENT_V1,
}


class Worth(StrEnum):
    """Why a run is worth an object of its own."""

    FULL = "full"
    """It has the size of an object, or the most entries that one compaction may replace."""
    MANY = "many"
    OLD = "old"
    KEYS = "keys"
    """Older records of its keys are to go (key_compaction/)."""
    DAMAGED = "damaged"
    """A single entry whose object is damaged beside its records (repair/)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    target_object_bytes: int = 128 * MIB
    """A run of this size is full."""
    max_object_bytes: int = 256 * MIB
    """No run is larger."""
    large_entry_bytes: int = 32 * MIB
    """An entry of this size or more is left as it is."""
    min_entries: int = 500
    """A run that is not full is worth an object from this many entries on."""
    max_age_ms: int = 3_600_000
    """A run that is not full is worth an object once its oldest entry was committed longer ago than this."""
    max_sources: int = 2_000
    """Entries of one run: they are named in one record of the metadata store."""
    max_items: int = 16
    """Items of one plan: what follows them is planned in the next pass."""

    def __post_init__(self) -> None:
        sizes = (1, self.large_entry_bytes, self.target_object_bytes, self.max_object_bytes, _MAX_OBJECT_BYTES)
        if list(sizes) != sorted(sizes):
            raise ConfigError(
                f"compaction into objects of {self.target_object_bytes} bytes, at most {self.max_object_bytes}, with "
                f"entries from {self.large_entry_bytes} bytes on left as they are",
                hint=f"let large ≤ target ≤ largest ≤ {_MAX_OBJECT_BYTES}",
            )
        if not 2 <= self.max_sources <= MAX_SOURCES:
            raise ConfigError(
                f"compaction of up to {self.max_sources} entries into one object",
                hint=f"let it be 2 to {MAX_SOURCES}",
            )
        if not 2 <= self.min_entries <= self.max_sources:
            raise ConfigError(
                f"compaction from {self.min_entries} small entries in a row on (--min-entries): one entry alone gains"
                f" nothing, and one object takes the place of {self.max_sources:,} at most",
                hint=f"give 2 to {self.max_sources}",
            )
        if self.max_age_ms < 0 or self.max_items < 1:
            raise ConfigError(f"compaction after {self.max_age_ms} ms, {self.max_items} items in a pass")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionItem:
    """Consecutive entries that are to become one object."""

    key: PartitionKey
    sources: tuple[Entry, ...]
    worth: Worth

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.sources[-1].end_offset

    @property
    def record_count(self) -> int:
        return sum(source.record_count for source in self.sources)

    @property
    def expected_bytes(self) -> int:
        """The bytes that are read. The object has about as many, or fewer if LZ4 shrinks it."""
        return sum(source.byte_length for source in self.sources)

    @property
    def objects_saved(self) -> int:
        """By how many the objects that this partition refers to become fewer. Others may refer to a shared blob."""
        return len({source.object_key for source in self.sources}) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    key: PartitionKey
    items: tuple[CompactionItem, ...]
    waiting_entries: int
    """Small entries that are not worth an object yet."""
    settled_offset: int
    """Nothing below this offset will be planned again under the same rules. It never lies below the cursor."""


def plan_partition(
    partition: PartitionState,
    entries: Iterable[Entry],
    *,
    rules: CompactionRules,
    now_ms: int,
    from_offset: int = 0,
    more: bool = False,
    avoid: Collection[int] = (),
) -> PartitionPlan:
    """``entries`` are those from the cursor on, in order; ``now_ms`` is the time of the store that stamped them.

    ``from_offset``: an earlier plan's ``settled_offset``. ``more``: the log has further entries that were not read, so
    the last run may be cut short and is left for the next plan. ``avoid``: base offsets of entries that cannot be read
    now.
    """
    planner = _Planner(partition, rules, now_ms, max(partition.compaction_cursor, from_offset))
    for entry in entries:
        if entry.base_offset < planner.start_offset:
            continue
        if entry.end_offset >= partition.high_watermark or len(planner.items) == rules.max_items:
            break
        planner.take(entry, avoided=entry.base_offset in avoid)
    return planner.finish(more=more)


class _Planner:
    def __init__(self, partition: PartitionState, rules: CompactionRules, now_ms: int, start_offset: int) -> None:
        self.start_offset = start_offset
        self.items: list[CompactionItem] = []
        self._partition = partition
        self._rules = rules
        self._now_ms = now_ms
        self._run: list[Entry] = []
        self._run_bytes = 0
        self._next_offset = start_offset
        self._waiting = 0
        self._unsettled: int | None = None
        """The first offset that must be looked at again; None while there is none."""

    def take(self, entry: Entry, *, avoided: bool) -> None:
        if self._run and entry.base_offset != self._next_offset:
            # Pages are read one after the other: between two of them retention or a compaction may have moved entries.
            self._look_again_from(self._run[0].base_offset)
            self._close()
        self._next_offset = entry.end_offset + 1
        if avoided or not self._is_source(entry):
            self._close()
            if avoided:
                self._look_again_from(entry.base_offset)
            return
        if self._run_bytes + entry.byte_length > self._rules.max_object_bytes:
            self._close(full=True)
        self._run.append(entry)
        self._run_bytes += entry.byte_length
        if self._run_bytes >= self._rules.target_object_bytes or len(self._run) == self._rules.max_sources:
            self._close(full=True)

    def finish(self, *, more: bool) -> PartitionPlan:
        if self._run:
            self._look_again_from(self._run[0].base_offset)  # the log goes on behind it
        if not more and len(self.items) < self._rules.max_items:
            self._close(at_end=True)
        return PartitionPlan(
            key=self._partition.key,
            items=tuple(self.items),
            waiting_entries=self._waiting,
            settled_offset=self._next_offset if self._unsettled is None else self._unsettled,
        )

    def _is_source(self, entry: Entry) -> bool:
        return (
            _ENCODINGS.get(entry.kind) == entry.encoding
            and entry.byte_length < self._rules.large_entry_bytes
            and entry.record_count == entry.end_offset - entry.base_offset + 1  # key compaction left no holes (R18)
        )

    def _close(self, *, full: bool = False, at_end: bool = False) -> None:
        """End the run: plan it, let it wait for its age, or leave it for good."""
        run, self._run, self._run_bytes = self._run, [], 0
        if len({entry.object_key for entry in run}) < 2:
            self._waiting += len(run) if at_end else 0
            return
        worth = self._worth(run, full=full)
        self._look_again_from(run[0].base_offset)
        if worth is None:
            self._waiting += len(run)
        else:
            self.items.append(CompactionItem(key=self._partition.key, sources=tuple(run), worth=worth))

    def _worth(self, run: list[Entry], *, full: bool) -> Worth | None:
        if full:
            return Worth.FULL
        if len(run) >= self._rules.min_entries:
            return Worth.MANY
        oldest_ms = min(entry.created_at_ms for entry in run)
        return Worth.OLD if self._now_ms - oldest_ms > self._rules.max_age_ms else None

    def _look_again_from(self, offset: int) -> None:
        if self._unsettled is None or offset < self._unsettled:
            self._unsettled = offset
