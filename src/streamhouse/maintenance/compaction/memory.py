"""What a compactor remembers between passes to spare itself work. Losing it costs time and changes no result. Pure."""

from __future__ import annotations

from typing import Final

from streamhouse.core.backoff import Backoff, KeyedBackoff
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_KNOWN_DAMAGE
from streamhouse.maintenance.compaction.plan import CompactionItem

_MAX_PARTITIONS: Final = 100_000
"""Partitions whose settled offset is kept, some 100 bytes each. Others are looked at from their cursor."""
_UNREADABLE: Final = Backoff(first_ms=60_000, longest_ms=3_600_000)
"""Each try reads a run up to the damage twice. A repaired object is met within the hour."""


class CompactorMemory:
    def __init__(self) -> None:
        self._settled: dict[PartitionKey, int] = {}
        self._unreadable: KeyedBackoff[tuple[PartitionKey, int]] = KeyedBackoff(_UNREADABLE)

    def settled_offset(self, key: PartitionKey) -> int:
        """The offset below which the partition has nothing to compact; 0 if that is not known."""
        return self._settled.get(key, 0)

    def settle(self, key: PartitionKey, offset: int) -> None:
        self._settled.pop(key, None)
        if len(self._settled) >= _MAX_PARTITIONS:
            del self._settled[next(iter(self._settled))]
        self._settled[key] = offset

    def forget(self, key: PartitionKey) -> None:
        """The partition is gone."""
        self._settled.pop(key, None)

    def unreadable(self, key: PartitionKey, base_offset: int, *, now_ms: int) -> None:
        """The entry at this offset could not be read: leave it out for a while, longer each time."""
        place = (key, base_offset)
        if place not in self._unreadable and len(self._unreadable) >= MAX_KNOWN_DAMAGE:
            waiting = self._unreadable.waiting(now_ms=now_ms)
            self._unreadable.forget_except(waiting[1:])
        self._unreadable.failed(place, now_ms=now_ms)

    def readable(self, item: CompactionItem) -> None:
        """All sources of the item were read."""
        if len(self._unreadable):
            for source in item.sources:
                self._unreadable.worked((item.key, source.base_offset))

    def to_avoid(self, key: PartitionKey, *, now_ms: int) -> frozenset[int]:
        """Base offsets of the partition's entries that are not to be tried yet."""
        return frozenset(base for place, base in self._unreadable.waiting(now_ms=now_ms) if place == key)
