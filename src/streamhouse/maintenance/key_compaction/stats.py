"""Counts what key compaction did."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamhouse.maintenance.compaction.stats import MAX_FAILURES_KEPT, CompactionStats, PassResult
from streamhouse.maintenance.key_compaction.thinning import RecordCounts


@dataclass(slots=True, kw_only=True)
class KeyCompactionStats(CompactionStats):
    """Records are counted when the object without them was committed."""

    partitions: int = 0
    """Partitions that were compacted as far as the plan said."""
    keys: int = 0
    """Keys that were mapped."""
    records: int = 0
    """Records that were looked at."""
    superseded: int = 0
    """Records that were dropped because there is a newer one of their key."""
    tombstones: int = 0
    """Tombstones that were dropped because their delete horizon had passed."""
    keyless: int = 0
    """Records that were dropped because they have no key."""

    def count(self, counts: RecordCounts) -> None:
        self.records += counts.records
        self.superseded += counts.superseded
        self.tombstones += counts.tombstones
        self.keyless += counts.keyless

    @property
    def dropped(self) -> int:
        return self.superseded + self.tombstones + self.keyless


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPassResult(PassResult):
    stats: KeyCompactionStats = field()

    def plus(self, other: PassResult) -> KeyPassResult:
        """Both passes as one."""
        stats = KeyCompactionStats()
        stats.add(self.stats)
        stats.add(other.stats)
        return KeyPassResult(
            stats=stats,
            failures=(*self.failures, *other.failures)[:MAX_FAILURES_KEPT],
            partitions_left=self.partitions_left + other.partitions_left,
            more=self.more or other.more,
            waiting_entries=self.waiting_entries + other.waiting_entries,
        )
