"""Pipelines on PostgreSQL and S3: on a cluster whose machines have nothing of ours, which the runner brings along; on a
Connect server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cluster_ground import (
    PYTHON,
    SITE,
    SOURCE,
    bare_site_packages,
    flags_of,
    fleet_settings,
    on_cluster,
    run_command,
)
from pipeline_ground import PER_MINUTE, SCHEMA, make_topics, order, per_minute, rows_per_minute, write_orders
from sink_ground import values_of

from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import PostgresService, S3Service, SparkCluster, start_spark_connect

COUNT = 600


@pytest.fixture
def streamhouse_options(tmp_path: Path, postgres_database: str, s3_service: S3Service) -> dict[str, Any]:
    return fleet_settings(tmp_path / "agent", postgres_database, s3_service)


@pytest.fixture
def target(postgres_service: PostgresService) -> str:
    """The database that a pipeline writes to: another than the platform's."""
    return postgres_service.create_database()


def definitions(dsn: str) -> str:
    return f"""\
pipelines:
  - name: per-minute
    sources:
      orders: {{schema: "{SCHEMA}", watermark: "at, 10 minutes"}}
    sql: "{PER_MINUTE}"
    output_mode: update
    trigger: available-now
    target:
      postgres: {{url: "{dsn}", table: per_minute, key: [minute, product]}}
  - name: copy
    sources: [orders]
    sql: SELECT key, value FROM orders
    trigger: available-now
    target: {{topic: out}}
"""


def run_all(running: RunningStreamHouse, settings: dict[str, Any], directory: Path, dsn: str, *where: str) -> None:
    """Define both pipelines and run them to the end of what there is; then the same after more orders."""
    make_topics(running, orders=2, out=2)
    file = directory / "pipelines.yaml"
    file.write_text(definitions(dsn))
    run_command("apply", "-f", str(file), *flags_of(settings))
    for first, count in ((0, COUNT), (COUNT, COUNT + 100)):
        write_orders(running, first, count)
        if first:  # what has finished is not wanted any more
            run_command("pipeline", "start", "per-minute", "copy", *flags_of(settings))
        run_command("pipeline", "run", "--until-idle", *where, *flags_of(settings))
        assert rows_per_minute(dsn) == per_minute(range(count))
        expected = sorted((order(number).value or b"").decode() for number in range(count))
        assert running.run(values_of(running.api, "out")) == expected


def test_pipelines_run_on_a_cluster(
    spark_cluster: SparkCluster,
    streamhouse: RunningStreamHouse,
    streamhouse_options: dict[str, Any],
    tmp_path: Path,
    target: str,
) -> None:
    where = on_cluster(spark_cluster.master_url, bare_site_packages(tmp_path / "bare"))
    run_all(streamhouse, streamhouse_options, tmp_path, target, *where)


def test_pipelines_run_on_a_connect_server(
    streamhouse: RunningStreamHouse, streamhouse_options: dict[str, Any], tmp_path: Path, target: str
) -> None:
    """Its own Python, which runs each batch's commit, has StreamHouse installed."""
    environment = {"PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": f"{SOURCE}{os.pathsep}{SITE}"}
    with start_spark_connect(environment=environment) as server:
        run_all(streamhouse, streamhouse_options, tmp_path, target, "--master", server.url)
