"""Plans the retention of one partition: walks over its oldest entries and says how far the log start may go. Pure.

The walk takes the entries page by page, oldest first, and stops at the first one that is not due. It keeps counters and
no entries, so a log of any length takes the same memory.

The plan is safe however late it is applied. Its new log start is always the end + 1 of an entry that the walk has
seen and judged; never the watermark, which moves on while a plan is made. The log start only rises, so a plan that
others have overtaken changes nothing. Compaction may replace entries meanwhile: offsets stay, what was due stays due,
and the store aborts a compaction that reaches below the new log start (R17).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.retention.holds import ReaderPlace
from streamhouse.maintenance.retention.rule import RetentionRule
from streamhouse.metadata.contract import Entry, EntryPage


class RetentionReason(StrEnum):
    SIZE = "size"
    """More bytes stay than ``retention.bytes`` asks for. Like Kafka, retention gives this reason first."""
    TIME = "time"
    """The records are older than ``retention.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySum:
    entries: int = 0
    records: int = 0
    """The records from the log start on: those that could be read."""
    size_bytes: int = 0

    def __add__(self, other: EntrySum) -> EntrySum:
        return EntrySum(
            entries=self.entries + other.entries,
            records=self.records + other.records,
            size_bytes=self.size_bytes + other.size_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """Entries that are due and stay, because a reader needs them."""

    slowest: ReaderPlace
    amount: EntrySum
    complete: bool
    """False: at least ``amount`` is held back. The walk ends with the page in which the held entries begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionItem:
    """The work for one partition: raise its log start to ``new_log_start_offset``."""

    key: PartitionKey
    topic: str
    topic_version: int
    """The version of the topic whose configs were applied. The plan is void when it has changed."""
    log_start_offset: int
    """As it was when the plan was made."""
    new_log_start_offset: int
    by_size: EntrySum
    by_time: EntrySum
    held: HeldBack | None = None

    @property
    def freed(self) -> EntrySum:
        return self.by_size + self.by_time

    @property
    def moves(self) -> bool:
        """False if all that is due is held back."""
        return self.new_log_start_offset > self.log_start_offset

    @property
    def reasons(self) -> tuple[RetentionReason, ...]:
        found = ((RetentionReason.SIZE, self.by_size), (RetentionReason.TIME, self.by_time))
        return tuple(reason for reason, amount in found if amount.entries)


class RetentionWalk:
    """Judges the entries of one partition, oldest first."""

    def __init__(
        self, rule: RetentionRule, *, now_ms: int, size_cut: int = 0, slowest: ReaderPlace | None = None
    ) -> None:
        """``size_cut``: entries wholly below it are due by size. ``slowest``: the slowest reader, if it is to be waited
        for."""
        self.next_offset = 0
        """Where the next page begins."""
        self._rule = rule
        self._now_ms = now_ms
        self._size_cut = size_cut
        self._slowest = slowest
        self._log_start: int | None = None
        self._new_log_start = 0
        self._by_reason = {RetentionReason.SIZE: EntrySum(), RetentionReason.TIME: EntrySum()}
        self._held: EntrySum | None = None
        self._held_complete = False

    def take(self, page: EntryPage) -> bool:
        """Judge the entries of the page. Returns True if the walk needs the next page."""
        if self._log_start is None:
            self._log_start = self._new_log_start = self.next_offset = page.partition.log_start_offset
        for entry in page.entries:
            reason = self._reason(entry)
            if reason is None:
                self._held_complete = True
                return False
            self._count(entry, reason)
        self._held_complete = not page.more
        # What a reader holds is read again by every pass, so it is not counted to its end.
        return page.more and self._held is None

    def item(self, key: PartitionKey, *, topic: str, topic_version: int) -> RetentionItem | None:
        """The plan; None if nothing is due."""
        if self._log_start is None or (self._new_log_start == self._log_start and self._held is None):
            return None
        held = None
        if self._held is not None and self._slowest is not None:
            held = HeldBack(slowest=self._slowest, amount=self._held, complete=self._held_complete)
        return RetentionItem(
            key=key,
            topic=topic,
            topic_version=topic_version,
            log_start_offset=self._log_start,
            new_log_start_offset=self._new_log_start,
            by_size=self._by_reason[RetentionReason.SIZE],
            by_time=self._by_reason[RetentionReason.TIME],
            held=held,
        )

    def _reason(self, entry: Entry) -> RetentionReason | None:
        if entry.end_offset < self._size_cut:
            return RetentionReason.SIZE
        return RetentionReason.TIME if self._rule.is_old(entry, self._now_ms) else None

    def _count(self, entry: Entry, reason: RetentionReason) -> None:
        readable = entry.end_offset + 1 - max(entry.base_offset, self.next_offset)
        amount = EntrySum(entries=1, records=min(entry.record_count, readable), size_bytes=entry.byte_length)
        self.next_offset = entry.end_offset + 1
        if self._held is not None:
            self._held += amount
        elif self._is_held(entry):
            self._held = amount
        else:
            self._by_reason[reason] += amount
            self._new_log_start = entry.end_offset + 1

    def _is_held(self, entry: Entry) -> bool:
        return (
            self._slowest is not None
            and entry.end_offset >= self._slowest.offset
            and self._rule.may_be_held(entry, self._now_ms)
        )
