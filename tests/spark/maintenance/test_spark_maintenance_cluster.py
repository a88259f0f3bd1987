"""P.4 on a real cluster of several processes, PostgreSQL and S3: the code travels, Spark tries a killed task again."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_ground import bare_site_packages, run_driver
from spark_pass_ground import Cluster

from streamhouse.testing.services import PostgresService, S3Service, SparkCluster
from streamhouse.wire.records import Record

from maintained_cluster import HOUR_MS, OLD_MS, remote_cluster  # isort: skip  # found by the ground


@pytest.fixture
def cluster(tmp_path: Path, postgres_service: PostgresService, s3_service: S3Service) -> Cluster:
    return remote_cluster(tmp_path / "data", postgres_service, s3_service)


def _flags(cluster: Cluster) -> dict[str, str]:
    """The settings by their keys: metadata_url is metadata.url, and data_dir is a key itself."""
    sections = ("metadata_", "store_")
    return {
        name.replace("_", ".", 1) if name.startswith(sections) else name: value
        for name, value in cluster.chosen.items()
    }


async def fill_with_keys(cluster: Cluster) -> None:
    async with cluster.open() as sh:
        for name in ("state", "shared"):
            await sh.create_topic(name, 1, configs={"cleanup.policy": "compact"})
            for number in range(4):
                records = [Record(key=b"%d" % each, value=b"%d" % number, timestamp_ms=OLD_MS) for each in range(5)]
                await sh.produce_batch(name, 0, records)
                await sh.flush()


async def test_p_4_every_pass_runs_on_a_cluster_whose_machines_have_no_streamhouse(
    spark_cluster: SparkCluster, cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.fill("orders", partitions=3)
    await cluster.fill("killed")
    await cluster.fill("old", at_ms=OLD_MS)
    await fill_with_keys(cluster)
    before = [await cluster.read("orders", 0), await cluster.read("orders", 2), await cluster.read("killed")]
    garbage = await cluster.put_garbage()
    cluster.pass_time(2 * HOUR_MS)
    bare = bare_site_packages(tmp_path / "bare")
    did = run_driver(
        "maintain_cluster.py",
        {
            "master": spark_cluster.master_url,
            "config": {
                "spark.driver.memory": "512m",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "spark.executorEnv.PYTHONPATH": str(bare),
            },
            "settings": _flags(cluster),
            "works": str(Path(__file__).parent),
            "marker": str(tmp_path / "killed-once"),
        },
        timeout_s=500,
    )
    assert did["at_a_time"] == 64
    assert (tmp_path / "killed-once").exists()
    assert did["killed"] == {"runs": 1, "recovered": 1, "errors": 0}
    assert (did["compacted"], did["superseded"], did["moved"]) == (4, 20, 1), (
        "three of orders, one of old; ten of each topic with keys"
    )
    # What the passes themselves have dereferenced waits for its grace; the upload that was lost sight of does not.
    assert did["deleted"] == 1
    assert (did["verified"], did["findings"], did["failures"]) == (7, 0, [])
    assert not garbage & await cluster.objects()
    assert [await cluster.read("orders", 0), await cluster.read("orders", 2), await cluster.read("killed")] == before
