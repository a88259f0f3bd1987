"""Retention on Spark: the pass of one process plans, and a task moves the log start of each partition that is due.

To move a log start drops the entries below it, up to millions of them, in many small steps. The planning reads little:
it stops at the first entry that stays. A size limit makes it count the entries of the partition, in the driver.

A move may be repeated and may be done twice at once: the log start only rises, and the topic's version is compared
again in the task.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.retention.plan import RetentionItem
from streamhouse.metadata.contract import MetadataStore
from streamhouse.spark.maintenance.jobs import SparkTasks
from streamhouse.spark.maintenance.tasks import TaskStores, Work


class SparkRetention(Retention):
    """For one pass: what it remembers of sizes does not count what tasks have dropped."""

    def __init__(self, *, metadata: MetadataStore, tasks: SparkTasks) -> None:
        super().__init__(metadata=metadata)
        self._tasks = tasks

    async def apply(self, item: RetentionItem) -> bool:
        return await self._tasks.run(MoveLogStart(item=item))


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveLogStart(Work[bool]):
    doing = "moving log starts"
    item: RetentionItem

    async def run(self, stores: TaskStores) -> bool:
        return await Retention(metadata=stores.metadata).apply(self.item)
