"""A real cluster of several processes, PostgreSQL and S3: the code reaches the executors, and every record Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_ground import bare_site_packages, fleet_settings, run_driver, spark_options
from source_ground import fill

from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import S3Service, SparkCluster

LEAD_TIMEOUT_S = 60


@pytest.fixture
def streamhouse_options(tmp_path: Path, postgres_database: str, s3_service: S3Service) -> dict[str, Any]:
    return fleet_settings(tmp_path / "agent", postgres_database, s3_service)


@pytest.fixture
def orders(streamhouse: RunningStreamHouse) -> RunningStreamHouse:
    """Two partitions with records in them."""
    api = streamhouse.api
    topic = streamhouse.run(api.create_topic("orders", 2))
    streamhouse.run(api.agent.wait_leading(topic.partition_keys(), timeout_s=LEAD_TIMEOUT_S))
    streamhouse.run(fill(api, "orders", 0, 2_000))
    streamhouse.run(fill(api, "orders", 1, 1_000))
    return streamhouse


def test_a_cluster_whose_machines_have_no_streamhouse_reads_a_topic(
    spark_cluster: SparkCluster, orders: RunningStreamHouse, streamhouse_options: dict[str, Any], tmp_path: Path
) -> None:
    bare = bare_site_packages(tmp_path / "bare")
    answer = run_driver(
        "read_cluster.py",
        {
            "master": spark_cluster.master_url,
            "config": {
                "spark.driver.memory": "512m",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "spark.executorEnv.PYTHONPATH": str(bare),
                "spark.sql.shuffle.partitions": "2",
            },
            "options": spark_options(streamhouse_options),
            "checkpoint": str(tmp_path / "checkpoint"),
        },
    )
    assert {number: row[:2] for number, row in answer["batch"].items()} == {
        "0": [2_000, sum(range(2_000))],
        "1": [1_000, sum(range(1_000))],
    }
    assert answer["streamed"] == answer["batch"]
    assert len({reader["pid"] for reader in answer["readers"]}) == 2, "both workers had tasks"
    homes = {reader["home"] for reader in answer["readers"]} - {""}
    assert homes, "a process that had read before ran a task again"
    assert all("/lib/streamhouse/" in home and "streamhouse-lib-" in home for home in homes)
