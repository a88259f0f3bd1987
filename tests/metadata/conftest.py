"""The ``backend`` fixture: every test that asks for it runs once on each metadata backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import BACKENDS, POSTGRES_TEST_CLOCK, Backend, Place, PostgresPlace, SqlitePlace

from streamhouse.testing.services import PostgresService


@pytest.fixture(scope="session")
def postgres_template(postgres_service: PostgresService) -> str:
    """A migrated database to copy: a copy is ready in a fraction of the time the migrations take."""

    async def migrate(dsn: str) -> None:
        async with PostgresPlace(dsn).new_store(seed=0):
            pass

    dsn = postgres_service.create_database()
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, migrate(dsn)).result()
    postgres_service.psql(POSTGRES_TEST_CLOCK, dsn=dsn)
    return dsn


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield SqlitePlace(tmp_path / "metadata.db")
        return
    service: PostgresService = request.getfixturevalue("postgres_service")
    dsn = service.create_database(template=request.getfixturevalue("postgres_template"))
    yield PostgresPlace(dsn)
    service.drop_database(dsn)


@pytest.fixture
async def backend(place: Place) -> AsyncIterator[Backend]:
    store = place.new_store(seed=1)
    await store.open()
    ready = Backend(place, store)
    yield ready
    await ready.close()
