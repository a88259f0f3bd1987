"""The ``ground`` of compaction tests: real metadata on each backend, objects in memory, time in the test's hands.

The metadata comes from the harness of the metadata tests, which lies in a folder of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "metadata"))

from compaction_ground import Ground
from harness import BACKENDS, POSTGRES_TEST_KIT, Backend, Place, PostgresPlace, SqlitePlace

from streamhouse.testing.services import PostgresService


@pytest.fixture(scope="session")
def compaction_database(postgres_service: PostgresService) -> str:
    """One migrated database for all tests of this folder, each of which begins by resetting it."""

    async def migrate(dsn: str) -> None:
        async with PostgresPlace(dsn).new_store(seed=0):
            pass

    dsn = postgres_service.create_database()
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, migrate(dsn)).result()
    postgres_service.psql(POSTGRES_TEST_KIT, dsn=dsn)
    return dsn


async def _on(place: Place) -> AsyncIterator[Ground]:
    store = place.new_store(seed=1)
    await store.open()
    backend = Backend(place, store)
    yield Ground(backend)
    await backend.close()


@pytest.fixture(params=BACKENDS)
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ground]:
    """On SQLite, then on PostgreSQL."""
    place: Place = SqlitePlace(tmp_path / "metadata.db")
    if request.param == "postgres":
        service: PostgresService = request.getfixturevalue("postgres_service")
        dsn: str = request.getfixturevalue("compaction_database")
        service.psql("SELECT test_reset()", dsn=dsn)
        place = PostgresPlace(dsn)
    async for made in _on(place):
        yield made


@pytest.fixture
async def sqlite_ground(tmp_path: Path) -> AsyncIterator[Ground]:
    """For tests whose subject is not the metadata store."""
    async for made in _on(SqlitePlace(tmp_path / "metadata.db")):
        yield made
