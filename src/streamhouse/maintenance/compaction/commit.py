"""Compacts one item: rewrites it, then replaces its entries by the new one. The only module here that commits.

``begin`` names the exact sources and makes the new object referenced; ``apply`` takes the sources out and puts the
target in. Each of the two is refused if the entries that stand are not the sources (R17), and each may be sent again.

A refusal of ``begin`` may also mean that the object is older than the partition's GC horizon: vacuum may have deleted
it, because nothing referred to it yet (R6). The item itself is still good then, so it is written once more with a fresh
stamp. Which of the two it was is asked of the partition's own row. A pin that is held meanwhile keeps vacuum's horizon
behind it, so that this is rare however long the rewriting takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import CompactionConflict, DamagedObject, MetadataUnavailable
from streamhouse.core.randomness import Randomness
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.plan import CompactionItem
from streamhouse.maintenance.compaction.rewrite import (
    Copied,
    NewCopy,
    PlanReads,
    RewrittenItem,
    copy_unchanged,
    indexed_reads,
    rewrite_item,
)
from streamhouse.maintenance.compaction.stats import CompactionStats
from streamhouse.maintenance.kept_pin import KeptPin
from streamhouse.metadata.contract import Compaction, CompactionSource, Entry, MetadataStore, ObjectRef, ScanRange
from streamhouse.objectstore.contract import ObjectStore

T = TypeVar("T")

_WRITES: Final = 2
"""Objects written for one item. A rewrite that is too slow for the horizon twice is too slow for this vacuum."""
_READS: Final = 2
"""A source that fails its checks is read again: the download may have been damaged, not the object."""
_SENDINGS: Final = 3
"""How often one call without an answer is sent. The store tries for half a minute each time; recovery does the rest."""
_PIN_TTL_MS: Final = 60_000
_PAUSE: Final = Backoff(first_ms=500, longest_ms=5_000)


class ItemCompaction:
    def __init__(
        self, *, metadata: MetadataStore, store: ObjectStore, offload: Offload, randomness: Randomness
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._offload = offload
        self._randomness = randomness

    async def run(
        self,
        item: CompactionItem,
        *,
        stats: CompactionStats,
        copied: Copied,
        new_copy: NewCopy = copy_unchanged,
        plan_reads: PlanReads = indexed_reads,
    ) -> bool:
        """Returns True when the item's entries are replaced, False when ``new_copy`` leaves them as they are.

        Raises CompactionConflict when they have changed meanwhile; DamagedObject, PartitionNotFound, StoreError,
        MetadataError, and what ``copied`` and the copy raise.
        """
        pin = KeptPin(self._metadata, self._randomness.uuid(), owner="compaction", ttl_ms=_PIN_TTL_MS)
        async with pin:
            replaced = await self._run(item, stats, lambda: self._rewrite(item, copied, new_copy, plan_reads))
        if replaced:
            stats.runs += 1
            stats.entries += len(item.sources)
            stats.objects_released += item.objects_saved + 1
        return replaced

    async def _run(
        self, item: CompactionItem, stats: CompactionStats, rewrite: Callable[[], Awaitable[RewrittenItem | None]]
    ) -> bool:
        for writes_left in reversed(range(_WRITES)):
            rewritten = await rewrite()
            if rewritten is None:
                return False
            stats.bytes_out += rewritten.object.size_bytes
            try:
                await self._replace(item, rewritten)
                break
            except CompactionConflict:
                if not await self._is_stale(item, rewritten.object):
                    raise
                stats.stale += 1
                if not writes_left or not await self.stands(item):
                    raise
        return True

    async def _rewrite(
        self, item: CompactionItem, copied: Copied, new_copy: NewCopy, plan_reads: PlanReads = indexed_reads
    ) -> RewrittenItem | None:
        for reads_left in reversed(range(_READS)):
            try:
                return await rewrite_item(
                    item,
                    store=self._store,
                    offload=self._offload,
                    created_ms=await self._metadata.now_ms(),
                    object_id=self._randomness.uuid(),
                    copied=copied,
                    new_copy=new_copy,
                    plan_reads=plan_reads,
                )
            except DamagedObject as error:
                if not await self.stands(item):
                    # R7: the object is gone because its entry is. The log lacks nothing.
                    raise CompactionConflict(f"the entries of {item.key} were replaced while they were read") from error
                if not reads_left:
                    raise
        raise AssertionError("unreachable")

    async def _replace(self, item: CompactionItem, rewritten: RewrittenItem) -> None:
        compaction = Compaction(
            key=item.key,
            compaction_id=self._randomness.uuid(),
            sources=sources_of(item.sources),
            target=rewritten.target,
            object=rewritten.object,
        )
        await self._surely(lambda: self._metadata.begin_compaction(compaction))
        await self._surely(lambda: self._metadata.apply_compaction(item.key, compaction.compaction_id))

    async def _surely(self, call: Callable[[], Awaitable[T]]) -> T:
        """R5: no answer is no verdict. The identical call is sent again."""
        for sent in range(1, _SENDINGS):
            try:
                return await call()
            except MetadataUnavailable:
                await asyncio.sleep(_PAUSE.pause_s(sent, self._randomness))
        return await call()

    async def _is_stale(self, item: CompactionItem, ref: ObjectRef) -> bool:
        states = await self._metadata.get_partitions([item.key])
        return bool(states) and ref.created_at_ms < states[0].gc_horizon_ms

    async def stands(self, item: CompactionItem) -> bool:
        """Whether the entries of the range are still the item's sources."""
        wanted = ScanRange(key=item.key, from_offset=item.base_offset, to_offset=item.end_offset + 1)
        pages = await self._metadata.scan_entries([wanted], limit=len(item.sources) + 1)
        return bool(pages) and sources_of(pages[0].entries) == sources_of(item.sources)


def sources_of(entries: tuple[Entry, ...]) -> tuple[CompactionSource, ...]:
    return tuple(
        CompactionSource(base_offset=entry.base_offset, end_offset=entry.end_offset, object_key=entry.object_key)
        for entry in entries
    )
