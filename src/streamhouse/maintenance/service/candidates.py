"""Searches for partitions that have something to compact. Writes nothing.

    watermarks   of all partitions, some thousands in one call
    plans        of the partitions that have news: records beyond what an earlier plan has settled

So a quiet cluster costs a call for thousands of partitions, whatever the length of their logs. What is remembered
between two searches only spares work: losing it changes no result.

A partition with a pending compaction is a candidate too, for its task recovers it. So is one whose plan fails with an
error that is its own (a damaged object, say): its task meets the same error, reports it, and leaves the partition alone
for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from streamhouse.core.errors import MetadataUnavailable, StoreUnavailable, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.compactor import Compactor
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor
from streamhouse.maintenance.service.counters import Lag
from streamhouse.maintenance.service.targets import CompactionTarget, TaskKind
from streamhouse.metadata.contract import MetadataStore, PartitionState

_PARTITIONS_PER_CALL: Final = 10_000
_PLANNED_AT_A_TIME: Final = 10
"""Partitions in one call for plans: a plan holds up to 10,000 entries, 7 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    candidates: tuple[PartitionKey, ...]
    lag: dict[TaskKind, Lag]
    pending_compactions: int


class CandidateSearch:
    def __init__(self, *, metadata: MetadataStore, compactor: Compactor, key_compactor: KeyCompactor) -> None:
        self._metadata = metadata
        self._compactor = compactor
        self._key_compactor = key_compactor
        self._settled: dict[PartitionKey, int] = {}
        """The offset below which a partition has nothing to compact, for each target that was planned."""

    async def run(self, targets: Sequence[CompactionTarget]) -> SearchResult:
        """The candidates stand in the order of the targets. Raises MetadataError, and StoreUnavailable."""
        pending = {compaction.key for compaction in await self._metadata.list_compactions()}
        states = await self._states([target.key for target in targets])
        self._settled = {key: offset for key, offset in self._settled.items() if key in states}
        with_news = [target for target in targets if self._has_news(states.get(target.key))]
        small = [target.key for target in with_news if target.kind is TaskKind.SMALL_OBJECTS]
        keyed = [target for target in with_news if target.kind is TaskKind.KEYS]
        small_found, small_lag = await self._small_objects(small, states)
        keyed_found, keyed_lag = await self._keys(keyed, states)
        found = small_found | keyed_found | (pending & states.keys())
        return SearchResult(
            candidates=tuple(target.key for target in targets if target.key in found),
            lag={TaskKind.SMALL_OBJECTS: small_lag, TaskKind.KEYS: keyed_lag},
            pending_compactions=len(pending),
        )

    def forget(self, changed: Iterable[PartitionKey]) -> None:
        """The partitions' kind of compaction has changed: what was settled for one is not settled for the other."""
        for key in changed:
            self._settled.pop(key, None)

    async def _states(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        found: dict[PartitionKey, PartitionState] = {}
        rest = iter(keys)
        while part := list(islice(rest, _PARTITIONS_PER_CALL)):
            found.update((state.key, state) for state in await self._metadata.get_partitions(part))
        return found

    def _has_news(self, state: PartitionState | None) -> bool:
        return state is not None and self._settled.get(state.key, 0) < state.high_watermark

    async def _small_objects(
        self, keys: Sequence[PartitionKey], states: dict[PartitionKey, PartitionState]
    ) -> tuple[set[PartitionKey], Lag]:
        found: set[PartitionKey] = set()
        entries = size_bytes = waiting = 0
        rest = iter(keys)
        while part := list(islice(rest, _PLANNED_AT_A_TIME)):
            plans = {plan.key: plan for plan in await self._compactor.plan(part)}
            for key in part:
                plan = plans.get(key)
                self._settled[key] = states[key].high_watermark if plan is None else plan.settled_offset
                if plan is None:
                    continue
                waiting += plan.waiting_entries
                if plan.items:
                    found.add(key)
                    entries += sum(len(item.sources) for item in plan.items)
                    size_bytes += sum(item.expected_bytes for item in plan.items)
        return found, Lag(candidates=len(found), entries=entries, bytes=size_bytes, waiting_entries=waiting)

    async def _keys(
        self, targets: Sequence[CompactionTarget], states: dict[PartitionKey, PartitionState]
    ) -> tuple[set[PartitionKey], Lag]:
        found: set[PartitionKey] = set()
        entries = size_bytes = waiting = 0
        for target in targets:
            key = target.key
            try:
                plans = await self._key_compactor.plan({key: target.config})
            except (MetadataUnavailable, StoreUnavailable):
                raise
            except StreamHouseError:
                found.add(key)
                continue
            if not plans:
                self._settled[key] = states[key].high_watermark
            for plan in plans:
                if plan.due is None:
                    waiting += len(plan.dirty)
                else:
                    found.add(key)
                    entries += len(plan.dirty)
                    size_bytes += plan.dirty_bytes
        return found, Lag(candidates=len(found), entries=entries, bytes=size_bytes, waiting_entries=waiting)
