"""How works reach tasks and how answers come back: small pickles, errors of ours, the check of the stores."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession
from spark_pass_ground import Cluster, keys_of, passes_on, planned_item

from streamhouse.core.errors import (
    CompactionConflict,
    DamagedObject,
    InvalidSetting,
    PassIncomplete,
    StoreMisconfigured,
    StreamHouseError,
)
from streamhouse.core.randomness import SystemRandomness
from streamhouse.maintenance.compaction.plan import CompactionItem
from streamhouse.objectstore.metering import Meter
from streamhouse.objectstore.opening import StoreOptions
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.definitions.service import place_of
from streamhouse.spark.maintenance.compaction import CompactItem
from streamhouse.spark.maintenance.jobs import SparkTasks, check_master, reason_of, task_cluster, works_at_a_time
from streamhouse.spark.maintenance.tasks import TaskAnswer, TaskCluster, dump, load, run_works

from maintained_cluster import local_cluster  # isort: skip  # found by the ground

DAMAGED = DamagedObject(
    where="orders-0", base_offset=3, end_offset=5, object_key="k", byte_offset=7, byte_length=9, problem="bad CRC"
)
REMOTE = StoreAddress(
    metadata_url="postgresql://host/db",
    store_url="s3://bucket",
    store=StoreOptions(create=False),
    request_timeout_ms=1,
    retry_deadline_ms=1,
)


@pytest.fixture
def local(tmp_path: Path) -> Cluster:
    return local_cluster(tmp_path / "data")


@pytest.mark.parametrize("error", [DAMAGED, CompactionConflict("changed"), StreamHouseError("why", hint="what to do")])
def test_an_error_comes_back_with_its_class_and_fields(error: StreamHouseError) -> None:
    found = load(dump(TaskAnswer(error=error))).error
    assert type(found) is type(error)
    assert vars(found) == vars(error)
    assert str(found) == str(error)


async def test_a_work_is_a_small_pickle(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        item = await planned_item(passes, "orders")
    largest = CompactionItem(key=item.key, sources=item.sources * 334, worth=item.worth)
    assert len(largest.sources) > 2_000
    assert len(pickle.dumps(CompactItem(item=largest))) < 1 << 20


# The stores of a task.


async def compact_in(cluster: Cluster, stores_of_tasks: TaskCluster, spark: SparkSession) -> None:
    """Compact an item of ``cluster`` in a task that believes to work for ``stores_of_tasks``."""
    tasks = SparkTasks(spark, stores_of_tasks, meter=Meter(), randomness=SystemRandomness())
    async with passes_on(cluster, spark) as passes, tasks:
        await tasks.run(CompactItem(item=await planned_item(passes, "orders")))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"cluster_id": UUID(int=7)}, "sees the metadata of cluster"),
        ({"mark": b"another"}, "finds another object store under file://"),
    ],
)
async def test_r24_a_task_that_sees_other_stores_than_the_driver_does_nothing(
    local: Cluster, spark: SparkSession, wrong: dict[str, object], words: str
) -> None:
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        stores = passes.stores
        right = await task_cluster(place_of(local.settings).address, stores.metadata, stores.objects)
    with pytest.raises(StoreMisconfigured, match=words):
        await compact_in(local, replace(right, **wrong), spark)  # type: ignore[arg-type]
    assert len(await local.referenced("orders")) == 6


# What Spark says.


def test_the_reason_is_the_last_line_of_the_task_s_traceback() -> None:
    text = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
ValueError: no such thing
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""
    assert reason_of(text) == "ValueError: no such thing"


def test_the_reason_is_spark_s_own_line_where_no_python_failed() -> None:
    text = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job 3 cancelled
\tat org.apache.spark.x(y.scala:1)
"""
    assert reason_of(text) == ": org.apache.spark.SparkException: Job 3 cancelled"
    assert reason_of("") == "it did not say why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpicklable(CompactItem):
    what: object


async def test_a_work_that_cannot_be_sent_is_one_failure(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        item = await planned_item(passes, "orders")
        with pytest.raises(PassIncomplete, match="compacting small objects: the Spark task failed: "):
            await passes.tasks.run(Unpicklable(item=item, what=lambda: None))
        assert (await passes.tasks.run(CompactItem(item=item))).error is None


# Masters.


@pytest.mark.parametrize(
    ("master", "changed", "words"),
    [
        ("sc://host:15002", {}, "cannot use the Connect server sc://host:15002"),
        ("spark://host:7077", {"metadata_url": "sqlite:///data/m.db"}, "sqlite:///data/m.db is on this machine alone"),
        ("local-cluster[1,1,1024]", {"store_url": "file:///data/objects"}, "file:///data/objects is on this machine"),
    ],
)
def test_a_master_whose_tasks_could_not_reach_the_stores_is_refused(
    master: str, changed: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidSetting, match=words.replace("[", r"\[")):
        check_master(master, replace(REMOTE, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("master", ["local", "local[*]", "spark://host:7077", "yarn", "k8s://https://host"])
def test_a_master_whose_tasks_reach_the_stores_is_taken(master: str) -> None:
    check_master(master, REMOTE)
    if master.startswith("local"):
        check_master(master, replace(REMOTE, metadata_url="sqlite:///m.db", store_url="file:///objects"))


@pytest.mark.parametrize(
    ("master", "cores", "expected"),
    [("local[2]", 2, 2), ("local[*]", 96, 64), ("spark://host:7077", 2, 64), ("local-cluster[1,1,1024]", 2, 64)],
)
def test_a_cluster_gets_more_works_than_the_cores_that_have_registered(master: str, cores: int, expected: int) -> None:
    assert works_at_a_time(master, cores) == expected


async def test_the_code_of_tasks_runs_without_spark_too(local: Cluster, spark: SparkSession) -> None:
    """What Spark calls takes bytes and returns bytes."""
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        item = await planned_item(passes, "orders")
        stores = passes.stores
        cluster = await task_cluster(place_of(local.settings).address, stores.metadata, stores.objects)
        (pickled,) = run_works(pickle.dumps(cluster), [pickle.dumps(CompactItem(item=item))])
        answer = load(pickled)
        assert (answer.error, answer.result.stats.runs) == (None, 1)
        assert await keys_of(passes, "orders") == [item.key]
