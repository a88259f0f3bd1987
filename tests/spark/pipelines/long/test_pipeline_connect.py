"""A Connect server that has nothing of ours: what pipelines, tables and streams into topics do there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cluster_ground import PYTHON, SITE, SOURCE, bare_site_packages, driver_environment, run_driver
from deltalake import DeltaTable
from pipeline_ground import make_topics, order, write_orders
from sink_ground import values_of
from test_pipeline_cluster import COUNT, run_all

from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import SparkConnectService, start_spark_connect


@pytest.fixture
def bare_server(tmp_path: Path) -> Iterator[SparkConnectService]:
    bare = bare_site_packages(tmp_path / "bare", connect=True)
    with start_spark_connect(environment={"PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": str(bare)}) as server:
        yield server


class Tables:
    """Tables of a topic with orders, made and filled by the commands."""

    def __init__(self, running: RunningStreamHouse, directory: Path) -> None:
        make_topics(running, orders=2)
        write_orders(running, 0, COUNT)
        self._data_dir = str(running.api.settings.data_dir)
        self._directory = directory

    def fill(self, kind: str, server: SparkConnectService) -> subprocess.CompletedProcess[str]:
        path = str(self._directory / "lake" / kind)
        made = self._command("create", "--topic", "orders", "--format", kind, "--name", kind, "--path", path)
        assert made.returncode == 0, made.stderr
        return self._command("run", "--once", "--master", server.url, kind)

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "streamhouse", "table", *words, "--data-dir", self._data_dir],
            env=driver_environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


def test_pipelines_run_on_a_connect_server_that_has_nothing_of_ours(
    bare_server: SparkConnectService, streamhouse: RunningStreamHouse, tmp_path: Path, postgres_database: str
) -> None:
    run_all(streamhouse, tmp_path, postgres_database, "--master", bare_server.url)


def test_a_table_on_a_connect_server_that_has_nothing_of_ours(
    bare_server: SparkConnectService, streamhouse: RunningStreamHouse, tmp_path: Path
) -> None:
    """Parquet needs nothing but Arrow; the others' libraries do not travel, and it is said that they are missing."""
    tables = Tables(streamhouse, tmp_path)
    ran = tables.fill("parquet", bare_server)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    files = [str(file) for file in (tmp_path / "lake" / "parquet").glob("*.parquet")]
    assert sorted(pq.read_table(files)["id"].to_pylist()) == list(range(COUNT))
    refused = tables.fill("delta", bare_server)
    assert refused.returncode == 1
    assert "tables need the package deltalake (pip install 'streamhouse[tables]')" in refused.stderr


def test_a_delta_table_on_a_connect_server_that_has_our_packages(
    streamhouse: RunningStreamHouse, tmp_path: Path
) -> None:
    tables = Tables(streamhouse, tmp_path)
    environment = {"PYSPARK_PYTHON": str(PYTHON), "PYTHONPATH": f"{SOURCE}{os.pathsep}{SITE}"}
    with start_spark_connect(environment=environment) as server:
        ran = tables.fill("delta", server)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    found = DeltaTable(str(tmp_path / "lake" / "delta")).to_pyarrow_table()["id"].to_pylist()
    assert sorted(found) == list(range(COUNT))


def test_streams_into_topics_on_a_connect_server_that_has_nothing_of_ours(
    bare_server: SparkConnectService, streamhouse: RunningStreamHouse, tmp_path: Path, source_options: dict[str, str]
) -> None:
    make_topics(streamhouse, orders=2, **{"out-append": 1, "out-update": 1})
    write_orders(streamhouse, 0, COUNT)
    plan = {"remote": bare_server.url, "options": source_options, "checkpoints": str(tmp_path / "checkpoints")}
    answer = run_driver("write_connect.py", plan)
    assert answer == {"append": "ok", "update": "ok"}, json.dumps(answer, indent=2)
    expected = sorted((order(number).value or b"").decode() for number in range(COUNT))
    assert streamhouse.run(values_of(streamhouse.api, "out-append")) == expected
    assert streamhouse.run(values_of(streamhouse.api, "out-update")) == [str(COUNT // 2)] * 2
