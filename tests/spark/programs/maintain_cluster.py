"""A driver that runs every pass of maintenance on a cluster, and has one worker killed in the middle of an item.

maintain_cluster.py '{"master": …, "config": {…}, "settings": {…}, "works": …, "marker": …}'

It prints what the passes did. ``works`` is the directory of faulty_works.py.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from streamhouse.app.maintenance_passes import open_maintenance
from streamhouse.cli.commands.spark_maintenance import SparkPasses
from streamhouse.core.clock import SystemClock
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.settings import load_settings
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.compaction.policy import compacted_logs, small_object_logs
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.verify import VerifyOptions
from streamhouse.spark import session
from streamhouse.spark.definitions.service import place_of
from streamhouse.spark.maintenance.jobs import SparkTasks, task_cluster

FEW = CompactionRules(min_entries=2)
BRIEF = VacuumOptions(writer_grace_ms=1_800_000, reader_grace_ms=300_000)


async def killed_item(passes: SparkPasses, plan: dict[str, Any]) -> dict[str, int]:
    """Compact the item of the topic "killed". Its worker dies once, and Spark itself tries again."""
    works = importlib.import_module("faulty_works")
    (topic,) = await passes.topics(["killed"])
    (planned,) = await passes.compactor(FEW).plan(topic.partition_keys())
    (item,) = planned.items
    done = await passes.tasks.run(works.FaultyCompactItem(item=item, step="begun", fault="kill", marker=plan["marker"]))
    return {"runs": done.stats.runs, "recovered": done.stats.recovered, "errors": int(done.error is not None)}


async def run_passes(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    settings, randomness = load_settings(flags=plan["settings"]).settings, SystemRandomness()
    async with open_maintenance(settings, clock=SystemClock(), randomness=randomness) as maintenance:
        stores = maintenance.stores
        cluster = await task_cluster(place_of(settings).address, stores.metadata, stores.objects)
        async with SparkTasks(spark, cluster, meter=stores.meter, randomness=randomness) as tasks:
            passes = SparkPasses(
                stores=stores,
                offload=maintenance.offload,
                clock=maintenance.clock,
                randomness=randomness,
                tasks=tasks,
            )
            killed = await killed_item(passes, plan)
            topics = await passes.topics()
            small = await passes.compactor(FEW).compact_once(small_object_logs(topics))
            shared = replace(passes, shuffle_above_bytes=0).key_compactor()
            keys = await shared.compact_once(compacted_logs(await passes.topics(["shared"])))
            keys = keys.plus(await passes.key_compactor().compact_once(compacted_logs(topics)))
            moved = await passes.retention().run()
            vacuumed = await passes.vacuum(BRIEF).run()
            verified = await passes.verifier(VerifyOptions(), tell=lambda told: None).run()
            return {
                "at_a_time": tasks.at_a_time,
                "killed": killed,
                "compacted": small.stats.runs,
                "superseded": keys.stats.superseded,
                "moved": moved.moved,
                "deleted": vacuumed.total.objects,
                "verified": verified.partitions,
                "findings": verified.findings.total(),
                "failures": [*map(str, (*small.failures, *keys.failures)), *moved.failures, *vacuumed.problems],
                "cost": stores.meter.read().request_cost_usd,
            }


def main(plan: dict[str, Any]) -> None:
    spark = session(master=plan["master"], fast_start=True, config=plan["config"])
    sys.path.insert(0, plan["works"])
    spark.sparkContext.addPyFile(str(Path(plan["works"]) / "faulty_works.py"))
    print(json.dumps(asyncio.run(run_passes(spark, plan))))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
