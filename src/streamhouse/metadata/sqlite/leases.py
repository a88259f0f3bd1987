"""Leases on partitions and coordinator slots: one machine for both kinds.

The epoch that counts stands in the partition's row, or in the slot's; ``partition_leases`` is its copy for people (R1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from streamhouse.core.errors import DurabilityMismatch, MetadataError
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    NEVER_MS,
    AcquireOutcome,
    AcquireVerdict,
    Change,
    ChangeKind,
    Durability,
    HeldLease,
    Holder,
    Lease,
    LeaseKey,
    RenewOutcome,
    SlotKey,
    WriteMode,
)
from streamhouse.metadata.rows.layer import as_topic_id, optional_uuid
from streamhouse.metadata.sqlite.agents import refuse_superseded
from streamhouse.metadata.sqlite.rows import lock_order, sql_key
from streamhouse.metadata.sqlite.transactions import Tx

_STANDING: Final = """p.topic, p.write_mode, p.leader_epoch, p.high_watermark, l.leader_agent_id, l.lease_expires_at,
    l.acquired_at, hex(l.incarnation), hex(l.wal_id)"""
# A lease row of a deleted topic stays under its name; only rows of this very topic say who leads it (R19).
_ASKED_PARTITIONS: Final = f"""
    WITH asked (number, topic_id, partition_id) AS (VALUES {{rows}})
    SELECT json_group_array(json_array(number, {_STANDING}))
    FROM asked CROSS JOIN partitions p ON p.topic_id = asked.topic_id AND p.partition_id = asked.partition_id
    LEFT JOIN partition_leases l ON l.topic = p.topic AND l.partition_id = p.partition_id AND l.topic_id = p.topic_id"""
# Partitions first: lease rows of deleted topics stay for good, and may be many more.
_LEASED_PARTITIONS: Final = f"""
    SELECT p.topic_id, p.partition_id, {_STANDING}
    FROM partitions p CROSS JOIN partition_leases l ON l.topic_id = p.topic_id AND l.partition_id = p.partition_id
    ORDER BY p.topic_id, p.partition_id"""
_PARTITIONS_LED_BY: Final = f"""
    SELECT p.topic_id, p.partition_id, {_STANDING}
    FROM partition_leases l CROSS JOIN partitions p ON p.topic_id = l.topic_id AND p.partition_id = l.partition_id
    WHERE l.leader_agent_id = ? ORDER BY p.topic_id, p.partition_id"""

_SLOTS: Final = """
    SELECT slot, epoch, leader_agent_id, lease_expires_at, acquired_at, hex(incarnation), hex(wal_id)
    FROM coordinator_slots ORDER BY slot"""

_RECORD_LEASE: Final = """
    INSERT INTO partition_leases (topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch, topic_id,
        incarnation, wal_id)
    VALUES (:topic, :partition, :agent_id, :expires_at, :now, :epoch, :topic_id, :incarnation, :wal_id)
    ON CONFLICT (topic, partition_id) DO UPDATE SET
        leader_agent_id = excluded.leader_agent_id, lease_expires_at = excluded.lease_expires_at,
        acquired_at = excluded.acquired_at, epoch = excluded.epoch, topic_id = excluded.topic_id,
        incarnation = excluded.incarnation, wal_id = excluded.wal_id"""


@dataclass(slots=True, kw_only=True)
class LeaseStanding:
    """A key's epoch and watermark, and who holds the lease beside them (``agent_id`` is None: it was never leased)."""

    key: LeaseKey
    topic: str | None
    leased: bool
    epoch: int
    high_watermark: int
    agent_id: str | None
    expires_at_ms: int
    acquired_at_ms: int
    incarnation: UUID | None
    wal_id: UUID | None

    def is_live(self, now_ms: int) -> bool:
        return self.agent_id is not None and self.expires_at_ms > now_ms

    def is_held_by(self, holder: Holder) -> bool:
        return self.agent_id == holder.agent_id and self.incarnation == holder.incarnation

    def lease(self, now_ms: int) -> Lease | None:
        if self.agent_id is None:
            return None
        return Lease(
            key=self.key,
            topic=self.topic,
            agent_id=self.agent_id,
            incarnation=self.incarnation,
            epoch=self.epoch,
            acquired_at_ms=self.acquired_at_ms,
            expires_at_ms=self.expires_at_ms,
            expired=self.expires_at_ms <= now_ms,
            high_watermark=self.high_watermark,
        )


