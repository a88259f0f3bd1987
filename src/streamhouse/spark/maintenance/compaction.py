"""Compaction of small objects on Spark: the pass of one process, in which a task rewrites and commits each item.

The driver looks, claims, recovers, plans and holds the pin. Items of one partition are compacted one after the other,
as in one process: the partition's cursor moves only when they are committed in their order. So the work
is shared by partitions: on a cluster 64 of them at a time.

A task may be the second attempt of its item, or run beside the first. What it may find, and what it does:

    a compaction is pending               finishes it, as any process may (recovery.py)
    one entry covers the item's range     the other attempt has committed: done
    the sources stand                     compacts the item. If the other attempt begins first, it looks again
    anything else                         CompactionConflict: the plan is void, the next pass makes another

An attempt that was refused leaves an object that nothing refers to, and vacuum deletes it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import CompactionConflict, NotFound, StreamHouseError, as_result
from streamhouse.core.randomness import Randomness
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.commit import ItemCompaction
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionItem, CompactionRules
from streamhouse.maintenance.compaction.recovery import RecoveryOutcome, recover_compaction
from streamhouse.maintenance.compaction.rewrite import Copied, NewCopy, PlanReads, copy_unchanged, indexed_reads
from streamhouse.maintenance.compaction.stats import CompactionStats
from streamhouse.metadata.contract import EntryKind, MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.spark.maintenance.jobs import SparkTasks
from streamhouse.spark.maintenance.tasks import TaskStores, Work

_LOOKS: Final = 3
"""How often an attempt begins anew beside another one. Each time, one of them has committed or was refused."""
_HOLD_EVERY_S: Final = 5.0
"""How often the driver looks at its claim on the partition, which lasts for a minute."""


class SparkCompactor(Compactor):
    """``owner`` names this driver in claims."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        offload: Offload,
        clock: Clock,
        randomness: Randomness,
        owner: str,
        rules: CompactionRules,
        tasks: SparkTasks,
    ) -> None:
        super().__init__(
            metadata=metadata,
            store=store,
            offload=offload,
            clock=clock,
            randomness=randomness,
            owner=owner,
            options=CompactorOptions(rules=rules, max_parallel_items=tasks.at_a_time),
        )
        self._item = ItemOnSpark(metadata=metadata, store=store, offload=offload, randomness=randomness, tasks=tasks)


class ItemOnSpark(ItemCompaction):
    """Compacts an item in a task."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        offload: Offload,
        randomness: Randomness,
        tasks: SparkTasks,
    ) -> None:
        super().__init__(metadata=metadata, store=store, offload=offload, randomness=randomness)
        self._tasks = tasks

    async def run(
        self,
        item: CompactionItem,
        *,
        stats: CompactionStats,
        copied: Copied,
        new_copy: NewCopy = copy_unchanged,
        plan_reads: PlanReads = indexed_reads,
    ) -> bool:
        """``copied`` is awaited every few seconds without bytes, so that the claim is kept, and at the end."""
        assert new_copy is copy_unchanged, "a task cannot be given a function"
        assert plan_reads is indexed_reads, "nor another one"
        running = asyncio.create_task(self._tasks.run(CompactItem(item=item)))
        try:
            while not (await asyncio.wait([running], timeout=_HOLD_EVERY_S))[0]:
                await copied(0)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        done = running.result()
        stats.add(done.stats)
        await copied(done.read_bytes)
        if done.error is not None:
            raise done.error
        return True


@dataclass(slots=True, kw_only=True)
class ItemDone:
    stats: CompactionStats = field(default_factory=CompactionStats)
    read_bytes: int = 0
    error: StreamHouseError | None = None
    """The error that the item ended with. What was done until then counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactItem(Work[ItemDone]):
    doing = "compacting small objects"
    item: CompactionItem

    async def run(self, stores: TaskStores) -> ItemDone:
        done = ItemDone()
        try:
            await self._compact(stores, done)
        except StreamHouseError as error:
            done.error = as_result(error)
        return done

    async def _compact(self, stores: TaskStores, done: ItemDone) -> None:
        compaction = ItemCompaction(
            metadata=stores.metadata, store=stores.objects, offload=stores.offload, randomness=stores.randomness
        )

        async def copied(size_bytes: int) -> None:
            done.read_bytes += size_bytes

        for looks_left in reversed(range(_LOOKS)):
            await self._finish_pending(stores, done.stats)
            if await self._is_replaced(stores.metadata):
                self._count_as_done(done.stats)
                return
            if not await compaction.stands(self.item):
                raise CompactionConflict(f"the entries of {self.item.key} have changed since they were planned")
            try:
                await compaction.run(self.item, stats=done.stats, copied=copied)
                return
            except CompactionConflict:
                if not looks_left:
                    raise

    async def _finish_pending(self, stores: TaskStores, stats: CompactionStats) -> None:
        pending = await stores.metadata.get_compaction(self.item.key)
        if pending is not None:
            outcome = await recover_compaction(pending, metadata=stores.metadata, store=stores.objects)
            stats.recovered += outcome is RecoveryOutcome.APPLIED
            stats.aborted += outcome is RecoveryOutcome.ABORTED

    async def _is_replaced(self, metadata: MetadataStore) -> bool:
        """Whether another attempt has put one entry in the place of the item's."""
        item = self.item
        try:
            entry = (await metadata.find_entry(item.key, item.end_offset)).entry
        except NotFound:
            return False
        return entry is not None and (entry.kind, entry.base_offset, entry.end_offset) == (
            EntryKind.COMPACTED,
            item.base_offset,
            item.end_offset,
        )

    def _count_as_done(self, stats: CompactionStats) -> None:
        """What the other attempt could not tell."""
        stats.runs += 1
        stats.entries += len(self.item.sources)
        stats.objects_released += self.item.objects_saved + 1
