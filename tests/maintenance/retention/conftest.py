"""The ``backend`` fixture of the metadata's contract suite, for passes on real stores."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamhouse.testing.services import PostgresService

sys.path.insert(0, str(Path(__file__).parents[2] / "metadata"))

from harness import BACKENDS, POSTGRES_TEST_KIT, Backend, Place, PostgresPlace, SqlitePlace


@pytest.fixture(scope="session")
def postgres_retention_database(postgres_service: PostgresService) -> str:
    """One migrated database for all tests of this folder, each of which begins by resetting it."""

    async def migrate(dsn: str) -> None:
        async with PostgresPlace(dsn).new_store(seed=0):
            pass

    dsn = postgres_service.create_database()
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, migrate(dsn)).result()
    postgres_service.psql(POSTGRES_TEST_KIT, dsn=dsn)
    return dsn


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "metadata.db")
    service: PostgresService = request.getfixturevalue("postgres_service")
    dsn: str = request.getfixturevalue("postgres_retention_database")
    service.psql("SELECT test_reset()", dsn=dsn)
    return PostgresPlace(dsn)


@pytest.fixture
async def backend(place: Place) -> AsyncIterator[Backend]:
    store = place.new_store(seed=1)
    await store.open()
    ready = Backend(place, store)
    yield ready
    await ready.close()