def find_standing(tx: Tx, key: LeaseKey) -> LeaseStanding | None:
    return find_standings(tx, [key]).get(key)


def find_standings(tx: Tx, keys: Sequence[LeaseKey]) -> dict[LeaseKey, LeaseStanding]:
    """The standings of those keys that exist."""
    partitions = [key for key in keys if isinstance(key, PartitionKey)]
    asked = [(number, *sql_key(key)) for number, key in enumerate(partitions)]
    found: dict[LeaseKey, LeaseStanding] = {}
    for number, *row in tx.json_rows(_ASKED_PARTITIONS, asked):
        key = partitions[number]
        found[key] = _partition_standing(key, row)
    if len(partitions) < len(keys):
        slots = [_slot_standing(row) for row in tx.rows(_SLOTS)]
        found.update((standing.key, standing) for standing in slots if standing.key in keys)
    return found


def take(tx: Tx, standing: LeaseStanding, holder: Holder, *, expires_at_ms: int) -> LeaseStanding:
    """Begin a new leadership: epoch + 1 where the fence is, the lease beside it, a line in the history (R1, R3)."""
    taken = LeaseStanding(
        key=standing.key,
        topic=standing.topic,
        leased=True,
        epoch=standing.epoch + 1,
        high_watermark=standing.high_watermark,
        agent_id=holder.agent_id,
        expires_at_ms=expires_at_ms,
        acquired_at_ms=tx.now_ms,
        incarnation=holder.incarnation,
        wal_id=holder.wal_id,
    )
    if isinstance(standing.key, SlotKey):
        changed = tx.run(
            "UPDATE coordinator_slots SET leader_agent_id = ?, lease_expires_at = ?, acquired_at = ?, epoch = ?, "
            "incarnation = ?, wal_id = ? WHERE slot = ? AND epoch = ?",
            (
                holder.agent_id,
                expires_at_ms,
                tx.now_ms,
                taken.epoch,
                holder.incarnation.bytes,
                holder.wal_id.bytes,
                standing.key.slot,
                standing.epoch,
            ),
        )
        if changed != 1:
            raise MetadataError(f"{standing.key} changed under the write lock")
    else:
        _take_partition(tx, standing.key, taken, holder)
    return taken


def _take_partition(tx: Tx, key: PartitionKey, taken: LeaseStanding, holder: Holder) -> None:
    watermark = tx.value(
        "UPDATE partitions SET leader_epoch = ? WHERE topic_id = ? AND partition_id = ? AND leader_epoch = ? "
        "RETURNING high_watermark",
        (taken.epoch, *sql_key(key), taken.epoch - 1),
    )
    if watermark is None:
        raise MetadataError(f"{key} changed under the write lock")
    taken.high_watermark = watermark
    tx.run(
        _RECORD_LEASE,
        {
            "topic": taken.topic,
            "partition": key.partition,
            "agent_id": holder.agent_id,
            "expires_at": taken.expires_at_ms,
            "now": tx.now_ms,
            "epoch": taken.epoch,
            "topic_id": key.topic_id.bytes,
            "incarnation": holder.incarnation.bytes,
            "wal_id": holder.wal_id.bytes,
        },
    )
    tx.run(
        "INSERT INTO epoch_history (topic_id, partition_id, epoch, start_offset, agent_id, wal_id, started_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (*sql_key(key), taken.epoch, watermark, holder.agent_id, holder.wal_id.bytes, tx.now_ms),
    )


def acquire_leases(tx: Tx, holder: Holder, keys: Sequence[LeaseKey], *, ttl_ms: int | None) -> list[AcquireOutcome]:
    checks.check_agent_id(holder.agent_id)
    checks.check_lease_keys(keys, ttl_ms)
    refuse_superseded(tx, holder.agent_id, holder.incarnation)
    check_binding(tx, holder.wal_id, ttl_ms)
    standings = find_standings(tx, keys)
    outcomes = {key: _acquire(tx, holder, key, standings.get(key), ttl_ms) for key in in_lock_order(keys)}
    notify_leaders(tx, [key for key, outcome in outcomes.items() if outcome.verdict is AcquireVerdict.ACQUIRED])
    return [outcomes[key] for key in keys]


