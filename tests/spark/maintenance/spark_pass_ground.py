"""What tests of maintenance on Spark stand on: a cluster with records, and its passes with their steps in tasks."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from streamhouse.app.maintenance_passes import open_maintenance
from streamhouse.cli.commands.spark_maintenance import SparkPasses
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.maintenance.compaction.plan import CompactionItem, CompactionRules
from streamhouse.metadata.contract import Entry, ScanRange
from streamhouse.spark.definitions.service import place_of
from streamhouse.spark.maintenance.jobs import SparkTasks, task_cluster

if (shared := str(Path(__file__).parents[2] / "cli")) not in sys.path:
    sys.path.append(shared)

from maintained_cluster import Cluster

FEW = CompactionRules(min_entries=2)


@asynccontextmanager
async def passes_on(cluster: Cluster, spark: SparkSession) -> AsyncIterator[SparkPasses]:
    """The passes that `streamhouse spark …` runs, on a session that stays."""
    randomness = SystemRandomness()
    async with open_maintenance(cluster.settings, clock=SystemClock(), randomness=randomness) as maintenance:
        stores = maintenance.stores
        cluster_of_tasks = await task_cluster(place_of(cluster.settings).address, stores.metadata, stores.objects)
        async with SparkTasks(spark, cluster_of_tasks, meter=stores.meter, randomness=randomness) as tasks:
            yield SparkPasses(
                stores=stores,
                offload=maintenance.offload,
                clock=maintenance.clock,
                randomness=randomness,
                tasks=tasks,
            )


async def keys_of(passes: SparkPasses, name: str) -> list[PartitionKey]:
    (topic,) = await passes.topics([name])
    return list(topic.partition_keys())


async def entries_in(passes: SparkPasses, key: PartitionKey) -> list[Entry]:
    (page,) = await passes.stores.metadata.scan_entries([ScanRange(key=key, from_offset=0)], limit=1_000)
    return list(page.entries)


async def planned_item(passes: SparkPasses, name: str) -> CompactionItem:
    """The one item that compaction plans in a topic."""
    (plan,) = await passes.compactor(FEW).plan(await keys_of(passes, name))
    (item,) = plan.items
    return item
