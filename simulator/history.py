"""What happened in a simulated run, as clients and an observer recorded it, and what is left at the end.

Plain data. The checker judges it; nothing of the code under test is used here, so that a mistake there cannot hide
itself. A key is (topic id in hexadecimal, partition). Times are milliseconds of virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[str, int]

ACKS_ALL = -1


@dataclass(slots=True, kw_only=True)
class Write:
    """One batch that a producer wants in the log, through all its attempts."""

    producer: str
    key: Key
    values: tuple[str, ...]
    acks: int
    invoked_ms: float
    sequence: int | None = None
    """The place of an idempotent producer's batch among all that it wrote; what its client made of it is below."""
    identities: set[tuple[int, int, int]] = field(default_factory=set)
    """The producer ids, epochs and sequences under which it was sent: each of them is at most once in the log."""
    attempts: int = 0
    """How often it was sent; each may have arrived, whatever the answers."""
    acked_ms: float | None = None
    base_offset: int | None = None
    acked_by: str | None = None
    taken_ms: float | None = None
    """When that agent gave it its offsets."""
    epoch: int | None = None
    """The epoch of the leadership that acknowledged it."""
    error: str = ""
    """Why the producer gave up."""
    record_keys: tuple[str, ...] = ()
    """The key of each record. Empty where maintenance does not run: then all have the same."""
    tombstones: frozenset[int] = frozenset()
    """Places of the records without a value; their text is in a header."""
    time_ms: int = 1
    """The time of its records."""

    @property
    def idempotent(self) -> bool:
        return self.sequence is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What one fetch returned: records with their offsets, in order."""

    reader: str
    key: Key
    from_offset: int
    records: tuple[tuple[int, str], ...]
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """A leadership began, at the very moment the metadata made it so."""

    key: Key
    epoch: int
    agent: str
    start_offset: int
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBatch:
    """An agent gave a batch its offsets under this leadership."""

    key: Key
    epoch: int
    agent: str
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The metadata took a commit under this epoch, at this very moment."""

    key: Key
    epoch: int
    base_offset: int
    end_offset: int
    """The offset of its last record."""
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """A commit that the metadata has lost, through no fault of the code. What was known by then of it is excused."""

    commit: Committed
    at_ms: float
    values: frozenset[str] = frozenset()
    """What the commit held. A resubmitted ``acks=1`` record has another offset there than the acknowledged one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLost:
    """Whatever this agent had only on its own disk is gone or damaged, through no fault of the code."""

    agent: str
    at_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """An agent said that it dropped these acknowledged acks=1 records: they kept all room from new writes."""

    agent: str
    key: Key
    epoch: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEntry:
    base_offset: int
    end_offset: int
    object_key: str
    byte_offset: int
    byte_length: int
    record_count: int
    encoding: str
    epoch: int
    compacted: bool = False
    """It is the result of a compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPartition:
    """A partition's rows in the metadata."""

    high_watermark: int
    log_start: int
    entries: tuple[RawEntry, ...]
    cursor: int = 0
    """The compaction cursor."""


class LoggedRecord(NamedTuple):
    """A record as it stands in the log."""

    value: str
    key: bytes
    is_tombstone: bool
    time_ms: int
    epoch: int
    producer: tuple[int, int, int]
    crc: int
    """The checksum of its batch, which changes if the batch is not copied byte for byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """What a topic's configs allow maintenance to take away. Every topic of a run has the same."""

    compacts: bool = False
    deletes: bool = True
    retention_ms: int = -1
    retention_bytes: int = -1
    tombstones_stay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """A partition at one instant: its rows, and what its entries hold."""

    partition: RawPartition
    records: Mapping[int, LoggedRecord]
    unreadable: tuple[str, ...]
    """What is wrong with entries that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A compaction was applied."""

    key: Key
    at_ms: float
    store_ms: int
    """The time of the metadata's clock."""
    before: LogSpan
    after: LogSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """A call that may move the log start took effect."""

    key: Key
    at_ms: float
    store_ms: int
    before: LogSpan
    after: LogSpan
    asked_offset: int
    """The highest offset up to which an operator has asked for records to be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedObject:
    """An object was deleted from the bucket."""

    object_key: str
    at_ms: float
    store_ms: int
    stamp_ms: int
    """When it was made, as its key says."""
    is_referenced: bool
    dereferenced_ms: int | None
    """When its last reference went; None if it never had one."""
    pinned_since_ms: tuple[int, ...]
    """When each live pin was created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedObject:
    """A commit was refused because its object is older than the horizon."""

    object_key: str
    at_ms: float
    store_ms: int
    stamp_ms: int
    put_ms: int
    """When it came into the bucket, by the metadata's clock."""
    horizon_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What is there when all is over: rows and objects, unread."""

    partitions: Mapping[Key, RawPartition]
    objects: Mapping[str, bytes]
    referenced: frozenset[str] = frozenset()
    """The keys of the objects that any row names."""
    store_ms: int = 0


@dataclass(slots=True, kw_only=True)
class SimHistory:
    wal_is_durable: bool = False
    """durability=wal: acks=1 promises as much as acks=all."""
    overtaken_come_back: bool = True
    """False for compacted topics: an old value must not come after a newer one (R4)."""
    every_agent_led_last: bool = False
    """In the end every agent has led every partition, so that what its disk held has come back (R4)."""
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    led: list[Led] = field(default_factory=list)
    taken: list[TakenBatch] = field(default_factory=list)
    committed: list[Committed] = field(default_factory=list)
    undone: list[Undone] = field(default_factory=list)
    disks_lost: list[DiskLost] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)
    trimmed: dict[Key, dict[int, str]] = field(default_factory=dict)
    """Records that were below the log start when it was raised, as they were then."""
    rules: TopicRules = field(default_factory=TopicRules)
    replaced: list[Replaced] = field(default_factory=list)
    cut: list[Trimmed] = field(default_factory=list)
    deleted: list[DeletedObject] = field(default_factory=list)
    refused: list[RefusedObject] = field(default_factory=list)
    writer_grace_ms: int = 0
    """How long maintenance must leave an object to its writer."""
    reader_grace_ms: int = 0
    """How long maintenance must leave an object after its last reference has gone."""
    tidied: dict[Key, LogSpan] = field(default_factory=dict)
    """Each partition at the end of all maintenance."""
    is_tidied: bool = False
    """Maintenance has come to an end: nothing is due any more, and no object is without a reference."""
    store_clock_set_ms: list[float] = field(default_factory=list)
    """When the metadata's clock was set forward: leases ran out early, which no local deadline can know."""
    problems: list[str] = field(default_factory=list)
    """What did not end, or broke: uncaught exceptions, a log that stays closed."""
