"""The ``stage`` fixture: coordinators on each metadata backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from group_stage import Stage

from streamhouse.broker.groups.options import GroupOptions
from streamhouse.core.clock import SystemClock
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import MetadataStore
from streamhouse.testing.services import PostgresService


@pytest.fixture
def group_options() -> GroupOptions:
    """Override in a test's module or class for other ones."""
    return GroupOptions()


@pytest.fixture
def slot_options() -> dict[str, int]:
    """Override likewise: the time-outs of Slots."""
    return {"store_timeout_ms": 2_000}


_FORGET = """
DELETE FROM group_offsets; DELETE FROM consumer_groups; DELETE FROM partitions; DELETE FROM topics;
UPDATE coordinator_slots SET lease_expires_at = 0;
"""


@pytest.fixture(scope="session")
def postgres_groups_database(postgres_service: PostgresService) -> str:
    """One for all tests of groups: each begins by emptying it, which is quicker than another database."""
    return postgres_service.create_database()


@pytest.fixture(params=["sqlite", "postgres"])
async def group_stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[MetadataStore]]:
    """Two instances on the same data, as two processes have them."""
    stores: list[MetadataStore]
    if request.param == "sqlite":
        from streamhouse.metadata.sqlite.store import SqliteMetadata

        path = tmp_path / "metadata.db"
        stores = [SqliteMetadata(path, clock=SystemClock(), randomness=SeededRandomness(n)) for n in (1, 2)]
    else:
        from streamhouse.metadata.postgres.store import PostgresMetadata

        dsn = request.getfixturevalue("postgres_groups_database")
        stores = [PostgresMetadata(dsn, randomness=SeededRandomness(n)) for n in (1, 2)]
    for store in stores:
        await store.open()
    if request.param == "postgres":
        service: PostgresService = request.getfixturevalue("postgres_service")
        service.psql(_FORGET, dsn=dsn)
    yield stores
    for store in stores:
        await store.close()


@pytest.fixture
async def stage(
    group_stores: list[MetadataStore], group_options: GroupOptions, slot_options: dict[str, int]
) -> AsyncIterator[Stage]:
    ready = Stage(group_stores, group_options, slot_options)
    yield ready
    await ready.close()
