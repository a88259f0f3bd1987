"""One Spark for all tests that need one: starting it takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamhouse.spark.connection import close_connections
from streamhouse.spark.session import session
from streamhouse.testing.plugin import RunningStreamHouse


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


@pytest.fixture(autouse=True)
def _connections_of_this_test() -> Iterator[None]:
    """What a test opened in this process, on its own directory, ends with it."""
    yield
    close_connections()


@pytest.fixture
def source_options(streamhouse: RunningStreamHouse) -> dict[str, str]:
    """How Spark is told of the platform that runs for this test."""
    return {"dataDir": str(streamhouse.api.settings.data_dir)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
