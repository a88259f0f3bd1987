"""Lease transfers: one record per transfer, moved on by compare-and-swap under the lock of what it transfers."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from streamhouse.core.errors import (
    AgentNotFound,
    DurabilityMismatch,
    InvalidRequest,
    NotLeader,
    TransferConflict,
    TransferNotFound,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    OPEN_TRANSFER_STATES,
    HeldLease,
    Holder,
    Lease,
    LeaseKey,
    Leases,
    SlotKey,
    Transfer,
    TransferState,
)
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.leases import read_leases
from streamhouse.metadata.rows.layer import Row, RowTx, as_uuid

# Past its deadline an open transfer counts as FAILED, whether or not that is written down yet.
_COLUMNS: Final = """
    t.transfer_id, t.topic_id, t.partition_id, t.slot, t.from_agent, t.to_agent, t.epoch, t.reason, t.created_at,
    t.deadline_at, t.target_incarnation, t.target_wal_id,
    CASE WHEN t.ended_at IS NULL AND t.deadline_at <= (SELECT sh_now_ms()) THEN 'failed' ELSE t.state END AS state
"""
_BY_ID: Final = f"SELECT {_COLUMNS} FROM lease_transfers AS t WHERE t.transfer_id = $1"
_LOCK_PARTITION: Final = """
SELECT p.high_watermark, p.leader_epoch, l.leader_agent_id, l.incarnation, l.epoch, l.lease_expires_at
FROM partitions AS p JOIN partition_leases AS l ON l.topic_id = p.topic_id AND l.partition_id = p.partition_id
WHERE p.topic_id = $1 AND p.partition_id = $2
FOR NO KEY UPDATE OF p, l
"""
_LOCK_SLOT: Final = """
SELECT -1::bigint AS high_watermark, s.epoch AS leader_epoch, s.leader_agent_id, s.incarnation, s.epoch,
       s.lease_expires_at
FROM coordinator_slots AS s WHERE s.slot = $1 FOR UPDATE
"""
_END_OVERDUE: Final = """
UPDATE lease_transfers SET state = 'failed', ended_at = sh_now_ms()
WHERE topic_id IS NOT DISTINCT FROM $1 AND partition_id IS NOT DISTINCT FROM $2 AND slot IS NOT DISTINCT FROM $3
    AND ended_at IS NULL AND deadline_at <= (SELECT sh_now_ms())
"""
_OPEN_ONE: Final = """
SELECT transfer_id FROM lease_transfers
WHERE topic_id IS NOT DISTINCT FROM $1 AND partition_id IS NOT DISTINCT FROM $2 AND slot IS NOT DISTINCT FROM $3
    AND ended_at IS NULL
"""
_INSERT: Final = f"""
INSERT INTO lease_transfers AS t (
    transfer_id, topic_id, partition_id, slot, from_agent, to_agent, epoch, state, created_at, deadline_at
)
SELECT $1, $2, $3, $4, $5, $6, $7, 'pending', clock.now_ms, clock.now_ms + $8
FROM (SELECT sh_now_ms() AS now_ms) AS clock
RETURNING {_COLUMNS}
"""
_GIVE_PARTITION: Final = (
    """UPDATE partitions SET leader_epoch = leader_epoch + 1
       WHERE topic_id = $1 AND partition_id = $2 AND leader_epoch = $3 AND high_watermark = $4""",
    """INSERT INTO epoch_history (topic_id, partition_id, epoch, start_offset, agent_id, wal_id, started_at)
       VALUES ($1, $2, $3 + 1, $4, $5, $6, sh_now_ms())""",
    """UPDATE partition_leases SET leader_agent_id = $3, incarnation = $4, wal_id = $5, epoch = $6 + 1,
           acquired_at = sh_now_ms(), lease_expires_at = sh_lease_expiry(sh_now_ms(), $7)
       WHERE topic_id = $1 AND partition_id = $2""",
)
_GIVE_SLOT: Final = """
UPDATE coordinator_slots SET leader_agent_id = $2, incarnation = $3, wal_id = $4, epoch = epoch + 1,
    acquired_at = sh_now_ms(), lease_expires_at = sh_lease_expiry(sh_now_ms(), $5)
