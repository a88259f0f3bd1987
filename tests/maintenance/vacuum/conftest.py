"""A metadata store of each backend with its clock in the test's hands, and a bucket beside it, in memory or on disk."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.testing.services import PostgresService

TESTS = Path(__file__).parents[2]
for shared in (TESTS / "metadata", TESTS / "log" / "leased"):  # the harness of the contract's tests; a real leader
    if str(shared) not in sys.path:
        sys.path.append(str(shared))

from harness import BACKENDS, POSTGRES_TEST_KIT, Backend, Place, PostgresPlace, SqlitePlace  # noqa: E402
from vacuum_stage import Bucket, StoreClock  # noqa: E402


@pytest.fixture(scope="session")
def postgres_vacuum_database(postgres_service: PostgresService) -> str:
    """One migrated database for all tests of vacuum, each of which begins by resetting it."""

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
    dsn: str = request.getfixturevalue("postgres_vacuum_database")
    service.psql("SELECT test_reset()", dsn=dsn)
    return PostgresPlace(dsn)


@pytest.fixture
async def backend(place: Place) -> AsyncIterator[Backend]:
    store = place.new_store(seed=1)
    await store.open()
    ready = Backend(place, store)
    yield ready
    await ready.close()


@pytest.fixture
def memory_bucket(backend: Backend) -> Bucket:
    return Bucket(backend=backend, objects=MemoryStore(clock=StoreClock(backend)))


@pytest.fixture(params=["memory", "local"])
async def bucket(request: pytest.FixtureRequest, backend: Backend, tmp_path: Path) -> AsyncIterator[Bucket]:
    clock = StoreClock(backend)
    if request.param == "memory":
        yield Bucket(backend=backend, objects=MemoryStore(clock=clock))
        return
    root = tmp_path / "objects"
    async with await LocalStore.open(root, clock=clock, randomness=SeededRandomness(3)) as objects:
        yield Bucket(backend=backend, objects=objects, root=root)
