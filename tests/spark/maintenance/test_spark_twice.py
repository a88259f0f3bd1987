"""P.4: a task that runs twice, that is killed or that fails half way does no harm: the conditional commit decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from faulty_works import EndlessWork, FaultyCompactItem
from pyspark.sql import SparkSession
from spark_pass_ground import FEW, Cluster, entries_in, keys_of, passes_on, planned_item

from streamhouse.cli.commands.spark_maintenance import SparkPasses
from streamhouse.core import topic_config
from streamhouse.core.errors import CompactionConflict, PassIncomplete
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.maintenance.retention.passes import RetentionOutcome
from streamhouse.maintenance.vacuum.candidates import horizon_of, listings, sort_page
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.spark.maintenance.compaction import CompactItem
from streamhouse.spark.maintenance.key_compaction import CompactKeys
from streamhouse.spark.maintenance.retention import MoveLogStart
from streamhouse.spark.maintenance.vacuum import DeletePage
from streamhouse.testing.services import PostgresService, S3Service
from streamhouse.wire.records import Record

from maintained_cluster import HOUR_MS, OLD_MS, local_cluster, remote_cluster  # isort: skip  # found by the ground


@pytest.fixture
def local(tmp_path: Path) -> Cluster:
    return local_cluster(tmp_path / "data")


@pytest.fixture(params=["sqlite and a directory", "postgresql and s3"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    if request.param == "sqlite and a directory":
        return local_cluster(tmp_path / "data")
    postgres: PostgresService = request.getfixturevalue("postgres_service")
    s3: S3Service = request.getfixturevalue("s3_service")
    return remote_cluster(tmp_path / "data", postgres, s3)


@pytest.fixture
async def orders(cluster: Cluster) -> AsyncIterator[bytes]:
    """A topic of one partition with six entries: what a consumer reads from it, before and after the test."""
    await cluster.fill("orders")
    before = await cluster.read("orders")
    yield before
    assert await cluster.read("orders") == before


async def check_compacted(passes: SparkPasses, key: PartitionKey) -> None:
    (entry,) = await entries_in(passes, key)
    assert (entry.base_offset, entry.end_offset, entry.record_count) == (0, 17, 18)
    assert await passes.stores.metadata.list_compactions() == []


@pytest.mark.usefixtures("orders")
async def test_p_4_an_item_that_two_tasks_compact_at_once_is_replaced_once(
    cluster: Cluster, spark: SparkSession
) -> None:
    async with passes_on(cluster, spark) as passes:
        item = await planned_item(passes, "orders")
        assert passes.tasks.at_a_time == 2
        both = await passes.tasks.run_all([CompactItem(item=item), CompactItem(item=item)])
        for done in both:
            assert done.error is None
            assert (done.stats.runs, done.stats.entries) == (1, 6)
        await check_compacted(passes, item.key)
        third = await passes.tasks.run(CompactItem(item=item))
        assert (third.error, third.stats.runs, third.read_bytes) == (None, 1, 0), "it finds its work done"


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("fault", ["kill", "raise"])
@pytest.mark.parametrize("step", ["rewritten", "begun", "applied"])
async def test_p_4_an_attempt_that_ends_after_any_step_is_finished_by_the_next(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, step: str, fault: str
) -> None:
    """On local[*] Spark does not try again, so the second attempt is sent here: the same pickle."""
    spark.sparkContext.addPyFile(str(Path(__file__).parent / "faulty_works.py"))
    async with passes_on(cluster, spark) as passes:
        item = await planned_item(passes, "orders")
        work = FaultyCompactItem(item=item, step=step, fault=fault, marker=str(tmp_path / "marker"))
        words = "the task fails when its item is " + step if fault == "raise" else "crashed|exited|EOF"
        with pytest.raises(PassIncomplete, match=words):
            await passes.tasks.run(work)
        assert len(await passes.stores.metadata.list_compactions()) == (step == "begun")
        done = await passes.tasks.run(work)
        assert done.error is None
        assert (done.stats.runs, done.stats.entries) == (1, 6)
        assert done.stats.recovered == (step == "begun")
        assert bool(done.read_bytes) == (step == "rewritten"), "what was begun is not written again"
        await check_compacted(passes, item.key)


@pytest.mark.usefixtures("orders")
async def test_p_4_what_a_killed_attempt_has_uploaded_is_vacuumed(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    spark.sparkContext.addPyFile(str(Path(__file__).parent / "faulty_works.py"))
    async with passes_on(cluster, spark) as passes:
        item = await planned_item(passes, "orders")
        work = FaultyCompactItem(item=item, step="rewritten", fault="kill", marker=str(tmp_path / "marker"))
        with pytest.raises(PassIncomplete):
            await passes.tasks.run(work)
        await passes.tasks.run(work)
    assert len(await cluster.objects()) == 8, "six sources, the object that was lost sight of, and the new one"
    cluster.pass_time(2 * HOUR_MS)
    async with passes_on(cluster, spark) as passes:
        await passes.vacuum(brief()).run()
    assert await cluster.objects() == set(await cluster.referenced("orders"))


def brief() -> VacuumOptions:
    return VacuumOptions(writer_grace_ms=1_800_000, reader_grace_ms=300_000)


async def test_p_4_r17_an_item_whose_entries_have_changed_is_refused(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        item = await planned_item(passes, "orders")
        await passes.stores.metadata.advance_log_start(item.key, 9)
        done = await passes.tasks.run(CompactItem(item=item))
        assert isinstance(done.error, CompactionConflict)
        assert len(await entries_in(passes, item.key)) == 3
        assert await passes.stores.metadata.list_compactions() == []


async def test_p_4_a_log_start_that_two_tasks_move_is_moved_once(cluster: Cluster, spark: SparkSession) -> None:
    await cluster.fill("old", at_ms=OLD_MS)
    async with passes_on(cluster, spark) as passes:
        steps = [step async for step in passes.retention().steps(plan_only=True)]
        (item,) = [step.item for step in steps if step.outcome is RetentionOutcome.PLANNED]
        assert item is not None
        work = MoveLogStart(item=item)
        assert await passes.tasks.run_all([work, work]) == [True, True]
        (state,) = await passes.stores.metadata.get_partitions([item.key])
        assert (state.log_start_offset, state.high_watermark) == (18, 18)
        assert await entries_in(passes, item.key) == []


async def test_p_4_r24_a_page_that_two_tasks_vacuum_loses_nothing_that_is_referenced(
    cluster: Cluster, spark: SparkSession
) -> None:
    await cluster.fill("orders")
    cluster.pass_time(2 * HOUR_MS)
    garbage = await cluster.put_garbage()
    kept = set(await cluster.referenced("orders"))
    async with passes_on(cluster, spark) as passes:
        metadata, objects = passes.stores.metadata, passes.stores.objects
        horizon_ms = horizon_of(await metadata.now_ms(), HOUR_MS, [])
        found = [
            info
            for range_ in listings(horizon_ms)
            async for info in objects.list(
                range_.prefix, start_after=range_.start_after, stop_before=range_.stop_before
            )
        ]
        page = sort_page(found, horizon_ms=horizon_ms)
        assert {suspect.key for suspect in page.suspects} == kept | garbage
        early = await passes.tasks.run(DeletePage(page=page))
        assert early.summary.total.objects <= 1, "the horizon is not raised yet"
        await metadata.raise_gc_horizon(horizon_ms)
        await passes.tasks.run_all([DeletePage(page=page), DeletePage(page=page)])
    assert await cluster.objects() == kept


async def test_p_4_a_partition_whose_keys_two_tasks_compact_at_once_keeps_the_newest_records(
    cluster: Cluster, spark: SparkSession
) -> None:
    async with cluster.open() as sh:
        await sh.create_topic("state", 1, configs={"cleanup.policy": "compact"})
        for number in range(6):
            records = [Record(key=b"%d" % each, value=b"%d" % number, timestamp_ms=OLD_MS) for each in range(5)]
            await sh.produce_batch("state", 0, records)
            await sh.flush()
    async with passes_on(cluster, spark) as passes:
        (topic,) = await passes.topics(["state"])
        (key,) = topic.partition_keys()
        config = topic_config.effective(topic.configs)
        work = CompactKeys(key=key, config=config, owner="spark-test", rules=KeyRules())
        both = await passes.tasks.run_all([work, work])
        assert [done.failures for done in both] == [(), ()]
        again = await passes.tasks.run(work)
        assert again.failures == ()
        compacted, newest = await entries_in(passes, key)
        assert (compacted.base_offset, compacted.end_offset, compacted.record_count) == (0, 24, 5)
        assert newest.record_count == 5
        assert await passes.stores.metadata.list_compactions() == []
        assert await passes.stores.metadata.list_claims() == []


async def test_p_4_a_pass_that_is_cancelled_ends_its_tasks(local: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        compactor = passes.compactor(FEW)
        keys = await keys_of(passes, "orders")
        sent, submit = asyncio.Event(), passes.tasks._submit
        loop = asyncio.get_running_loop()

        def submit_and_tell(*given: Any) -> Any:
            loop.call_soon_threadsafe(sent.set)
            return submit(*given)

        passes.tasks._submit = submit_and_tell  # type: ignore[method-assign]
        running = asyncio.create_task(compactor.compact_once(keys))
        await sent.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert spark.sparkContext.statusTracker().getActiveJobsIds() == []
        assert await passes.stores.metadata.list_claims() == []
        assert await passes.stores.metadata.list_pins() == []


async def test_p_4_a_task_that_is_cancelled_ends(local: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    spark.sparkContext.addPyFile(str(Path(__file__).parent / "faulty_works.py"))
    await local.fill("orders", flushes=1)
    marker = tmp_path / "marker"
    async with passes_on(local, spark) as passes:
        running = asyncio.create_task(passes.tasks.run(EndlessWork(marker=str(marker))))
        await asyncio.to_thread(wait_for, marker)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)
