"""Pipelines on a cluster whose machines have nothing of ours, which the runner brings along; on a Connect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster_ground import PYTHON, SITE, SOURCE, bare_site_packages, driver_environment
from pipeline_ground import PER_MINUTE, SCHEMA, make_topics, order, per_minute, rows_per_minute, write_orders
from sink_ground import values_of

from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import SparkCluster, start_spark_connect

COUNT = 600


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


def run_all(running: RunningStreamHouse, directory: Path, dsn: str, *more: str) -> None:
    make_topics(running, orders=2, out=2)
    write_orders(running, 0, COUNT)
    file = directory / "pipelines.yaml"
    file.write_text(definitions(dsn))
    data_dir = ["--data-dir", str(running.api.settings.data_dir)]
    for words in (["apply", "-f", str(file)], ["pipeline", "run", "--until-idle", *more]):
        ran = subprocess.run(
            [sys.executable, "-m", "streamhouse", *words, *data_dir],
            env=driver_environment(),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4_000:]
    assert rows_per_minute(dsn) == per_minute(range(COUNT)), ran.stderr[-4_000:]
    expected = sorted((order(number).value or b"").decode() for number in range(COUNT))
    assert running.run(values_of(running.api, "out")) == expected


def test_pipelines_run_on_a_cluster(
    spark_cluster: SparkCluster, streamhouse: RunningStreamHouse, tmp_path: Path, postgres_database: str
) -> None:
    bare = bare_site_packages(tmp_path / "bare")
    conf = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(bare),
        "spark.sql.shuffle.partitions": "2",
    }
    settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    run_all(streamhouse, tmp_path, postgres_database, "--master", spark_cluster.master_url, *settings)


def test_pipelines_run_on_a_connect_server(
    streamhouse: RunningStreamHouse, tmp_path: Path, postgres_database: str
) -> None:
    """Its own Python, which runs each batch's commit, has StreamHouse installed."""
    environment = {"PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": f"{SOURCE}{os.pathsep}{SITE}"}
    with start_spark_connect(environment=environment) as server:
        run_all(streamhouse, tmp_path, postgres_database, "--master", server.url)
