"""The PostgreSQL metadata store: the areas put together, and what concerns the store as a whole.

Owns opening and closing, identity, the clock, the durability binding and subscriptions. The SQL of everything else is
in the module of its area.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

from streamhouse.core.errors import DurabilityMismatch
from streamhouse.core.randomness import Randomness
from streamhouse.metadata import checks
from streamhouse.metadata.changes import ChangeHub
from streamhouse.metadata.contract import NEVER_MS, Change, ClusterInfo, Durability, MetadataStore
from streamhouse.metadata.postgres.agents import PostgresAgents
from streamhouse.metadata.postgres.commits import PostgresCommits
from streamhouse.metadata.postgres.compactions import PostgresCompactions
from streamhouse.metadata.postgres.database import MAX_POOL_SIZE, Database
from streamhouse.metadata.postgres.definitions import PostgresDefinitions
from streamhouse.metadata.postgres.flushes import PostgresFlushes
from streamhouse.metadata.postgres.groups import PostgresGroups
from streamhouse.metadata.postgres.intents import PostgresIntents
from streamhouse.metadata.postgres.leases import PostgresLeases
from streamhouse.metadata.postgres.listener import ChangeListener
from streamhouse.metadata.postgres.lookups import PostgresLookups
from streamhouse.metadata.postgres.migrate import migrate
from streamhouse.metadata.postgres.objects import PostgresObjects, PostgresPinsAndClaims
from streamhouse.metadata.postgres.rows import plain_uuid
from streamhouse.metadata.postgres.session import Connection, Row
from streamhouse.metadata.postgres.topics import PostgresTopics
from streamhouse.metadata.postgres.transfers import PostgresTransfers

RETRY_DEADLINE_MS: Final = 30_000
_INFO: Final = """
SELECT s.cluster_id, s.durability, s.wal_id, s.gc_horizon_ms, current_setting('server_version') AS server,
       (SELECT max(m.version) FROM schema_migrations AS m) AS schema_version
FROM store_info AS s
"""
# Leases that would never expire end with the binding that they stood for.
_END_LEASES: Final = (
    "UPDATE coordinator_slots SET lease_expires_at = sh_now_ms() WHERE lease_expires_at >= $1",
    """WITH held AS (
           SELECT l.topic, l.partition_id FROM partition_leases AS l WHERE l.lease_expires_at >= $1
           ORDER BY l.topic, l.partition_id FOR UPDATE
       )
       UPDATE partition_leases AS l SET lease_expires_at = sh_now_ms()
       FROM held AS h WHERE l.topic = h.topic AND l.partition_id = h.partition_id""",
)


class PostgresMetadata(
    PostgresTopics,
    PostgresCommits,
    PostgresLookups,
    PostgresLeases,
    PostgresTransfers,
    PostgresAgents,
    PostgresGroups,
    PostgresCompactions,
    PostgresObjects,
    PostgresPinsAndClaims,
    PostgresIntents,
    PostgresFlushes,
    PostgresDefinitions,
    MetadataStore,
):
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
        async def prepare(connection: Connection) -> None:
            await migrate(connection, where=self._database.where, randomness=self._randomness)

        self._hub = ChangeHub()
        await self._database.open(prepare)

    async def close(self) -> None:
        self._hub.close()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()
        await self._database.close()

    async def cluster_info(self) -> ClusterInfo:
        return await self._database.call(_read_info)

    async def now_ms(self) -> int:
        # A step back can undo what has passed since the last tick; within this process not even that (R20).
        self._latest_ms = max(self._latest_ms, await self._database.fetchval("SELECT sh_tick()"))
        return self._latest_ms

    async def bind_durability(self, durability: Durability, wal_id: UUID | None) -> ClusterInfo:
        checks.check_binding(durability, wal_id)

        async def work(connection: Connection) -> ClusterInfo:
            await connection.execute(
                "UPDATE store_info SET durability = $1, wal_id = $2 WHERE durability IS NULL", str(durability), wal_id
            )
            info = await _read_info(connection)
            if (info.durability, info.wal_id) != (durability, wal_id):
                raise DurabilityMismatch(
                    f"the metadata in {self._database.where} is bound to {_binding(info.durability, info.wal_id)}, "
                    f"not to {_binding(durability, wal_id)}"
                )
            return info

        return await self._database.transact(work)

    async def unbind_durability(self, wal_id: UUID | None) -> ClusterInfo:
        async def work(connection: Connection) -> ClusterInfo:
            await connection.execute("SELECT 1 FROM store_info FOR UPDATE")
            info = await _read_info(connection)
            if info.durability is None:
                return info
            if info.wal_id != wal_id:
                raise DurabilityMismatch(
                    f"the metadata in {self._database.where} is bound to {_binding(info.durability, info.wal_id)}, "
                    f"not to WAL {wal_id}"
                )
            await connection.execute("UPDATE store_info SET durability = NULL, wal_id = NULL")
            for statement in _END_LEASES:
                await connection.execute(statement, NEVER_MS)
            return await _read_info(connection)

        return await self._database.transact(work)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Change]]:
        async with self._hub.subscribe() as changes:
            if self._database.is_open:
                if self._listener is None:
                    self._listener = ChangeListener(self._database, self._hub.publish, randomness=self._randomness)
                await self._listener.start()
            yield changes


async def _read_info(connection: Connection) -> ClusterInfo:
    row = await connection.fetchrow(_INFO)
    assert row is not None
    return _to_info(row)


def _to_info(row: Row) -> ClusterInfo:
    wal_id = row["wal_id"]
    return ClusterInfo(
        cluster_id=plain_uuid(row["cluster_id"]),
        durability=None if row["durability"] is None else Durability(row["durability"]),
        wal_id=None if wal_id is None else plain_uuid(wal_id),
        gc_horizon_ms=row["gc_horizon_ms"],
        schema_version=row["schema_version"],
        backend=f"PostgreSQL {row['server'].split()[0]}",
    )


def _binding(durability: Durability | None, wal_id: UUID | None) -> str:
    return f"WAL {wal_id}" if durability is Durability.WAL else f"durability={durability}"
