"""When to flush, and which partitions. Pure.

A partition is due when it holds enough bytes for a segment, when its oldest batch is old enough, or when a client waits
for its commit and the last flush began long enough ago. A partition with enough bytes gets a segment of its own. Once
any smaller partition is due, all partitions with something to write share one blob: the PUT is paid for in any case, so
their number does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamhouse.log.leased.partition import PartitionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRules:
    segment_max_bytes: int
    busy_segment_bytes: int = 0
    """While a flush runs, the next one waits for this many bytes, if it is more: where no client waits for commits, a
    busy log is better with fewer and larger objects."""
    segment_max_age_ms: int
    flush_interval_ms: int

    def enough_bytes(self, *, busy: bool) -> int:
        return max(self.segment_max_bytes, self.busy_segment_bytes) if busy else self.segment_max_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    large: tuple[PartitionLog, ...]
    small: tuple[PartitionLog, ...]
    next_due_ms: int | None
    """If the plan is empty: when to plan again; None if nothing is buffered."""

    @property
    def empty(self) -> bool:
        return not self.large and not self.small


def plan_flush(
    dirty: Iterable[PartitionLog], rules: FlushRules, *, now_ms: int, last_flush_ms: int, busy: bool = False
) -> FlushPlan:
    """``busy``: a flush runs."""
    enough_bytes = rules.enough_bytes(busy=busy)
    large: list[PartitionLog] = []
    small: list[PartitionLog] = []
    full = False
    due_ms: int | None = None
    for partition in dirty:
        if partition.pending_bytes >= rules.segment_max_bytes:
            large.append(partition)
            if partition.pending_bytes >= enough_bytes:
                full = True
                continue
        else:
            small.append(partition)
        at_ms = _due_ms(partition, rules, last_flush_ms)
        due_ms = at_ms if due_ms is None else min(due_ms, at_ms)
    if due_ms is None or due_ms > now_ms:
        return FlushPlan(large=tuple(large) if full else (), small=(), next_due_ms=due_ms)
    return FlushPlan(large=tuple(large), small=tuple(small), next_due_ms=None)


def _due_ms(partition: PartitionLog, rules: FlushRules, last_flush_ms: int) -> int:
    if partition.urgent:
        return 0
    aged_ms = partition.oldest_pending_ms + rules.segment_max_age_ms
    return min(aged_ms, last_flush_ms + rules.flush_interval_ms) if partition.wanted else aged_ms
