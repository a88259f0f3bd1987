"""Entries and commits: the sparse index of every partition, and the only way anything gets into it.

Two commits, one per way to write. Both carry an append id, list every batch, and answer partition by partition; sending
the identical commit again is always safe and is the only way to resolve a lost reply (R5).

Atomicity asked of a backend: **per partition**, "the watermark still equals my base, the epoch beside it is still mine,
the log is open, the object is not older than the horizon" is checked by the very write that moves the watermark and
makes the entry visible, together with the producers' windows and the record of the append id. SQL backends do all
partitions of a commit in one transaction; a store with compare-and-swap per key does it partition by partition with the
pending record of ``metadata/documents/control.py``. Nothing here needs two partitions to move together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.limits import MAX_PRODUCERS_PER_PARTITION
from streamhouse.metadata.contract.topics import PartitionState

KAFKA_BATCHES = "kafka-batch-v2"
"""``encoding`` of an entry that points at bare record batches (a slice of a shared blob)."""
SEGMENT_V1 = "strm-v1"
"""``encoding`` of an entry that points at a whole STRM segment."""

NO_PRODUCER = -1


class EntryKind(StrEnum):
    WAL = "WAL"
    """A slice of a shared blob; its batches carry offset 0 and are patched on read."""
    SEGMENT = "SEGMENT"
    COMPACTED = "COMPACTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of a partition's sparse index. It covers ``[base_offset, end_offset]``, both included."""

    base_offset: int
    end_offset: int
    kind: EntryKind
    object_key: str
    byte_offset: int
    byte_length: int
    record_count: int
    """May be less than the offsets covered once keys were compacted (R18)."""
    encoding: str
    min_timestamp_ms: int
    """The smallest *declared* first timestamp of its batches; a hint, never a reason to skip records."""
    max_timestamp_ms: int
    epoch: int
    created_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """An uploaded object and the creation stamp its key carries (R6)."""

    key: str
    size_bytes: int
    created_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """One record batch; or any number of consecutive batches without producer id, taken together."""

    record_count: int
    byte_length: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedSlice:
    """One partition's share of a leased flush, at the offsets its leader assigned."""

    key: PartitionKey
    epoch: int
    base_offset: int
    kind: EntryKind
    object: ObjectRef
    byte_offset: int
    byte_length: int
    encoding: str
    batches: tuple[BatchRun, ...]

    @property
    def record_count(self) -> int:
        return sum(batch.record_count for batch in self.batches)

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderlessSlice:
    """One partition's share of a shared blob. The batches' byte lengths add up to ``byte_length`` exactly."""

    key: PartitionKey
    byte_offset: int
    byte_length: int
    encoding: str
    batches: tuple[BatchRun, ...]


class Verdict(StrEnum):
    """The verdict of a commit for one partition (R10)."""

    COMMITTED = "committed"
    FENCED = "fenced"
    """Another epoch leads, the log is FENCED, or the topic's write mode is the other one. Tear down."""
    NOT_YET = "not_yet"
    """The watermark is still below the base: an earlier commit of this partition has not arrived. Send again."""
    TAKEN = "taken"
    """My epoch, but the watermark is past the base: other records stand there. Nothing was written."""
    GONE = "gone"
    """The partition does not exist, because its topic was deleted: close it."""
    STALE_OBJECT = "stale_object"
    """The object is older than the GC horizon and may be deleted: upload the same batches again (R6, R11)."""


