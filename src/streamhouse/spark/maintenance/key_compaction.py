"""Key compaction on Spark: the pass of one process looks and plans; a task compacts the keys of one partition.

The task claims the partition, recovers, plans again, maps and rewrites, exactly as one process does. All attempts of a
task claim under the driver's name. So a second attempt goes on where a killed one was, without waiting for its claim to
end. Two attempts at the same time do no harm: each item is committed under a condition, and the attempt that is refused
stops. What it leaves is for the next pass.

One task has the memory of one map of keys. A partition with more keys than that takes several rounds of its task.

**A large partition is shared among tasks** (key_shuffle.py): they read its entries side by side, a shuffle brings the
keys of one bucket together, and tasks rewrite the items side by side. The driver has the claim and a pin meanwhile. It
commits the objects that tasks have written, in the order of their offsets, by the code that commits in one process. As
many objects as tasks run at a time are written ahead of the one that is committed next, in vain if that is refused.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import GIB
from streamhouse.core.randomness import Randomness
from streamhouse.core.topic_config import TopicConfig
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.claims import PartitionClaim
from streamhouse.maintenance.compaction.commit import ItemCompaction
from streamhouse.maintenance.compaction.plan import CompactionItem
from streamhouse.maintenance.compaction.rewrite import Copied, NewCopy, PlanReads, RewrittenItem, indexed_reads
from streamhouse.maintenance.kept_pin import KeptPin
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor, KeyCompactorOptions, _Partition
from streamhouse.maintenance.key_compaction.looking import PlannedKeys
from streamhouse.maintenance.key_compaction.plan import KeyPlan, KeyRules, items_below
from streamhouse.maintenance.key_compaction.stats import KeyPassResult
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.spark.maintenance.jobs import ShuffleStage, SparkTasks, TaskFunction
from streamhouse.spark.maintenance.key_sharing import ItemOrder, KeyShuffle, WrittenItem, buckets_for
from streamhouse.spark.maintenance.tasks import TaskStores, Work

SHUFFLE_ABOVE_BYTES: Final = GIB
"""Below that, a task reads its partition in a few seconds, about as long as the stages of a shuffle take to begin."""
_MAX_PARTITIONS: Final = 16
"""Partitions at a time: the most that a KeyCompactor takes."""
_PIN_TTL_MS: Final = 60_000
_HOLD_EVERY_S: Final = 5.0
"""How often the driver looks at its claim while it waits for a task."""
_MAX_BUCKETS: Final = 1_024
"""Each has the keys of one map. A partition with more is left to one task, which takes as many rounds as it needs."""


class SparkKeyCompactor(KeyCompactor):
    """``owner`` names this driver and its tasks in claims."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        offload: Offload,
        clock: Clock,
        randomness: Randomness,
        owner: str,
        rules: KeyRules,
        tasks: SparkTasks,
        shuffle_above_bytes: int = SHUFFLE_ABOVE_BYTES,
    ) -> None:
        """A partition with more bytes than ``shuffle_above_bytes`` in its entries is shared among tasks."""
        at_a_time = min(_MAX_PARTITIONS, tasks.at_a_time)
        super().__init__(
            metadata=metadata,
            store=store,
            offload=offload,
            clock=clock,
            randomness=randomness,
            owner=owner,
            options=KeyCompactorOptions(rules=rules, max_parallel_partitions=at_a_time),
        )
        self._tasks = tasks
        self._shuffle_above_bytes = shuffle_above_bytes

    async def _work_on(self, partition: _Partition, first_look: PlannedKeys | None) -> None:
        if first_look is not None and self._is_shared(first_look.plan):
            owner = f"key compaction by {self._owner}"
            async with KeptPin(self._metadata, self._randomness.uuid(), owner=owner, ttl_ms=_PIN_TTL_MS):
                await super()._work_on(partition, first_look)
            return
        work = CompactKeys(
            key=partition.state.key, config=partition.config, owner=self._owner, rules=self._options.rules
        )
        done = await self._tasks.run(work)
        # The driver's pass counts the failure that is raised below by itself.
        done.stats.failures = done.stats.damaged = 0
        partition.stats.add(done.stats)
        partition.current.more |= done.more
        partition.current.read(0)
        for failure in done.failures:
            raise failure.error

    def _is_shared(self, plan: KeyPlan) -> bool:
        return (
            plan.clean_bytes + plan.dirty_bytes > self._shuffle_above_bytes
            and buckets_for(_record_count(plan), max_keys=self._options.rules.max_keys) <= _MAX_BUCKETS
        )

    async def _compact(self, partition: _Partition, plan: KeyPlan, claim: PartitionClaim) -> None:
        """In tasks that share the partition."""
        rules = self._options.rules
        items = items_below(plan, plan.dirty[-1].end_offset + 1, rules)
        partition.current.expect_bytes(plan.clean_bytes + plan.dirty_bytes)
        partition.current.expect(items)
        record_count = _record_count(plan)
        shuffle = KeyShuffle(
            cluster=self._tasks.cluster,
            key=plan.key,
            secret=self._new_secret(),
            buckets=max(buckets_for(record_count, max_keys=rules.max_keys), min(len(items), self._tasks.at_a_time)),
            record_count=record_count,
            item_ends=tuple(item.end_offset for item in items),
        )
        shuffled = await asyncio.to_thread(self._tasks.shuffle, *_stages(shuffle, items))
        sharing = _Sharing(
            partition=partition, plan=plan, shuffle=shuffle, shuffled=shuffled, copied=self._counting(partition, claim)
        )
        await self._commit_in_order(sharing, items)
        partition.stats.partitions += 1

    async def _commit_in_order(self, sharing: _Sharing, items: Sequence[CompactionItem]) -> None:
        """Tasks write the next items meanwhile."""
        waiting = iter(enumerate(items))
        under_way: deque[tuple[CompactionItem, asyncio.Task[WrittenItem]]] = deque()
        try:
            while True:
                while len(under_way) < self._tasks.at_a_time and (following := next(waiting, None)) is not None:
                    number, item = following
                    under_way.append((item, asyncio.create_task(self._write(sharing, number, item))))
                if not under_way:
                    return
                item, task = under_way[0]
                await self._commit(sharing, item, task)
                under_way.popleft()
        finally:
            for _, task in under_way:
                task.cancel()
            await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)

    async def _write(self, sharing: _Sharing, number: int, item: CompactionItem) -> WrittenItem:
        partition, plan = sharing.partition, sharing.plan
        order = ItemOrder(
            item=item,
            needed=self._is_needed(plan, item),
            now_ms=partition.now_ms,
            delete_retention_ms=partition.config.delete_retention_ms,
            buckets=sharing.shuffle.buckets,
        )
        written = await self._tasks.run_shuffled(_WRITE, order, sharing.shuffled, number)
        assert isinstance(written, WrittenItem)
        return written

    async def _commit(self, sharing: _Sharing, item: CompactionItem, task: asyncio.Task[WrittenItem]) -> None:
        partition = sharing.partition
        while not (await asyncio.wait([task], timeout=_HOLD_EVERY_S))[0]:
            await sharing.copied(0)
        written = task.result()
        await sharing.copied(written.read_bytes)
        committing = _WrittenByTask(
            written.rewritten,
            metadata=self._metadata,
            store=self._store,
            offload=self._offload,
            randomness=self._randomness,
        )
        await committing.run(item, stats=partition.stats, copied=sharing.copied)
        partition.stats.count(written.counts)
        partition.stats.keys += written.keys
        partition.current.item_done()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    """A partition while tasks share it."""

    partition: _Partition
    plan: KeyPlan
    shuffle: KeyShuffle
    shuffled: Any
    copied: Copied


