"""The partitions that wait for a task, and those that have one. Pure.

First come, first served; the search comes in random order. A partition that waits or is worked on is not taken in
again, so it has one task at a time (S2.12), and the queue is never longer than the number of partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.ids import PartitionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    key: PartitionKey
    waited_ms: int


class TaskQueue:
    def __init__(self) -> None:
        self._offered_at_ms: dict[PartitionKey, int] = {}
        """The partitions that wait, the first one first."""
        self._running: set[PartitionKey] = set()

    @property
    def waiting(self) -> int:
        return len(self._offered_at_ms)

    @property
    def running(self) -> frozenset[PartitionKey]:
        return frozenset(self._running)

    def offer(self, key: PartitionKey, *, now_ms: int) -> bool:
        """Returns False when the partition waits already or is worked on."""
        if key in self._running or key in self._offered_at_ms:
            return False
        self._offered_at_ms[key] = now_ms
        return True

    def take(self, *, now_ms: int) -> QueuedTask | None:
        """The next partition, which is worked on from here until ``done``. None when none waits."""
        key = next(iter(self._offered_at_ms), None)
        if key is None:
            return None
        offered_at_ms = self._offered_at_ms.pop(key)
        self._running.add(key)
        return QueuedTask(key=key, waited_ms=now_ms - offered_at_ms)

    def done(self, key: PartitionKey) -> None:
        self._running.discard(key)