WHERE slot = $1
"""
_CHECK_BINDING: Final = "SELECT sh_check_binding($1, $2, $3)"
_NOTIFY: Final = "SELECT sh_notify_name('transfers', $1)"


class PostgresTransfers(Leases):
    _database: Database

    async def initiate_transfer(
        self, transfer_id: UUID, held: HeldLease, *, holder: Holder, to_agent: str, timeout_ms: int
    ) -> Transfer:
        checks.check_ttl(timeout_ms, "a transfer")
        checks.check_agent_id(to_agent)
        if to_agent == holder.agent_id:
            raise InvalidRequest(f"agent {to_agent} cannot transfer {held.key} to itself")

        async def work(tx: RowTx) -> Transfer:
            row = await _lock_lease(tx, held.key)
            known = await tx.fetchrow(_BY_ID, transfer_id)
            if known is not None:
                return _to_transfer(known)
            await _check_leads(tx, row, held, holder)
            if not await tx.fetchval("SELECT EXISTS (SELECT 1 FROM agents WHERE agent_id = $1)", to_agent):
                raise AgentNotFound(f"agent {to_agent} is not registered")
            await tx.execute(_END_OVERDUE, *_key_columns(held.key))
            other = await tx.fetchval(_OPEN_ONE, *_key_columns(held.key))
            if other is not None:
                raise TransferConflict(f"{held.key} is being transferred already, by {other}")
            inserted = await tx.fetchrow(
                _INSERT, transfer_id, *_key_columns(held.key), holder.agent_id, to_agent, held.epoch, timeout_ms
            )
            assert inserted is not None
            await tx.execute(_NOTIFY, to_agent)
            return _to_transfer(inserted)

        return await self._database.transact(work)

    async def accept_transfer(self, transfer_id: UUID, *, target: Holder) -> Transfer:
        async def work(tx: RowTx) -> Transfer:
            row = await _lock_transfer(tx, transfer_id)
            transfer = _to_transfer(row)
            if transfer.to_agent != target.agent_id:
                raise TransferConflict(f"transfer {transfer_id} is to {transfer.to_agent}, not to {target.agent_id}")
            went_on = transfer.state in (TransferState.ACCEPTED, TransferState.COMPLETED)
            if went_on and row["target_incarnation"] == target.incarnation:
                return transfer
            _check_state(transfer, TransferState.PENDING)
            accepted = await tx.fetchrow(
                f"""UPDATE lease_transfers AS t SET state = 'accepted', target_incarnation = $2, target_wal_id = $3
                    WHERE t.transfer_id = $1 RETURNING {_COLUMNS}""",
                transfer_id,
                target.incarnation,
                target.wal_id,
            )
            assert accepted is not None
            await tx.execute(_NOTIFY, transfer.from_agent)
            return _to_transfer(accepted)

        return await self._database.transact(work)

    async def reject_transfer(self, transfer_id: UUID, *, agent_id: str, reason: str) -> Transfer:
        checks.check_agent_id(agent_id)
        checks.check_text(reason, "a reason", may_be_empty=True)

        async def work(tx: RowTx) -> Transfer:
            transfer = _to_transfer(await _lock_transfer(tx, transfer_id))
            if agent_id not in (transfer.from_agent, transfer.to_agent):
                raise TransferConflict(f"transfer {transfer_id} does not concern {agent_id}")
            if transfer.state is TransferState.REJECTED:
                return transfer
            _check_state(transfer, *OPEN_TRANSFER_STATES)
            rejected = await tx.fetchrow(
                f"""UPDATE lease_transfers AS t SET state = 'rejected', reason = $2, ended_at = sh_now_ms()
                    WHERE t.transfer_id = $1 RETURNING {_COLUMNS}""",
                transfer_id,
                reason,
            )
            assert rejected is not None
            other = transfer.to_agent if agent_id == transfer.from_agent else transfer.from_agent
            await tx.execute(_NOTIFY, other)
            return _to_transfer(rejected)

        return await self._database.transact(work)

    async def complete_transfer(
        self, transfer_id: UUID, *, holder: Holder, next_offset: int, ttl_ms: int | None, liveness_timeout_ms: int
    ) -> Lease:
        checks.check_lease_keys((), ttl_ms)
        checks.check_duration(liveness_timeout_ms, "a liveness timeout")

        async def work(tx: RowTx) -> Lease:
            key = _to_transfer(_found(await tx.fetchrow(_BY_ID, transfer_id), transfer_id)).key
            lease = await _lock_lease(tx, key)
            row = await _lock_transfer(tx, transfer_id)
            transfer = _to_transfer(row)
            if transfer.state is not TransferState.COMPLETED:
                await _check_completion(tx, row, lease, holder, next_offset, liveness_timeout_ms)
                await tx.execute(_CHECK_BINDING, transfer.to_agent, row["target_wal_id"], ttl_ms)
                await _hand_over(tx, row, next_offset, ttl_ms)
            answer = await read_leases(tx, keys=[key])
            if not answer:
                raise NotLeader(str(key), current_leader=None)
            return answer[0]

        try:
            return await self._database.transact(work)
        except DurabilityMismatch as mismatch:
            raise TransferConflict(mismatch.message) from mismatch

    async def list_transfers(self, *, agent_id: str | None = None, open_only: bool = True) -> list[Transfer]:
        rows = await self._database.fetch(
            f"""SELECT {_COLUMNS} FROM lease_transfers AS t
                WHERE ($1::text IS NULL OR t.from_agent = $1 OR t.to_agent = $1)
                    AND (NOT $2 OR (t.ended_at IS NULL AND t.deadline_at > (SELECT sh_now_ms())))
                ORDER BY t.created_at, t.transfer_id""",
            agent_id,
            open_only,
        )
        return [_to_transfer(row) for row in rows]

    async def expire_transfers(self, *, keep_ms: int) -> list[Transfer]:
        checks.check_duration(keep_ms, "an age")

        async def work(tx: RowTx) -> list[Transfer]:
            rows = await tx.fetch(
                f"""WITH overdue AS (
                        SELECT o.transfer_id FROM lease_transfers AS o
                        WHERE o.ended_at IS NULL AND o.deadline_at <= (SELECT sh_now_ms())
                        ORDER BY o.transfer_id FOR UPDATE
                    )
                    UPDATE lease_transfers AS t SET state = 'failed', ended_at = sh_now_ms()
                    FROM overdue WHERE t.transfer_id = overdue.transfer_id RETURNING {_COLUMNS}"""
            )
            await tx.execute("DELETE FROM lease_transfers WHERE ended_at < (SELECT sh_now_ms()) - $1::bigint", keep_ms)
            failed = sorted((_to_transfer(row) for row in rows), key=lambda t: (t.created_at_ms, t.transfer_id))
            for agent_id in sorted({agent for t in failed for agent in (t.from_agent, t.to_agent)}):
                await tx.execute(_NOTIFY, agent_id)
            return failed

        return await self._database.transact(work)


async def _lock_lease(tx: RowTx, key: LeaseKey) -> Row | None:
    if isinstance(key, SlotKey):
        return await tx.fetchrow(_LOCK_SLOT, key.slot)
    return await tx.fetchrow(_LOCK_PARTITION, key.topic_id, key.partition)


async def _lock_transfer(tx: RowTx, transfer_id: UUID) -> Row:
    return _found(await tx.fetchrow(f"{_BY_ID} FOR UPDATE OF t", transfer_id), transfer_id)


async def _check_leads(tx: RowTx, row: Row | None, held: HeldLease, holder: Holder) -> None:
    now_ms = await tx.fetchval("SELECT sh_now_ms()")
    live = row is not None and row["lease_expires_at"] > now_ms
    if row is None or not live or not _leads(row, holder, held.epoch):
        raise NotLeader(str(held.key), current_leader=row["leader_agent_id"] if row is not None and live else None)


def _leads(row: Row, holder: Holder, epoch: int) -> bool:
    found = (row["leader_agent_id"], row["incarnation"], row["epoch"], row["leader_epoch"])
    return bool(found == (holder.agent_id, holder.incarnation, epoch, epoch))


async def _check_completion(
    tx: RowTx, row: Row, lease: Row | None, holder: Holder, next_offset: int, liveness_timeout_ms: int
) -> None:
    transfer = _to_transfer(row)
    if transfer.from_agent != holder.agent_id:
        raise TransferConflict(f"transfer {transfer.transfer_id} is from {transfer.from_agent}, not {holder.agent_id}")
    if lease is None or not _leads(lease, holder, transfer.epoch):
        raise NotLeader(str(transfer.key), current_leader=None if lease is None else lease["leader_agent_id"])
    _check_state(transfer, TransferState.ACCEPTED)
    if isinstance(transfer.key, PartitionKey) and lease["high_watermark"] != next_offset:
        raise TransferConflict(
            f"the watermark of {transfer.key} is {lease['high_watermark']}, not {next_offset}: "
            "what the sender has taken is not all committed"
        )
    alive = await tx.fetchval(
        """SELECT EXISTS (SELECT 1 FROM agents
                          WHERE agent_id = $1 AND incarnation = $2 AND last_heartbeat >= (SELECT sh_now_ms()) - $3)""",
        transfer.to_agent,
        row["target_incarnation"],
        liveness_timeout_ms,
    )
    if not alive:
        raise TransferConflict(f"{transfer.to_agent} is not alive any more as the incarnation that accepted")


async def _hand_over(tx: RowTx, row: Row, next_offset: int, ttl_ms: int | None) -> None:
    transfer = _to_transfer(row)
    incarnation, wal_id = row["target_incarnation"], row["target_wal_id"]
    key = transfer.key
    if isinstance(key, SlotKey):
        await tx.execute(_GIVE_SLOT, key.slot, transfer.to_agent, incarnation, wal_id, ttl_ms)
        await tx.execute("SELECT sh_notify_keys('leases', '{}', '{}')")
    else:
        where = (key.topic_id, key.partition)
        bump, note, give = _GIVE_PARTITION
        await tx.execute(bump, *where, transfer.epoch, next_offset)
        await tx.execute(note, *where, transfer.epoch, next_offset, transfer.to_agent, wal_id)
        await tx.execute(give, *where, transfer.to_agent, incarnation, wal_id, transfer.epoch, ttl_ms)
        await tx.execute("SELECT sh_notify_keys('leases', $1, $2)", [key.topic_id], [key.partition])
    await tx.execute(
        "UPDATE lease_transfers SET state = 'completed', ended_at = sh_now_ms() WHERE transfer_id = $1",
        transfer.transfer_id,
    )
    await tx.execute(_NOTIFY, transfer.to_agent)


def _check_state(transfer: Transfer, *wanted: TransferState) -> None:
    if transfer.state not in wanted:
        raise TransferConflict(
            f"transfer {transfer.transfer_id} is {transfer.state}, not {' or '.join(sorted(wanted))}"
        )


def _found(row: Row | None, transfer_id: UUID) -> Row:
    if row is None:
        raise TransferNotFound(f"there is no transfer {transfer_id}")
    return row


def _key_columns(key: LeaseKey) -> tuple[UUID | None, int | None, int | None]:
    if isinstance(key, SlotKey):
        return None, None, key.slot
    return key.topic_id, key.partition, None


def _to_transfer(row: Row) -> Transfer:
    key: LeaseKey
    if row["slot"] is None:
        key = PartitionKey(TopicId(as_uuid(row["topic_id"])), row["partition_id"])
    else:
        key = SlotKey(row["slot"])
    return Transfer(
        transfer_id=as_uuid(row["transfer_id"]),
        key=key,
        from_agent=row["from_agent"],
        to_agent=row["to_agent"],
        epoch=row["epoch"],
        state=TransferState(row["state"]),
        reason=row["reason"],
        created_at_ms=row["created_at"],
        deadline_ms=row["deadline_at"],
    )
