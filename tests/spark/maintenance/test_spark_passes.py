"""P.4: the passes of maintenance with their steps in tasks of a local Spark do what one process does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_pass_ground import FEW, Cluster, entries_in, keys_of, passes_on

from streamhouse.core import topic_config
from streamhouse.core.errors import DamagedObject, InvalidRequest
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.verify import Finding, FindingKind, VerifyDepth, VerifyOptions, VerifyProgress
from streamhouse.testing.services import PostgresService, S3Service
from streamhouse.wire.records import Record

from maintained_cluster import HOUR_MS, OLD_MS, local_cluster, remote_cluster  # isort: skip  # found by the ground

BRIEF = VacuumOptions(writer_grace_ms=1_800_000, reader_grace_ms=300_000)


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


async def test_p_4_a_consumer_reads_the_same_bytes_after_compaction(cluster: Cluster, spark: SparkSession) -> None:
    await cluster.fill("orders", flushes=6, partitions=3)
    before = [await cluster.read("orders", partition) for partition in range(3)]
    progress: list[Any] = []
    async with passes_on(cluster, spark) as passes:
        keys = await keys_of(passes, "orders")
        done = await passes.compactor(FEW).compact_once(keys, on_progress=progress.append)
        assert (done.stats.runs, done.stats.entries, done.stats.objects_released) == (3, 18, 18)
        assert (done.failures, done.partitions_left, done.more) == ((), 0, False)
        assert done.stats.bytes_in > 0 < done.stats.bytes_out
        assert (await passes.compactor(FEW).compact_once(keys)).stats.runs == 0
        assert await passes.stores.metadata.list_claims() == []
        assert await passes.stores.metadata.list_pins() == []
    assert (progress[-1].partitions_done, progress[-1].items_done) == (3, 3)
    assert [await cluster.read("orders", partition) for partition in range(3)] == before
    assert len(await cluster.referenced("orders")) == 3


async def test_p_4_requests_of_tasks_are_in_the_costs(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        before = passes.stores.meter.read().request_cost_usd
        await passes.compactor(FEW).compact_once(await keys_of(passes, "orders"))
        # Six ranges are read and one object is put, all by the task.
        assert passes.stores.meter.read().request_cost_usd - before >= 0.005 / 1000


async def test_p_4_retention_moves_the_log_starts_that_are_due(cluster: Cluster, spark: SparkSession) -> None:
    await cluster.fill("old", partitions=3, at_ms=OLD_MS)
    await cluster.fill("new")
    async with passes_on(cluster, spark) as passes:
        summary = await passes.retention().run()
    assert (summary.partitions, summary.moved, summary.freed.records, summary.failed) == (4, 3, 54, 0)
    assert await cluster.referenced("old") == []
    assert len(await cluster.referenced("new")) == 6


async def test_p_4_vacuum_deletes_exactly_what_nothing_refers_to(cluster: Cluster, spark: SparkSession) -> None:
    await cluster.fill("orders", partitions=2)
    async with passes_on(cluster, spark) as passes:
        await passes.compactor(FEW).compact_once(await keys_of(passes, "orders"))
    cluster.pass_time(2 * HOUR_MS)
    garbage = await cluster.put_garbage()
    fresh = await cluster.put_fresh_upload()
    replaced = await cluster.objects() - garbage - fresh - set(await cluster.referenced("orders"))
    async with passes_on(cluster, spark) as passes:
        summary = await passes.vacuum(BRIEF).run()
        assert (summary.total.objects, summary.failed, summary.problems) == (len(replaced | garbage), 0, [])
        assert summary.records_left == 0
        assert (await passes.vacuum(BRIEF).run()).total.objects == 0
    assert await cluster.objects() == set(await cluster.referenced("orders")) | fresh


async def test_p_4_vacuum_keeps_what_a_pin_needs(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders")
    async with passes_on(local, spark) as passes:
        await passes.stores.metadata.create_pin(passes.randomness.uuid(), owner="reader", ttl_ms=10 * HOUR_MS)
        await passes.compactor(FEW).compact_once(await keys_of(passes, "orders"))
    local.pass_time(2 * HOUR_MS)
    before = await local.objects()
    async with passes_on(local, spark) as passes:
        assert (await passes.vacuum(BRIEF).run()).total.objects == 0
    assert await local.objects() == before


async def damage(cluster: Cluster, spark: SparkSession, name: str) -> str:
    """Flip one bit in the middle of the first entry's bytes. Returns the object's key."""
    async with passes_on(cluster, spark) as passes:
        (key, *_) = await keys_of(passes, name)
        (entry, *_) = await entries_in(passes, key)
    flip(cluster, entry.object_key, entry.byte_offset + entry.byte_length // 2)
    return entry.object_key


def flip(cluster: Cluster, key: str, byte_offset: int) -> None:
    path = Path(cluster.chosen["data_dir"]) / "objects" / key
    stored = bytearray(path.read_bytes())
    stored[byte_offset] ^= 1
    path.chmod(0o600)
    path.write_bytes(stored)


async def test_p_4_verify_finds_an_injected_damage_and_nothing_else(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders", partitions=3, flushes=3)
    told: list[Finding | VerifyProgress] = []
    async with passes_on(local, spark) as passes:
        summary = await passes.verifier(VerifyOptions(depth=VerifyDepth.DEEP), tell=told.append).run(["orders"])
        assert summary.is_healthy
        assert (summary.partitions, summary.entries) == (3, 9)
        assert summary.read_bytes > 0
        assert sum(isinstance(each, VerifyProgress) and each.is_done for each in told) == 3
    key = await damage(local, spark, "orders")
    told.clear()
    async with passes_on(local, spark) as passes:
        summary = await passes.verifier(VerifyOptions(), tell=told.append).run()
        assert await passes.stores.metadata.list_pins() == []
    found = [each for each in told if isinstance(each, Finding)]
    assert {each.object_key for each in found} == {key}
    assert summary.findings.total() == len(found) > 0


async def test_p_4_verify_tells_of_a_blob_s_header_once(local: Cluster, spark: SparkSession) -> None:
    """A blob has slices of many partitions, and each is verified by a task of its own."""
    await local.fill("orders", partitions=3, flushes=1)
    (key,) = set(await local.referenced("orders"))
    flip(local, key, 0)
    told: list[Finding | VerifyProgress] = []
    async with passes_on(local, spark) as passes:
        summary = await passes.verifier(VerifyOptions(), tell=told.append).run()
    assert summary.findings[FindingKind.BLOB_HEADER] == 1
    assert sum(isinstance(each, Finding) for each in told) == summary.findings.total()


async def test_p_4_a_quick_verification_is_refused(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders", flushes=1)
    async with passes_on(local, spark) as passes:
        with pytest.raises(InvalidRequest, match=r"run `streamhouse verify --quick`"):
            passes.verifier(VerifyOptions(depth=VerifyDepth.QUICK), tell=lambda told: None)


async def test_p_4_damage_that_a_task_meets_is_a_failure_of_its_partition(local: Cluster, spark: SparkSession) -> None:
    await local.fill("orders")
    await local.fill("other")
    await damage(local, spark, "orders")
    async with passes_on(local, spark) as passes:
        keys = [*await keys_of(passes, "orders"), *await keys_of(passes, "other")]
        done = await passes.compactor(FEW).compact_once(keys)
        (failure,) = done.failures
        assert isinstance(failure.error, DamagedObject)
        assert (failure.key, failure.error.base_offset) == (keys[0], 0)
        assert (done.stats.damaged, done.stats.failures, done.stats.runs) == (1, 1, 1)
    assert len(await local.referenced("other")) == 1


async def test_p_4_key_compaction_keeps_the_newest_record_of_each_key(cluster: Cluster, spark: SparkSession) -> None:
    async with cluster.open() as sh:
        await sh.create_topic("state", 2, configs={"cleanup.policy": "compact"})
        for number in range(4):
            for partition in range(2):
                records = [Record(key=b"%d" % each, value=b"%d" % number, timestamp_ms=OLD_MS) for each in range(5)]
                await sh.produce_batch("state", partition, records)
            await sh.flush()
    async with passes_on(cluster, spark) as passes:
        (topic,) = await passes.topics(["state"])
        configs = dict.fromkeys(topic.partition_keys(), topic_config.effective(topic.configs))
        done = await passes.key_compactor().compact_once(configs)
        assert (done.failures, done.stats.partitions, done.stats.superseded) == ((), 2, 20)
        assert await passes.stores.metadata.list_claims() == []
        assert await passes.stores.metadata.list_pins() == []
        for key in topic.partition_keys():
            compacted, newest = await entries_in(passes, key)
            assert (compacted.base_offset, compacted.end_offset, compacted.record_count) == (0, 14, 5)
            assert newest.record_count == 5
    async with cluster.open() as sh:
        for partition in range(2):
            found = list(await sh.read("state", partition, 0))
            assert [(each.offset, each.key, each.value) for each in found[:5]] == [
                (10 + number, b"%d" % number, b"2") for number in range(5)
            ]


async def test_p_4_tasks_that_share_a_partition_leave_what_one_task_leaves(
    cluster: Cluster, spark: SparkSession
) -> None:
    """Two topics with the same records: one is shuffled, the other not."""
    async with cluster.open() as sh:
        for name in ("shared", "alone"):
            await sh.create_topic(name, 1, configs={"cleanup.policy": "compact"})
            for number in range(6):
                records = [
                    Record(key=b"%d" % (each * number % 17), value=b"%d" % number, timestamp_ms=OLD_MS)
                    for each in range(40)
                ]
                await sh.produce_batch(name, 0, [*records, Record(key=b"gone", value=None, timestamp_ms=OLD_MS)])
                await sh.flush()
    async with passes_on(cluster, spark) as passes:
        done, entries = {}, {}
        for name, above_bytes in (("shared", 0), ("alone", 1 << 40)):
            (topic,) = await passes.topics([name])
            (key,) = topic.partition_keys()
            chosen = replace(passes, key_rules=KeyRules(max_sources=2), shuffle_above_bytes=above_bytes).key_compactor()
            done[name] = await chosen.compact_once({key: topic_config.effective(topic.configs)})
            assert done[name].failures == ()
            entries[name] = [
                (entry.base_offset, entry.end_offset, entry.record_count, entry.kind, entry.min_timestamp_ms)
                for entry in await entries_in(passes, key)
            ]
        assert entries["shared"] == entries["alone"]
        assert len(entries["shared"]) == 4
        stats = [done[name].stats for name in ("shared", "alone")]
        assert [(each.runs, each.superseded, each.keys, each.objects_released) for each in stats[:1]] == [
            (each.runs, each.superseded, each.keys, each.objects_released) for each in stats[1:]
        ]
        assert stats[0].superseded > 100
        assert await passes.stores.metadata.list_claims() == []
        assert await passes.stores.metadata.list_pins() == []
    async with cluster.open() as sh:
        shared, alone = [list(await sh.read(name, 0, 0)) for name in ("shared", "alone")]
        assert len(shared) > 40
        assert shared == alone
