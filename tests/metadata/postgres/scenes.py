"""First steps on a PostgreSQL store, and waiting until the server shows what a test waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import asyncpg
from builders import leaderless_slice, leased_slice

from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    BatchRun,
    Holder,
    LeaderlessSlice,
    LeasedSlice,
    NewTopic,
    ObjectRef,
    ScanRange,
    WriteMode,
)
from streamhouse.metadata.postgres.store import PostgresMetadata

Opener = Callable[..., Awaitable[PostgresMetadata]]
"""What the fixture ``open_store`` gives."""

IDS = SeededRandomness(77)
FAR_FUTURE_MS = 4_000_000_000_000
WAIT_S = 20.0


def append_id() -> AppendId:
    return AppendId(IDS.uuid())


def uploaded(created_at_ms: int = FAR_FUTURE_MS) -> ObjectRef:
    return ObjectRef(key=f"objects/{IDS.uuid()}", size_bytes=1000, created_at_ms=created_at_ms)


def holder(agent_id: str = "agent-1", wal_id: UUID | None = None) -> Holder:
    return Holder(agent_id=agent_id, incarnation=IDS.uuid(), wal_id=wal_id or IDS.uuid())


async def topic(
    store: PostgresMetadata, name: str = "orders", partitions: int = 1, *, leaderless: bool = False
) -> list[PartitionKey]:
    new = NewTopic(
        topic_id=TopicId(IDS.uuid()),
        name=name,
        partition_count=partitions,
        configs={},
        write_mode=WriteMode.LEADERLESS if leaderless else WriteMode.LEASED,
    )
    return (await store.create_topic(new)).partition_keys()


def blob_slices(keys: list[PartitionKey], *batches: BatchRun) -> list[LeaderlessSlice]:
    return [leaderless_slice(key, *batches) for key in keys]


def flush_slices(keys: list[PartitionKey], ref: ObjectRef, *, base: int, epoch: int = 1) -> list[LeasedSlice]:
    return [leased_slice(key, ref, epoch=epoch, base=base) for key in keys]


async def offsets(store: PostgresMetadata, key: PartitionKey) -> list[tuple[int, int]]:
    (page,) = await store.scan_entries([ScanRange(key=key, from_offset=0)], limit=10_000)
    return [(entry.base_offset, entry.end_offset) for entry in page.entries]


async def until_waiting(operator: asyncpg.Connection, sessions: int = 1, *, other_than: int = 0) -> list[int]:
    """The process ids of the sessions of this database that wait for a lock, once there are so many."""
    async with asyncio.timeout(WAIT_S):
        while True:
            # Inside a transaction the server would go on showing what it showed first.
            await operator.execute("SELECT pg_stat_clear_snapshot()")
            rows = await operator.fetch(
                """SELECT pid FROM pg_stat_activity
                   WHERE datname = current_database() AND application_name = 'streamhouse'
                       AND wait_event_type = 'Lock' AND pid <> $1
                   ORDER BY query_start""",
                other_than,
            )
            if len(rows) >= sessions:
                return [row["pid"] for row in rows]
            await asyncio.sleep(0.005)
