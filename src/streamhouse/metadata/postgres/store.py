"""The PostgreSQL metadata store: the areas put together, and what concerns the store as a whole.

Owns opening and closing, the clock and subscriptions. The plain areas come from the row layer (``metadata/rows``); the
SQL of the others is in the module of its area.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from streamhouse.core.randomness import Randomness
from streamhouse.metadata.changes import ChangeHub
from streamhouse.metadata.contract import Change, MetadataStore
from streamhouse.metadata.postgres.agents import PostgresAgents
from streamhouse.metadata.postgres.commits import PostgresCommits, PostgresIntents
from streamhouse.metadata.postgres.database import MAX_POOL_SIZE, Database
from streamhouse.metadata.postgres.groups import PostgresGroups
from streamhouse.metadata.postgres.leases import PostgresLeases
from streamhouse.metadata.postgres.listener import ChangeListener
from streamhouse.metadata.postgres.lookups import PostgresLookups
from streamhouse.metadata.postgres.migrate import migrate
from streamhouse.metadata.postgres.objects import PostgresObjects
from streamhouse.metadata.postgres.producers import PostgresProducers
from streamhouse.metadata.postgres.session import PostgresTx
from streamhouse.metadata.postgres.transfers import PostgresTransfers
from streamhouse.metadata.rows.compactions import CompactionRows
from streamhouse.metadata.rows.definitions import DefinitionRows
from streamhouse.metadata.rows.epochs import EpochRows
from streamhouse.metadata.rows.flushes import FlushRows
from streamhouse.metadata.rows.identity import IdentityRows
from streamhouse.metadata.rows.layer import Step
from streamhouse.metadata.rows.topics import TopicRows

T = TypeVar("T")

RETRY_DEADLINE_MS: Final = 30_000


class PostgresMetadata(
    PostgresCommits,
    PostgresLookups,
    PostgresProducers,
    PostgresLeases,
    PostgresTransfers,
    PostgresAgents,
    PostgresGroups,
    PostgresObjects,
    TopicRows,
    CompactionRows,
    PostgresIntents,
    FlushRows,
    DefinitionRows,
    EpochRows,
    IdentityRows,
    MetadataStore,
):
    _PRODUCT = "PostgreSQL"
    _VERSION = "current_setting('server_version')"

    def __init__(
        self,
        dsn: str,
        *,
        randomness: Randomness,
        retry_deadline_ms: int = RETRY_DEADLINE_MS,
        max_connections: int = MAX_POOL_SIZE,
    ) -> None:
        self._randomness = randomness
        self._database = Database(
            dsn, randomness=randomness, retry_deadline_ms=retry_deadline_ms, max_connections=max_connections
        )
        self._hub = ChangeHub()
        self._listener: ChangeListener | None = None
        self._latest_ms = 0

    async def open(self) -> None:
        async def prepare(connection: PostgresTx) -> None:
            await migrate(connection, where=self._database.where, randomness=self._randomness)

        self._hub = ChangeHub()
        await self._database.open(prepare)

    async def close(self) -> None:
        self._hub.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()
        await self._database.close()

    async def now_ms(self) -> int:
        # A step back can undo what has passed since the last tick; within this process not even that (R20).
        self._latest_ms = max(self._latest_ms, await self._database.fetchval("SELECT sh_tick()"))
        return self._latest_ms

    async def _query(self, step: Step[T]) -> T:
        return await self._database.call(step)

    async def _statement(self, step: Step[T]) -> T:
        return await self._database.call(step)

    async def _transact(self, step: Step[T]) -> T:
        return await self._database.transact(step)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Change]]:
        async with self._hub.subscribe() as changes:
            if self._database.is_open:
                if self._listener is None:
                    self._listener = ChangeListener(self._database, self._hub.publish, randomness=self._randomness)
                await self._listener.start()
            yield changes