class BatchVerdict(StrEnum):
    """The verdict of a leaderless commit for one batch (R14)."""

    APPENDED = "appended"
    DUPLICATE = "duplicate"
    """One of the producer's last five; the offset is the original's."""
    DUPLICATE_TOO_OLD = "duplicate_too_old"
    """Wholly before the window of five, so it is known to be written (Kafka 46; R21)."""
    OUT_OF_ORDER = "out_of_order"
    """A gap after a known sequence, or a batch that is only partly known (Kafka 45; R15 says what to answer)."""
    STALE_PRODUCER = "stale_producer"
    """An older producer epoch (Kafka 47)."""
    UNKNOWN_PRODUCER = "unknown_producer"
    """No window, and the sequence is not 0: either an earlier batch of this producer was refused or is still on its
    way, or the store has forgotten the producer (R21)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    verdict: BatchVerdict
    base_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceOutcome:
    """``base_offset`` and ``end_offset`` span what was appended (-1 when nothing was)."""

    key: PartitionKey
    verdict: Verdict
    base_offset: int = -1
    end_offset: int = -1
    high_watermark: int = -1
    """The watermark after this commit when COMMITTED, else as found; -1 when GONE."""
    leader_epoch: int = -1
    """The epoch in the partition's row; -1 when GONE."""
    batches: tuple[BatchOutcome, ...] = ()
    """Leaderless commits only: one per batch listed."""
    repeated: bool = False
    """True when an earlier sending of the same append id had already committed this partition. For a repeat,
    ``high_watermark`` is ``end_offset + 1`` of that commit (or the watermark then, when nothing was appended)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLookup:
    """The partition as it was when the entry was looked up, from one consistent read."""

    partition: PartitionState
    entry: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    key: PartitionKey
    from_offset: int
    to_offset: int | None = None
    """Exclusive; None is "to the end"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPage:
    """Entries that overlap the range, in offset order. ``more`` is True when the limit cut the page."""

    partition: PartitionState
    entries: tuple[Entry, ...]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStart:
    """One leadership: who, with which WAL, from which offset on. Kept also when it wrote nothing."""

    epoch: int
    start_offset: int
    agent_id: str
    wal_id: UUID
    started_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPlace:
    """A place in the histories of all partitions, which are ordered by partition and then by epoch."""

    key: PartitionKey
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySweep:
    """The outcome of one step of a sweep over the histories of all partitions."""

    deleted: int
    after: HistoryPlace | None
    """Where the next step begins; None when this one has reached the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBatch:
    base_sequence: int
    record_count: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """A producer's last batches on one partition, oldest first, at most PRODUCER_WINDOW of one epoch (R9)."""

    producer_id: int
    producer_epoch: int
    batches: tuple[ProducerBatch, ...]
    updated_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPage:
    """Windows of one partition, newest first. The next page begins after the last of them."""

    states: tuple[ProducerState, ...]
    more: bool
    """True when there are more producers than the limit of the page."""
    forgotten_up_to: int
    """The highest producer id that may have written here before and has no window for a leader any more; -1 if there is
    none. Windows go when ``expire_producers`` drops them, when they are idle for longer than the caller wants, and with
    an earlier topic of the same name. A producer with a higher id and no window has never written here (R21). Complete
    in the first page; the later ones may leave out the idle ones."""
    highest_id: int
    """The highest producer id that has a window here, in this page or not; -1 if there is none."""