def _acquire(
    tx: Tx, holder: Holder, key: LeaseKey, standing: LeaseStanding | None, ttl_ms: int | None
) -> AcquireOutcome:
    if standing is None or not standing.leased:
        return AcquireOutcome(key=key, verdict=AcquireVerdict.GONE, lease=None)
    verdict = _verdict(standing, holder, ttl_ms, tx.now_ms)
    if verdict is AcquireVerdict.ACQUIRED:
        standing = take(tx, standing, holder, expires_at_ms=expiry(tx, ttl_ms))
    elif verdict is AcquireVerdict.EXTENDED:
        standing.expires_at_ms = max(standing.expires_at_ms, expiry(tx, ttl_ms))
        _set_expiries(tx, [standing])
    return AcquireOutcome(key=key, verdict=verdict, lease=standing.lease(tx.now_ms))


def _verdict(standing: LeaseStanding, holder: Holder, ttl_ms: int | None, now_ms: int) -> AcquireVerdict:
    if not standing.is_live(now_ms):
        return AcquireVerdict.ACQUIRED
    if standing.is_held_by(holder):
        return AcquireVerdict.EXTENDED
    earlier_run = standing.agent_id == holder.agent_id
    same_directory = ttl_ms is None and standing.wal_id == holder.wal_id  # its lock is the lease (R2)
    return AcquireVerdict.ACQUIRED if earlier_run or same_directory else AcquireVerdict.HELD


def renew_leases(tx: Tx, holder: Holder, held: Sequence[HeldLease], *, ttl_ms: int | None) -> list[RenewOutcome]:
    checks.check_lease_keys([mine.key for mine in held], ttl_ms)
    if ttl_ms is None:
        check_binding(tx, holder.wal_id, ttl_ms)
    expires_at_ms = expiry(tx, ttl_ms)
    standings = find_standings(tx, [mine.key for mine in held])
    outcomes: list[RenewOutcome] = []
    renewed: list[LeaseStanding] = []
    for mine in held:
        standing = standings.get(mine.key)
        ok = standing is not None and standing.is_live(tx.now_ms) and _is_mine(standing, holder, mine)
        if standing is not None and ok:
            standing.expires_at_ms = max(standing.expires_at_ms, expires_at_ms)
            renewed.append(standing)
        lease = None if standing is None else standing.lease(tx.now_ms)
        outcomes.append(RenewOutcome(key=mine.key, renewed=ok, lease=lease))
    _set_expiries(tx, renewed)
    return outcomes


def release_leases(tx: Tx, holder: Holder, held: Sequence[HeldLease]) -> list[LeaseKey]:
    checks.check_lease_keys([mine.key for mine in held])
    standings = find_standings(tx, [mine.key for mine in held])
    released: list[LeaseStanding] = []
    ended: list[LeaseKey] = []
    for mine in held:
        standing = standings.get(mine.key)
        if standing is not None and _is_mine(standing, holder, mine):
            if standing.is_live(tx.now_ms):
                ended.append(mine.key)
            standing.expires_at_ms = min(standing.expires_at_ms, tx.now_ms)
            released.append(standing)
    _set_expiries(tx, released)
    notify_leaders(tx, ended)
    return [standing.key for standing in released]


def list_leases(tx: Tx, *, agent_id: str | None = None, keys: Sequence[LeaseKey] | None = None) -> list[Lease]:
    checks.check_keys(keys or (), "leases")
    if keys is None:
        rows = tx.rows(_LEASED_PARTITIONS) if agent_id is None else tx.rows(_PARTITIONS_LED_BY, (agent_id,))
        found = [
            _partition_standing(PartitionKey(as_topic_id(topic_id), partition), row)
            for topic_id, partition, *row in rows
        ]
        found += [_slot_standing(row) for row in tx.rows(_SLOTS)]
    else:
        standings = find_standings(tx, keys)
        found = [standings[key] for key in in_lock_order(set(keys)) if key in standings]
    leases = [lease for standing in found if (lease := standing.lease(tx.now_ms)) is not None]
    return [lease for lease in leases if agent_id is None or lease.agent_id == agent_id]


