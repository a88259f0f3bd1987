"""Maintenance of a cluster that exists, beside its agents and without them; and one that does not exist is not made."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from streamhouse.app.maintenance_passes import MaintenancePasses, open_maintenance, run_pass
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import (
    InvalidRequest,
    MetadataMisconfigured,
    MetadataTooOld,
    StoreMisconfigured,
    StoreUnavailable,
    TopicNotFound,
)
from streamhouse.core.randomness import SystemRandomness
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.metadata.contract import Topic
from streamhouse.metadata.opening import open_metadata
from streamhouse.testing.services import PostgresService, S3Service

if (shared := str(Path(__file__).parents[1] / "cli")) not in sys.path:
    sys.path.append(shared)

from maintained_cluster import OLD_MS, Cluster, local_cluster, read_batches, remote_cluster

FEW = CompactionRules(min_entries=2)


@pytest.fixture(params=["sqlite and a directory", "postgresql and s3"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    if request.param == "sqlite and a directory":
        return local_cluster(tmp_path / "data")
    postgres: PostgresService = request.getfixturevalue("postgres_service")
    s3: S3Service = request.getfixturevalue("s3_service")
    return remote_cluster(tmp_path / "data", postgres, s3)


@pytest.fixture
def local(tmp_path: Path) -> Cluster:
    return local_cluster(tmp_path / "data")


def opened(cluster: Cluster) -> Any:
    return open_maintenance(cluster.settings, clock=SystemClock(), randomness=SystemRandomness())


async def end_of(cluster: Cluster, names: list[str] | None, work: Any) -> Any:
    return await run_pass(cluster.settings, names, work, clock=SystemClock(), randomness=SystemRandomness())


# From Python.


async def test_s2_16_compact_once_replaces_small_objects_and_readers_see_the_same_bytes(cluster: Cluster) -> None:
    await cluster.fill("orders", flushes=6, partitions=2)
    await cluster.fill("other", flushes=4)
    cluster.pass_time(2 * 3_600_000)  # a run of a few entries waits for an hour
    async with cluster.open() as sh:
        before = [await read_batches(sh, "orders", 0), await read_batches(sh, "orders", 1)]
        result = await sh.compact_once(["orders"])
        assert (result.stats.runs, result.stats.entries, result.failures) == (2, 12, ())
        assert [await read_batches(sh, "orders", 0), await read_batches(sh, "orders", 1)] == before
        assert (await sh.compact_once()).stats.entries == 4, "without names it takes all topics"
        assert (await sh.compact_once()).stats.runs == 0
    assert await cluster.read("orders", 1) == before[1], "a new agent, without caches, reads the same"
    assert len(await cluster.referenced("orders")) == 2


async def test_s2_16_compact_once_names_what_is_wrong_with_its_arguments(local: Cluster) -> None:
    await local.fill()
    async with local.open() as sh:
        with pytest.raises(TopicNotFound, match=r"'order' \(did you mean orders"):
            await sh.compact_once(["order"])
        with pytest.raises(InvalidRequest, match=r"not one name \(write \['orders'\]\)"):
            await sh.compact_once("orders")
        with pytest.raises(InvalidRequest, match="topic"):
            await sh.compact_once([7])
        assert (await sh.compact_once([])).stats.runs == 0
    with pytest.raises(InvalidRequest, match="closed"):
        await sh.compact_once()


# Beside an agent that runs.


async def test_s2_16_passes_of_another_process_are_seen_by_an_agent_that_runs(cluster: Cluster) -> None:
    await cluster.fill("orders")
    await cluster.fill("old", at_ms=OLD_MS)
    async with cluster.open() as sh:
        for name in ("orders", "old"):
            assert await sh.agent.wait_leading((await sh.topic(name)).partition_keys(), timeout_s=30)
        before = await read_batches(sh, "orders")
        async with opened(cluster) as maintenance:
            keys = (await sh.topic("orders")).partition_keys()
            done = await maintenance.compactor(FEW).compact_once(keys)
            assert done.stats.entries == 6
            assert await read_batches(sh, "orders") == before
            summary = await maintenance.retention().run()
            assert (summary.moved, summary.freed.records, summary.failed) == (1, 18, 0)
        assert await sh.list_offset("old", 0, at=-2) == 18
        sent = await sh.produce("orders", b"goes on", partition=0)
        assert (await sh.read("orders", 0, sent.offset))[0].value == b"goes on"


# A cluster that does not exist.


async def test_without_metadata_nothing_is_made_and_the_error_says_where_it_looked(local: Cluster) -> None:
    with pytest.raises(MetadataMisconfigured, match=f"no metadata in {local.settings.data_dir}/metadata.db"):
        async with opened(local):
            pass
    assert not local.settings.data_dir.exists()


async def test_an_empty_postgresql_database_stays_empty(
    tmp_path: Path, postgres_service: PostgresService, s3_service: S3Service
) -> None:
    cluster = remote_cluster(tmp_path / "data", postgres_service, s3_service)
    with pytest.raises(MetadataMisconfigured, match="no metadata in the database at"):
        async with opened(cluster):
            pass
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert "(0 rows)" in postgres_service.psql(tables, dsn=cluster.chosen["metadata_url"])


async def test_metadata_that_no_agent_has_used_is_not_bound_to_an_object_store(local: Cluster) -> None:
    settings = local.settings
    (settings.data_dir / "objects").mkdir(parents=True)
    async with open_metadata(settings.metadata.url, clock=SystemClock(), randomness=SystemRandomness()) as metadata:
        with pytest.raises(MetadataMisconfigured, match="no agent has run on it"):
            async with opened(local):
                pass
        assert await metadata.list_definitions("object-store") == []
    assert list((settings.data_dir / "objects").iterdir()) == []


async def test_a_directory_of_objects_that_is_missing_is_not_made(local: Cluster) -> None:
    await local.fill()
    objects = local.settings.data_dir / "objects"
    shutil.rmtree(objects)
    with pytest.raises(StoreMisconfigured, match=f"no object store in {objects}"):
        async with opened(local):
            pass
    assert not objects.exists()


async def test_r24_the_object_store_of_another_cluster_is_refused(local: Cluster, tmp_path: Path) -> None:
    other = local_cluster(tmp_path / "other")
    await local.fill()
    await other.fill()
    shutil.rmtree(local.settings.data_dir / "objects")
    shutil.copytree(other.settings.data_dir / "objects", local.settings.data_dir / "objects")
    with pytest.raises(StoreMisconfigured, match="holds the records of cluster"):
        async with opened(local):
            pass


async def test_r23_metadata_that_is_older_than_the_write_ahead_log_is_refused(local: Cluster, tmp_path: Path) -> None:
    await local.fill("orders")
    data_dir, backup = local.settings.data_dir, tmp_path / "backup.db"
    shutil.copy(data_dir / "metadata.db", backup)
    await local.fill("later")
    shutil.copy(backup, data_dir / "metadata.db")
    marks = data_dir / "objects" / "metadata-progress"
    shutil.rmtree(marks, ignore_errors=True)  # so that only the write-ahead log knows
    with pytest.raises(MetadataTooOld, match="older copy: the write-ahead log in"):
        async with opened(local):
            pass


# One pass of a process.


async def test_a_signal_ends_the_work_and_the_stores_are_closed(local: Cluster) -> None:
    await local.fill()
    seen: list[str] = []

    async def work(maintenance: MaintenancePasses, topics: list[Topic]) -> None:
        seen.extend(topic.name for topic in topics)
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            await maintenance.stores.metadata.now_ms()
            seen.append("closed in order")

    end = await end_of(local, None, work)
    assert (end.interrupted, end.error, seen) == (True, None, ["orders", "closed in order"])
    await asyncio.sleep(0)  # the cancellation does not go on outside
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_an_error_of_the_work_is_in_the_result_and_one_before_it_is_raised(local: Cluster) -> None:
    await local.fill()

    async def work(maintenance: MaintenancePasses, topics: list[Topic]) -> None:
        raise StoreUnavailable("gone")

    end = await end_of(local, ["orders"], work)
    assert isinstance(end.error, StoreUnavailable)
    assert not end.interrupted
    with pytest.raises(TopicNotFound, match="this cluster has orders"):
        await end_of(local, ["zzz"], work)
