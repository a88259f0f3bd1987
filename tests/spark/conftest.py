"""One Spark for all tests that need one: starting it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamhouse.spark.connection import close_connections
from streamhouse.spark.sessions import session
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.testing.services import SparkCluster, start_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores of this machine, on the tier-one compiler: no test here is long enough to earn back the second."""
    scratch = tmp_path_factory.mktemp("spark")
    running = session(
        master="local[2]",
        fast_start=True,
        config={
            "spark.driver.memory": "768m",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
        },
    )
    yield running
    running.stop()


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A master and two workers of one core each, all processes of their own."""
    with start_spark(workers=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _connections_of_this_test() -> Iterator[None]:
    """What a test opened in this process, on its own directory, ends with it."""
    yield
    close_connections()


@pytest.fixture
def streamhouse_options(tmp_path: Path) -> dict[str, Any]:
    """Many tests write records of 2023, which retention would delete some minutes after the start of the platform."""
    return {"data_dir": str(tmp_path / "streamhouse"), "maintenance_enabled": False}


@pytest.fixture
def source_options(streamhouse: RunningStreamHouse) -> dict[str, str]:
    """How Spark is told of the platform that runs for this test."""
    return {"dataDir": str(streamhouse.api.settings.data_dir)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
