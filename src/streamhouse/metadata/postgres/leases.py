"""Leases on partitions and coordinator slots: acquire, renew, release, list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    AcquireOutcome,
    AcquireVerdict,
    HeldLease,
    Holder,
    Lease,
    LeaseKey,
    Leases,
    RenewOutcome,
    SlotKey,
)
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.layer import Row, RowTx, as_uuid, optional_uuid

# The clock ticks when the function is done: from then until the statement ends, no other call can store a reading.
_AND_TICK: Final = """
WITH answered AS MATERIALIZED (SELECT * FROM {function}),
     ticked AS MATERIALIZED (SELECT sh_tick() AS now_ms FROM (SELECT count(*) FROM answered) AS finished)
SELECT a.* FROM ticked CROSS JOIN answered AS a
"""
_ACQUIRE: Final = _AND_TICK.format(function="sh_acquire_leases($1, $2, $3, $4, $5, $6, $7, $8, $9)")
_RENEW: Final = _AND_TICK.format(function="sh_renew_leases($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)")
_RELEASE: Final = "SELECT * FROM sh_release_leases($1, $2, $3, $4, $5, $6, $7, $8, $9)"

_PARTITION_LEASES: Final = """
SELECT p.topic_id, p.partition_id, l.topic, l.leader_agent_id AS agent_id, l.incarnation, l.epoch, l.acquired_at,
       l.lease_expires_at AS expires_at, l.lease_expires_at <= (SELECT sh_now_ms()) AS expired, p.high_watermark
FROM {source} JOIN partitions AS p ON p.topic_id = l.topic_id AND p.partition_id = l.partition_id
WHERE $1::text IS NULL OR l.leader_agent_id = $1
ORDER BY p.topic_id, p.partition_id
"""
_ALL_PARTITION_LEASES: Final = _PARTITION_LEASES.format(source="partition_leases AS l")
_SOME_PARTITION_LEASES: Final = _PARTITION_LEASES.format(
    source="""unnest($2::uuid[], $3::integer[]) AS k (topic_id, partition_id)
              JOIN partition_leases AS l ON l.topic_id = k.topic_id AND l.partition_id = k.partition_id"""
)
_SLOT_LEASES: Final = """
SELECT s.slot, NULL::text AS topic, s.leader_agent_id AS agent_id, s.incarnation, s.epoch, s.acquired_at,
       s.lease_expires_at AS expires_at, s.lease_expires_at <= (SELECT sh_now_ms()) AS expired,
       -1::bigint AS high_watermark
FROM coordinator_slots AS s
WHERE s.leader_agent_id IS NOT NULL AND ($1::text IS NULL OR s.leader_agent_id = $1)
    AND ($2::integer[] IS NULL OR s.slot = ANY ($2))
ORDER BY s.slot
"""


class PostgresLeases(Leases):
    _database: Database

    async def acquire_leases(
        self, holder: Holder, keys: Sequence[LeaseKey], *, ttl_ms: int | None
    ) -> list[AcquireOutcome]:
        checks.check_lease_keys(keys, ttl_ms)
        checks.check_agent_id(holder.agent_id)
        rows = await self._database.fetch(
            _ACQUIRE, holder.agent_id, holder.incarnation, holder.wal_id, ttl_ms, *split_lease_keys(keys)
        )
        answered = {row["place"]: row for row in rows}
        return [_acquired(key, answered.get(place)) for place, key in enumerate(keys)]

    async def renew_leases(
        self, holder: Holder, held: Sequence[HeldLease], *, ttl_ms: int | None
    ) -> list[RenewOutcome]:
        checks.check_lease_keys([lease.key for lease in held], ttl_ms)
        rows = await self._database.fetch(
            _RENEW, holder.agent_id, holder.incarnation, holder.wal_id, ttl_ms, *_held_columns(held)
        )
        answered = {row["place"]: row for row in rows}
        return [_renewed(lease.key, answered.get(place)) for place, lease in enumerate(held)]

    async def release_leases(self, holder: Holder, held: Sequence[HeldLease]) -> list[LeaseKey]:
        checks.check_lease_keys([lease.key for lease in held])
        rows = await self._database.fetch(_RELEASE, holder.agent_id, holder.incarnation, *_held_columns(held))
        return [held[place].key for place in sorted(row["place"] for row in rows)]

    async def list_leases(self, *, agent_id: str | None = None, keys: Sequence[LeaseKey] | None = None) -> list[Lease]:
        checks.check_keys(keys or (), "leases")
        return await self._database.call(lambda tx: read_leases(tx, agent_id=agent_id, keys=keys))


async def read_leases(tx: RowTx, *, agent_id: str | None = None, keys: Sequence[LeaseKey] | None = None) -> list[Lease]:
    if keys is None:
        partitions = await tx.fetch(_ALL_PARTITION_LEASES, agent_id)
        slots = await tx.fetch(_SLOT_LEASES, agent_id, None)
    else:
        topic_ids, partition_ids, _, slot_ids, _ = split_lease_keys(list(dict.fromkeys(keys)))
        partitions = await tx.fetch(_SOME_PARTITION_LEASES, agent_id, topic_ids, partition_ids)
        slots = await tx.fetch(_SLOT_LEASES, agent_id, slot_ids)
    return [
        *(to_lease(PartitionKey(TopicId(as_uuid(row["topic_id"])), row["partition_id"]), row) for row in partitions),
        *(to_lease(SlotKey(row["slot"]), row) for row in slots),
    ]


def _held_columns(held: Sequence[HeldLease]) -> tuple[Any, ...]:
    topic_ids, partition_ids, places, slots, slot_places = split_lease_keys([lease.key for lease in held])
    epochs = [held[place].epoch for place in places]
    slot_epochs = [held[place].epoch for place in slot_places]
    return topic_ids, partition_ids, epochs, places, slots, slot_epochs, slot_places


def _acquired(key: LeaseKey, row: Row | None) -> AcquireOutcome:
    if row is None:
        return AcquireOutcome(key=key, verdict=AcquireVerdict.GONE, lease=None)
    return AcquireOutcome(key=key, verdict=AcquireVerdict(row["verdict"]), lease=to_lease(key, row))


def _renewed(key: LeaseKey, row: Row | None) -> RenewOutcome:
    if row is None:
        return RenewOutcome(key=key, renewed=False, lease=None)
    return RenewOutcome(key=key, renewed=row["renewed"], lease=to_lease(key, row))


def to_lease(key: LeaseKey, row: Row) -> Lease:
    return Lease(
        key=key,
        topic=row["topic"],
        agent_id=row["agent_id"],
        incarnation=optional_uuid(row["incarnation"]),
        epoch=row["epoch"],
        acquired_at_ms=row["acquired_at"],
        expires_at_ms=row["expires_at"],
        expired=row["expired"],
        high_watermark=row["high_watermark"],
    )


def split_lease_keys(keys: Sequence[LeaseKey]) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any]]:
    """Columns of topic ids, partition ids and their places, and of slots and their places, among ``keys``."""
    partitions = [(key, place) for place, key in enumerate(keys) if isinstance(key, PartitionKey)]
    slots = [(key, place) for place, key in enumerate(keys) if isinstance(key, SlotKey)]
    return (
        [key.topic_id for key, _ in partitions],
        [key.partition for key, _ in partitions],
        [place for _, place in partitions],
        [key.slot for key, _ in slots],
        [place for _, place in slots],
    )
