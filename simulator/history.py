"""What happened in a simulated run, as clients and an observer recorded it, and what is left at the end.

Plain data. The checker judges it; nothing of the code under test is used here, so that a mistake there cannot hide
itself. A key is (topic id in hexadecimal, partition). Times are milliseconds of virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPartition:
    """A partition's rows in the metadata."""

    high_watermark: int
    log_start: int
    entries: tuple[RawEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What is there when all is over: rows and objects, unread."""

    partitions: Mapping[Key, RawPartition]
    objects: Mapping[str, bytes]


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
    store_clock_set_ms: list[float] = field(default_factory=list)
    """When the metadata's clock was set forward: leases ran out early, which no local deadline can know."""
    problems: list[str] = field(default_factory=list)
    """What did not end, or broke: uncaught exceptions, a log that stays closed."""
