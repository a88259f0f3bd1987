"""What the tests particular to PostgreSQL share: a migrated database with the real clock, and a way to look inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import pytest
from scenes import Opener

from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.testing.services import PostgresService


@pytest.fixture(scope="session")
def migrated_template(postgres_service: PostgresService) -> str:
    async def migrate(dsn: str) -> None:
        async with PostgresMetadata(dsn, randomness=SeededRandomness(0)):
            pass

    dsn = postgres_service.create_database()
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(asyncio.run, migrate(dsn)).result()
    return dsn


@pytest.fixture
def dsn(postgres_service: PostgresService, migrated_template: str) -> Iterator[str]:
    """A migrated database of this test's own, with the real clock."""
    made = postgres_service.create_database(template=migrated_template)
    yield made
    postgres_service.drop_database(made)


@pytest.fixture
async def open_store(dsn: str) -> AsyncIterator[Opener]:
    """Opens a store on ``dsn``, or on another given; closed when the test ends."""
    opened: list[PostgresMetadata] = []

    async def open_one(address: str = dsn, **settings: Any) -> PostgresMetadata:
        store = PostgresMetadata(address, randomness=SeededRandomness(len(opened)), **settings)
        opened.append(store)
        await store.open()
        return store

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: Opener) -> PostgresMetadata:
    return await open_store()


@pytest.fixture
async def operator(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A plain connection to the same database."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()
