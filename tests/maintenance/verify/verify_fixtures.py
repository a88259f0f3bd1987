"""The fixtures of a verification's world: on each metadata backend, with a way to damage its rows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "metadata"))  # the harness of the metadata's own tests

from harness import POSTGRES_TEST_KIT, PostgresPlace, SqlitePlace
from verify_world import PostgresRows, SqliteRows, World

from streamhouse.testing.services import PostgresService


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """On SQLite, in a file that the test may change behind the store's back."""
    path = tmp_path / "metadata.db"
    place = SqlitePlace(path)
    async with place.new_store(seed=1) as metadata:
        yield World(metadata, set_clock=place.set_clock, rows=SqliteRows(path))


@pytest.fixture(scope="session")
def verify_database(postgres_service: PostgresService) -> str:
    async def migrate(dsn: str) -> None:
        async with PostgresPlace(dsn).new_store(seed=0):
            pass

    dsn = postgres_service.create_database()
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, migrate(dsn)).result()
    postgres_service.psql(POSTGRES_TEST_KIT, dsn=dsn)
    return dsn


@pytest.fixture
async def postgres_world(postgres_service: PostgresService, verify_database: str) -> AsyncIterator[World]:
    postgres_service.psql("SELECT test_reset()", dsn=verify_database)
    place = PostgresPlace(verify_database)
    async with place.new_store(seed=1) as metadata:
        yield World(metadata, set_clock=place.set_clock, rows=PostgresRows(verify_database))
