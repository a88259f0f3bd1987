"""What the store is: its cluster id, its clock, and the durability it is bound to (R2)."""

from __future__ import annotations

import sqlite3
from uuid import UUID

from streamhouse.core.errors import DurabilityMismatch
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import NEVER_MS, ClusterInfo, Durability, LeaseKey, SlotKey
from streamhouse.metadata.sqlite.leases import notify_leaders
from streamhouse.metadata.sqlite.rows import optional_uuid, topic_id_of
from streamhouse.metadata.sqlite.schema import SCHEMA_VERSION
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Tx


def cluster_info(tx: Tx) -> ClusterInfo:
    (row,) = tx.rows("SELECT cluster_id, durability, wal_id, gc_horizon_ms FROM store_info")
    cluster_id, durability, wal_id, horizon_ms = row
    return ClusterInfo(
        cluster_id=UUID(bytes=cluster_id),
        durability=None if durability is None else Durability(durability),
        wal_id=optional_uuid(wal_id),
        gc_horizon_ms=horizon_ms,
        schema_version=SCHEMA_VERSION,
        backend=f"SQLite {sqlite3.sqlite_version}",
    )


def now_ms(tx: Tx) -> int:
    return tx.now_ms


def bind_durability(tx: Tx, durability: Durability, wal_id: UUID | None) -> ClusterInfo:
    bound = cluster_info(tx)
    if bound.durability is None:
        tx.run(
            "UPDATE store_info SET durability = ?, wal_id = ?",
            (durability.value, None if wal_id is None else wal_id.bytes),
        )
        return cluster_info(tx)
    _agree(bound, durability, wal_id)
    return bound


def unbind_durability(tx: Tx, wal_id: UUID | None) -> ClusterInfo:
    bound = cluster_info(tx)
    if bound.durability is None:
        return bound
    _agree(bound, Durability.OBJECT if wal_id is None else Durability.WAL, wal_id)
    tx.run("UPDATE store_info SET durability = NULL, wal_id = NULL")
    ended: list[LeaseKey] = [
        PartitionKey(topic_id_of(topic_id), partition)
        for topic_id, partition in tx.rows(
            "UPDATE partition_leases SET lease_expires_at = ? WHERE lease_expires_at >= ? AND topic_id IS NOT NULL "
            "RETURNING topic_id, partition_id",
            (tx.now_ms, NEVER_MS),
        )
    ]
    slots = tx.rows(
        "UPDATE coordinator_slots SET lease_expires_at = ? WHERE lease_expires_at >= ? RETURNING slot",
        (tx.now_ms, NEVER_MS),
    )
    notify_leaders(tx, [*ended, *(SlotKey(slot) for (slot,) in slots)])
    return cluster_info(tx)


def _agree(bound: ClusterInfo, durability: Durability, wal_id: UUID | None) -> None:
    if (bound.durability, bound.wal_id) != (durability, wal_id):
        raise DurabilityMismatch(
            f"this store is bound to durability={bound.durability}"
            + (f" and the WAL {bound.wal_id}" if bound.wal_id else "")
            + f", not to durability={durability}"
            + (f" and the WAL {wal_id}" if wal_id else "")
        )


class IdentityCalls(Shell):
    async def cluster_info(self) -> ClusterInfo:
        return await self._read(cluster_info)

    async def now_ms(self) -> int:
        return await self._read(now_ms)

    async def bind_durability(self, durability: Durability, wal_id: UUID | None) -> ClusterInfo:
        checks.check_binding(durability, wal_id)
        return await self._write(bind_durability, durability, wal_id)

    async def unbind_durability(self, wal_id: UUID | None) -> ClusterInfo:
        return await self._write(unbind_durability, wal_id)