class _WrittenByTask(ItemCompaction):
    """Commits the object that a task has written. There is no other one: what is refused is for the next pass."""

    def __init__(self, rewritten: RewrittenItem | None, **given: Any) -> None:
        super().__init__(**given)
        self._rewritten = rewritten

    async def _rewrite(
        self, item: CompactionItem, copied: Copied, new_copy: NewCopy, plan_reads: PlanReads = indexed_reads
    ) -> RewrittenItem | None:
        return self._rewritten


_STAGES: Final = "streamhouse.spark.maintenance.key_shuffle"
"""Its functions run in tasks; the driver does not import it."""
_WRITE: Final = TaskFunction(module=_STAGES, name="write_item", payload=b"")


def _stages(shuffle: KeyShuffle, items: Sequence[CompactionItem]) -> tuple[list[bytes], list[ShuffleStage]]:
    """The inputs of the first stage's tasks, and both stages."""
    payload = pickle.dumps(shuffle)
    inputs = [pickle.dumps((number, item), pickle.HIGHEST_PROTOCOL) for number, item in enumerate(items)]
    functions = {"map_range": shuffle.buckets, "reduce_bucket": len(items)}
    return inputs, [
        ShuffleStage(function=TaskFunction(module=_STAGES, name=name, payload=payload), partitions=partitions)
        for name, partitions in functions.items()
    ]


def _record_count(plan: KeyPlan) -> int:
    return sum(entry.record_count for entry in (*plan.clean, *plan.dirty))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactKeys(Work[KeyPassResult]):
    doing = "compacting keys"
    key: PartitionKey
    config: TopicConfig
    owner: str
    rules: KeyRules

    async def run(self, stores: TaskStores) -> KeyPassResult:
        compactor = KeyCompactor(
            metadata=stores.metadata,
            store=stores.objects,
            offload=stores.offload,
            clock=stores.clock,
            randomness=stores.randomness,
            owner=self.owner,
            options=KeyCompactorOptions(rules=self.rules),
        )
        pin_id = stores.randomness.uuid()
        async with KeptPin(stores.metadata, pin_id, owner=f"key compaction by {self.owner}", ttl_ms=_PIN_TTL_MS):
            return await compactor.compact_once({self.key: self.config})
