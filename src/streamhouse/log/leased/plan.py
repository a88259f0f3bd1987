"""When to flush, and which partitions. Pure.

A partition with enough bytes for a segment gets an object of its own. All smaller ones with something to write share
one blob: once a PUT is paid for, their number does not matter.

Where clients wait for commits, the policy that both ways to write share says when a blob or a segment is due
(log/flush_policy.py). Besides, a small partition brings a blob by itself:

    urgent      at once: a flush was asked for, or there is no room for writes
    read        a reader waits at the end of the log: at most once every flush interval
    aged        its oldest batch is old enough

Where the WAL is the durability no client waits for a commit and PUTs cost nothing. There, a partition is due when it is
urgent, wanted by a reader, aged, or large, and nothing else decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamhouse.core.limits import MAX_BATCH_BYTES
from streamhouse.log.flush_policy import FlushPace
from streamhouse.log.leased.partition import PartitionLog

NEVER_MS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushRules:
    segment_max_bytes: int
    busy_segment_bytes: int = 0
    """While a flush runs, the next one waits for this many bytes, if it is more: where no client waits for commits, a
    busy log is better with fewer and larger objects."""
    segment_max_age_ms: int
    flush_interval_ms: int
    pace: FlushPace | None = None
    """None where the WAL is the durability."""

    def enough_bytes(self, *, busy: bool) -> int:
        return max(self.segment_max_bytes, self.busy_segment_bytes) if busy else self.segment_max_bytes

    @property
    def chunk_bytes(self) -> int:
        """The most bytes one flush takes of one partition. Large ones are uploaded side by side instead."""
        return MAX_BATCH_BYTES if self.pace is None else max(self.pace.enough_bytes, self.segment_max_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPlan:
    large: tuple[PartitionLog, ...]
    small: tuple[PartitionLog, ...]
    next_due_ms: int | None
    """If the plan is empty: when to plan again; None if nothing is buffered."""
    urgent: bool = False
    """Some partition cannot wait for the budget of PUTs."""

    @property
    def empty(self) -> bool:
        return not self.large and not self.small


def plan_flush(
    dirty: Iterable[PartitionLog], rules: FlushRules, *, now_ms: int, last_flush_ms: int, busy: bool = False
) -> FlushPlan:
    """What is due by itself. ``busy``: a flush runs."""
    enough_bytes = rules.enough_bytes(busy=busy)
    large: list[PartitionLog] = []
    small: list[PartitionLog] = []
    full = urgent = False
    due_ms: int | None = None
    for partition in dirty:
        urgent = urgent or partition.urgent
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
        return FlushPlan(large=tuple(large) if full else (), small=(), next_due_ms=due_ms, urgent=urgent)
    return FlushPlan(large=tuple(large), small=tuple(small), next_due_ms=None, urgent=urgent)


def _due_ms(partition: PartitionLog, rules: FlushRules, last_flush_ms: int) -> int:
    if partition.urgent:
        return 0
    aged_ms = partition.oldest_pending_ms + rules.segment_max_age_ms
    if not partition.wanted:
        return aged_ms
    if rules.pace is None:
        return min(aged_ms, last_flush_ms + rules.flush_interval_ms)
    if not partition.readers_waiting:
        return aged_ms  # the policy decides for producers
    return min(aged_ms, read_due_ms(partition.oldest_pending_ms, rules, rules.pace, last_flush_ms))


def read_due_ms(appended_ms: int, rules: FlushRules, pace: FlushPace, last_flush_ms: int) -> int:
    """When to flush for a reader that waits for a batch."""
    return max(appended_ms + round(pace.quiet_ms), last_flush_ms + rules.flush_interval_ms)
