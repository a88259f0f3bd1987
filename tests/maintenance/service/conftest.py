"""The ``ground`` of the service's tests: real metadata on each backend, objects in memory, time held by the test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "metadata"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "compaction"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "key_compaction"))

from harness import BACKENDS, POSTGRES_TEST_KIT, Backend, Place, PostgresPlace, SqlitePlace
from service_ground import ServiceGround

from streamhouse.testing.services import PostgresService


@pytest.fixture(scope="session")
def service_database(postgres_service: PostgresService) -> str:
    """One migrated database for all tests of this folder, each of which begins by resetting it."""

    async def migrate(dsn: str) -> None:
        async with PostgresPlace(dsn).new_store(seed=0):
            pass

    dsn = postgres_service.create_database()
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, migrate(dsn)).result()
    postgres_service.psql(POSTGRES_TEST_KIT, dsn=dsn)
    return dsn


async def _on(place: Place) -> AsyncIterator[ServiceGround]:
    store = place.new_store(seed=1)
    await store.open()
    backend = Backend(place, store)
    made = ServiceGround(backend)
    yield made
    await made.close()
    await backend.close()


@pytest.fixture(params=BACKENDS)
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServiceGround]:
    """On SQLite, then on PostgreSQL."""
    place: Place = SqlitePlace(tmp_path / "metadata.db")
    if request.param == "postgres":
        service: PostgresService = request.getfixturevalue("postgres_service")
        dsn: str = request.getfixturevalue("service_database")
        service.psql("SELECT test_reset()", dsn=dsn)
        place = PostgresPlace(dsn)
    async for made in _on(place):
        yield made


@pytest.fixture
async def sqlite_ground(tmp_path: Path) -> AsyncIterator[ServiceGround]:
    """For tests whose subject is not the metadata store."""
    async for made in _on(SqlitePlace(tmp_path / "metadata.db")):
        yield made
