"""Pipelines that are run by hand, on a platform of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_ground import Pipeline, defined, make_topics
from pyspark.sql import SparkSession
from runner_ground import Shop
from sink_ground import options_of

from streamhouse.spark.definitions.service import Place
from streamhouse.testing.plugin import RunningStreamHouse


@pytest.fixture
def make(spark: SparkSession, streamhouse: RunningStreamHouse, tmp_path: Path) -> Callable[..., Pipeline]:
    make_topics(streamhouse, orders=2, out=2)
    place = Place(address_options=options_of(streamhouse.api), checkpoints=str(tmp_path / "checkpoints"))

    def made(**document: Any) -> Pipeline:
        return Pipeline(spark=spark, place=place, stored=defined(**document))

    return made


@pytest.fixture
def shop(streamhouse: RunningStreamHouse, tmp_path: Path, postgres_database: str) -> Iterator[Shop]:
    """Orders, and a file with a pipeline over them; whatever runner is left ends with the test."""
    opened = Shop(streamhouse, tmp_path, postgres_database)
    yield opened
    opened.close()
