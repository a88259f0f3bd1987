"""What the store is: its cluster id, and its binding to a durability and, if that is the WAL, to one WAL (R2)."""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from streamhouse.core.errors import DurabilityMismatch
from streamhouse.metadata import checks
from streamhouse.metadata.contract import NEVER_MS, Change, ChangeKind, ClusterInfo, Durability, MetadataStore
from streamhouse.metadata.rows.layer import RowStore, RowTx, as_uuid, optional_uuid, to_key

_UNBIND_PARTITIONS: Final = """
UPDATE partition_leases SET lease_expires_at = sh_now_ms() WHERE lease_expires_at >= $1
RETURNING topic_id, partition_id
"""


class IdentityRows(RowStore, MetadataStore):
    _PRODUCT: ClassVar[str]
    _VERSION: ClassVar[str]
    """The SQL that returns the server's version."""

    async def cluster_info(self) -> ClusterInfo:
        return await self._query(self._info)

    async def bind_durability(self, durability: Durability, wal_id: UUID | None) -> ClusterInfo:
        checks.check_binding(durability, wal_id)

        async def step(tx: RowTx) -> ClusterInfo:
            await tx.execute(
                "UPDATE store_info SET durability = $1, wal_id = $2 WHERE durability IS NULL", str(durability), wal_id
            )
            return _agreed(await self._info(tx), durability, wal_id)

        return await self._transact(step)

    async def unbind_durability(self, wal_id: UUID | None) -> ClusterInfo:
        async def step(tx: RowTx) -> ClusterInfo:
            await tx.fetch("SELECT 1 FROM store_info FOR UPDATE")
            info = await self._info(tx)
            if info.durability is None:
                return info
            _agreed(info, Durability.OBJECT if wal_id is None else Durability.WAL, wal_id)
            await tx.execute("UPDATE store_info SET durability = NULL, wal_id = NULL")
            await self._end_leases(tx)
            return await self._info(tx)

        return await self._transact(step)

    async def _info(self, tx: RowTx) -> ClusterInfo:
        row = await tx.fetchrow(
            f"""SELECT s.cluster_id, s.durability, s.wal_id, s.gc_horizon_ms, {self._VERSION} AS server,
                    (SELECT max(m.version) FROM schema_migrations AS m) AS schema_version
                FROM store_info AS s"""
        )
        assert row is not None
        return ClusterInfo(
            cluster_id=as_uuid(row["cluster_id"]),
            durability=None if row["durability"] is None else Durability(row["durability"]),
            wal_id=optional_uuid(row["wal_id"]),
            gc_horizon_ms=row["gc_horizon_ms"],
            schema_version=row["schema_version"],
            backend=f"{self._PRODUCT} {row['server'].split()[0]}",
        )

    async def _end_leases(self, tx: RowTx) -> None:
        """A lease without expiry stands for the binding, and ends with it."""
        slots = await tx.execute(
            "UPDATE coordinator_slots SET lease_expires_at = sh_now_ms() WHERE lease_expires_at >= $1", NEVER_MS
        )
        await tx.fetch(
            "SELECT 1 FROM partition_leases WHERE lease_expires_at >= $1 ORDER BY topic, partition_id FOR UPDATE",
            NEVER_MS,
        )
        ended = await tx.fetch(_UNBIND_PARTITIONS, NEVER_MS)
        keys = tuple(to_key(row) for row in ended if row["topic_id"] is not None)
        if keys:
            await tx.notify(Change(kind=ChangeKind.LEASES, keys=keys))
        if slots:
            await tx.notify(Change(kind=ChangeKind.LEASES))


def _agreed(bound: ClusterInfo, durability: Durability, wal_id: UUID | None) -> ClusterInfo:
    if (bound.durability, bound.wal_id) != (durability, wal_id):
        raise DurabilityMismatch(
            f"this store is bound to {_binding(bound.durability, bound.wal_id)}, not to {_binding(durability, wal_id)}"
        )
    return bound


def _binding(durability: Durability | None, wal_id: UUID | None) -> str:
    return f"durability={durability}" + (f" and the WAL {wal_id}" if wal_id else "")
