"""An Apache Kafka and a StreamHouse on each pair of stores, for all tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from parity_brokers import (
    ParityKafka,
    ParityStreamHouse,
    apache_kafka,
    streamhouse_on_postgres,
    streamhouse_on_sqlite,
)
from parity_stories import Story, StoryLog, told

from streamhouse.testing.services import PostgresService, S3Service


@pytest.fixture(scope="package")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ParityKafka]:
    with apache_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="package")
def on_kafka(kafka: ParityKafka) -> Callable[[Story], StoryLog]:
    """A story as Apache Kafka went through it, once."""
    return cache(lambda story: told(story, kafka))


@pytest.fixture(scope="package", params=["sqlite and a directory", "postgresql and s3"])
def streamhouse_broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ParityStreamHouse]:
    directory = tmp_path_factory.mktemp("streamhouse")
    if request.param == "sqlite and a directory":
        with streamhouse_on_sqlite(directory) as broker:
            yield broker
        return
    postgres: PostgresService = request.getfixturevalue("postgres_service")
    s3: S3Service = request.getfixturevalue("s3_service")
    with streamhouse_on_postgres(directory, postgres, s3) as broker:
        yield broker
