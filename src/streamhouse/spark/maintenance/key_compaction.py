"""Key compaction on Spark: the pass of one process looks and plans; a task compacts the keys of one partition.

The task claims the partition, recovers, plans again, maps and rewrites, exactly as one process does. All attempts of a
task claim under the driver's name. So a second attempt goes on where a killed one was, without waiting for its claim to
end. Two attempts at the same time do no harm: each item is committed under a condition, and the attempt that is refused
stops. What it leaves is for the next pass.

One task has the memory of one map of keys. A partition with more keys than that takes several rounds of its task. A
shuffle by the keys' hash, which would share one large partition among several tasks, is not built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.core.topic_config import TopicConfig
from streamhouse.log.offload import Offload
from streamhouse.maintenance.kept_pin import KeptPin
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor, KeyCompactorOptions, _Partition
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.maintenance.key_compaction.stats import KeyPassResult
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.spark.maintenance.jobs import SparkTasks
from streamhouse.spark.maintenance.tasks import TaskStores, Work

_MAX_PARTITIONS: Final = 16
"""Partitions at a time: the most that a KeyCompactor takes."""
_PIN_TTL_MS: Final = 60_000


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
    ) -> None:
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

    async def _work_on(self, partition: _Partition) -> None:
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
