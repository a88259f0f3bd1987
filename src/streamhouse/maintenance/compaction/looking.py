"""Reads the entries of partitions and has them planned. Writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.memory import CompactorMemory
from streamhouse.maintenance.compaction.plan import CompactionRules, PartitionPlan, plan_partition
from streamhouse.metadata.contract import Entry, MetadataStore, PartitionState, ScanRange

_PAGE_ENTRIES: Final = 1_000
_MAX_ENTRIES_READ: Final = 10_000
"""Entries of one partition in one plan, about 7 MB. More than the most sources of a run: a plan always gets on."""
_PARTITIONS_PER_CALL: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLog:
    plan: PartitionPlan
    more: bool
    """True when the plan has as many items as it may have, or the log has entries that it did not see."""


class LogPlanner:
    def __init__(
        self, *, metadata: MetadataStore, clock: Clock, rules: CompactionRules, memory: CompactorMemory
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._rules = rules
        self._memory = memory

    async def states(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """The partitions that exist, in the order of the keys."""
        found: dict[PartitionKey, PartitionState] = {}
        for first in range(0, len(keys), _PARTITIONS_PER_CALL):
            states = await self._metadata.get_partitions(keys[first : first + _PARTITIONS_PER_CALL])
            found.update((state.key, state) for state in states)
        return found

    async def plan(self, state: PartitionState, *, now_ms: int) -> PlannedLog | None:
        """``now_ms`` is the store's time. None when the partition is gone, or has nothing new since the last plan."""
        key = state.key
        start = max(state.compaction_cursor, self._memory.settled_offset(key))
        if start >= state.high_watermark:
            return None
        entries: list[Entry] = []
        more = True
        while more and len(entries) < _MAX_ENTRIES_READ:
            wanted = ScanRange(key=key, from_offset=entries[-1].end_offset + 1 if entries else start)
            pages = await self._metadata.scan_entries([wanted], limit=_PAGE_ENTRIES)
            if not pages:
                self._memory.forget(key)
                return None
            entries += pages[0].entries
            # The first page's state may know fewer entries than the last page shows; the cursor never goes back.
            state, more = pages[0].partition, pages[0].more
        avoid = self._memory.to_avoid(key, now_ms=self._clock.boot_ms())
        plan = plan_partition(
            state, entries, rules=self._rules, now_ms=now_ms, from_offset=start, more=more, avoid=avoid
        )
        self._memory.settle(key, plan.settled_offset)
        return PlannedLog(plan=plan, more=more or len(plan.items) == self._rules.max_items)