class Log(ABC):
    @abstractmethod
    async def commit_leased(self, append_id: AppendId, slices: Sequence[LeasedSlice]) -> list[SliceOutcome]:
        """Commit one flush of one agent: each partition on its own terms, answers in the order of ``slices``.

        COMMITTED iff the row's watermark equals ``base_offset``, its leader epoch equals ``epoch``, the log is OPEN and
        leased, and the object is not older than the horizon. Rows are locked in key order (R10). The judgement order
        for the rest: GONE, then FENCED, then STALE_OBJECT, then NOT_YET / TAKEN.
        A partition that this append id already committed answers as it did then, ``repeated``, even when its topic is
        gone by now; the others are judged again, which can only turn NOT_YET into something else.
        Producer windows are recorded as told: the leader has already deduplicated.
        A key may stand in ``slices`` once. Raises InvalidRequest for an empty or malformed commit, LimitExceeded.
        """

    @abstractmethod
    async def commit_leaderless(
        self, append_id: AppendId, blob: ObjectRef, slices: Sequence[LeaderlessSlice]
    ) -> list[SliceOutcome]:
        """Commit one shared blob: assign offsets from each watermark on, deduplicating batch by batch (R14).

        A slice that mixes duplicates and new batches gives one entry per surviving run of consecutive batches, with
        the run's own byte range. A slice whose every batch is refused is COMMITTED with no entry. Entries have epoch 0.
        Repeats, order of answers, locking and errors as in ``commit_leased``.
        """

    @abstractmethod
    async def find_entry(self, key: PartitionKey, offset: int) -> EntryLookup:
        """The entry with the smallest ``end_offset >= offset`` (ceiling), or None at or past the watermark.

        Offsets below the log start find the first entry there is. Raises PartitionNotFound.
        """

    @abstractmethod
    async def find_entry_by_timestamp(self, key: PartitionKey, timestamp_ms: int) -> EntryLookup:
        """The first entry by offset with ``max_timestamp_ms >= timestamp_ms`` that reaches past the log start.

        Must not scan from the beginning: entries keep a running maximum for it.
        """

    @abstractmethod
    async def find_max_timestamp_entry(self, key: PartitionKey) -> EntryLookup:
        """The first entry by offset among those with the largest ``max_timestamp_ms``; None when there is none."""

    @abstractmethod
    async def scan_entries(self, ranges: Sequence[ScanRange], *, limit: int) -> list[EntryPage]:
        """Forward scan of many partitions in one call: up to ``limit`` entries of each range, one page per range.

        Ranges of partitions that do not exist are left out. Raises LimitExceeded over MAX_SCAN_ENTRIES.
        """

    @abstractmethod
    async def epoch_history(self, key: PartitionKey) -> list[EpochStart]:
        """Every leadership of this partition that ``expire_epochs`` has not dropped, oldest first."""

    @abstractmethod
    async def expire_epochs(self, *, keep_ms: int, limit: int, after: HistoryPlace | None = None) -> HistorySweep:
        """Look at the next ``limit`` rows of the epoch histories, and drop those that nothing needs any more.

        A row may go when its leadership ended longer ago than ``keep_ms`` by the store's clock, and
        (a) the next leadership began at or below the first offset that an entry still covers, so that every offset of
        this one is gone; or
        (b) it wrote nothing and repeats the row before it: the same WAL at the same offset.
        So the newest row stays, the one that covers the log start, and every row that is younger. For the rows that
        stay, the first later leadership with another WAL begins at the same offset as before (R3), and the end of every
        epoch is the same (for an epoch below the log start: the log start).

        ``keep_ms`` must be longer than a WAL may hold frames of a leadership that has ended (R3, R4). To sweep all
        histories, begin without ``after`` and go on with each answer's. Several processes may do so at once.
        """

    @abstractmethod
    async def load_producers(
        self,
        keys: Sequence[PartitionKey],
        *,
        limit: int = MAX_PRODUCERS_PER_PARTITION,
        after: Mapping[PartitionKey, ProducerState] | None = None,
        idle_ms: int | None = None,
    ) -> dict[PartitionKey, ProducerPage]:
        """A page of up to ``limit`` windows for each partition (R9, R22). Every asked key is in the answer.

        The order is newest first by the time of the last write, then by producer id. Windows last written in the same
        minute may come in either order. ``after``: the last window of the previous page. With ``idle_ms``, windows not
        written for longer are left out. A window that is written between two pages may be missing from them: a new
        leader pages before it serves, when nothing can write. Raises InvalidRequest, LimitExceeded.
        """

    @abstractmethod
    async def expire_producers(self, *, idle_ms: int, limit: int) -> int:
        """Drop up to ``limit`` windows whose last write is longer ago than ``idle_ms`` by the store's clock.

        Returns how many. The partition remembers the highest id: ``ProducerPage.forgotten_up_to``. A window that a
        commit writes at the same time stays. Several processes may call it at once. Cheap when nothing is to go.
        """

    @abstractmethod
    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that no other call gets. A lost reply loses the block, which is harmless."""

    @abstractmethod
    async def expire_commits(self, *, keep_ms: int, limit: int) -> int:
        """Forget append ids older than ``keep_ms`` whose objects are all older than the store-wide GC horizon.

        Only those: while its object could still be committed, a repeat must find its verdict (R5). Returns how many.
        """