def in_lock_order(keys: Sequence[LeaseKey] | set[LeaseKey]) -> list[LeaseKey]:
    partitions = [key for key in keys if isinstance(key, PartitionKey)]
    slots = [key for key in keys if isinstance(key, SlotKey)]
    return [*sorted(partitions, key=lock_order), *sorted(slots)]


def expiry(tx: Tx, ttl_ms: int | None) -> int:
    return NEVER_MS if ttl_ms is None else tx.now_ms + ttl_ms


def check_binding(tx: Tx, wal_id: UUID, ttl_ms: int | None) -> None:
    """R2: where the WAL is the durability, no agent leads with another one; elsewhere every lease expires."""
    row = tx.row("SELECT durability, wal_id FROM store_info")
    durability, bound = row if row is not None else (None, None)
    if durability == Durability.WAL:
        if bound != wal_id.bytes:
            raise DurabilityMismatch(f"this store is bound to the WAL {optional_uuid(bound)}, not to {wal_id}")
    elif ttl_ms is None:
        raise DurabilityMismatch(
            "a lease without expiry was asked for, but this store is not bound to durability=wal",
            hint="bind it first, or give the lease a time to live",
        )


def notify_leaders(tx: Tx, keys: Sequence[LeaseKey]) -> None:
    partitions = tuple(key for key in keys if isinstance(key, PartitionKey))
    if partitions:
        tx.notify(Change(kind=ChangeKind.LEASES, keys=partitions))
    if len(partitions) < len(keys):
        tx.notify(Change(kind=ChangeKind.LEASES))


def _is_mine(standing: LeaseStanding, holder: Holder, mine: HeldLease) -> bool:
    return standing.is_held_by(holder) and standing.epoch == mine.epoch


def _set_expiries(tx: Tx, standings: Sequence[LeaseStanding]) -> None:
    tx.run_rows(
        "UPDATE partition_leases SET lease_expires_at = renewed.column3 FROM (VALUES {rows}) AS renewed "
        "WHERE topic = renewed.column1 AND partition_id = renewed.column2",
        [
            (standing.topic, standing.key.partition, standing.expires_at_ms)
            for standing in standings
            if isinstance(standing.key, PartitionKey)
        ],
    )
    tx.run_many(
        "UPDATE coordinator_slots SET lease_expires_at = ? WHERE slot = ?",
        [(standing.expires_at_ms, standing.key.slot) for standing in standings if isinstance(standing.key, SlotKey)],
    )


def _partition_standing(key: PartitionKey, row: Sequence[Any]) -> LeaseStanding:
    topic, mode, epoch, watermark, agent_id, expires_at, acquired_at, incarnation, wal_id = row
    return LeaseStanding(
        key=key,
        topic=topic,
        leased=mode == WriteMode.LEASED,
        epoch=epoch,
        high_watermark=watermark,
        agent_id=agent_id,
        expires_at_ms=int(expires_at or 0),  # written by hand it may be a fraction
        acquired_at_ms=int(acquired_at or 0),
        incarnation=_uuid_of(incarnation),
        wal_id=_uuid_of(wal_id),
    )


def _slot_standing(row: Sequence[Any]) -> LeaseStanding:
    slot, epoch, agent_id, expires_at, acquired_at, incarnation, wal_id = row
    return LeaseStanding(
        key=SlotKey(slot),
        topic=None,
        leased=True,
        epoch=epoch,
        high_watermark=-1,
        agent_id=agent_id,
        expires_at_ms=expires_at,
        acquired_at_ms=acquired_at,
        incarnation=_uuid_of(incarnation),
        wal_id=_uuid_of(wal_id),
    )


@lru_cache(maxsize=1024)
def _uuid_of(digits: str) -> UUID | None:
    """Cached: all leases of an agent have the same two. ``hex(NULL)`` is an empty text."""
    return UUID(hex=digits) if digits else None
