"""Counts what compaction did, and says how far a pass has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey

MAX_FAILURES_KEPT: Final = 100
"""Failures that a pass keeps with their error. More are only counted: a person reads the first few."""


@dataclass(slots=True, kw_only=True)
class CompactionStats:
    runs: int = 0
    """Runs of entries that were replaced by one entry."""
    entries: int = 0
    """Entries that were replaced by these runs."""
    bytes_in: int = 0
    """Bytes that were read and copied, also for runs that were then given up."""
    bytes_out: int = 0
    """Bytes of the objects that were written, also of those that were then given up."""
    objects_released: int = 0
    """Objects that a partition no longer refers to. Vacuum deletes those that nothing else refers to."""
    conflicts: int = 0
    """Runs that were given up, because another process or retention had changed the entries."""
    stale: int = 0
    """Objects that were older than the GC horizon when they were to be committed; they were written again (R6)."""
    recovered: int = 0
    """Compactions that another process, or an earlier pass, had left pending, and that were finished."""
    aborted: int = 0
    """Compactions that were left pending and were cleared, because their object is missing or not what they say."""
    busy: int = 0
    """Partitions that were passed over, because another process or another pass works on them."""
    damaged: int = 0
    """Runs with a source that is missing or fails its checks."""
    failures: int = 0
    """Partitions that a pass could not finish because of an error, damage included."""

    def add(self, other: CompactionStats) -> None:
        """Add the counters of ``other``, which has no counter that this lacks."""
        for field in fields(other):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassProgress:
    """How far a pass has come. The number of items grows while partitions are looked at."""

    partitions: int
    partitions_done: int
    items: int
    items_done: int
    """Items that were committed or given up."""
    bytes_expected: int
    """Bytes to be read for the items known so far."""
    bytes_read: int


OnProgress = Callable[[PassProgress], None]


def unwatched(progress: PassProgress) -> None:
    """Ignores the progress, for a pass that is not watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailure:
    key: PartitionKey
    error: StreamHouseError


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    stats: CompactionStats
    """Counters of this pass alone."""
    failures: tuple[PartitionFailure, ...]
    """The first MAX_FAILURES_KEPT."""
    partitions_left: int
    """Partitions that were not looked at, because a store was away. The next pass takes them."""
    more: bool
    """True when a plan had more items than one pass takes, so that another pass has work at once."""
    waiting_entries: int = 0
    """Entries that are not worth an object yet, in the partitions in which this pass found nothing to do."""
