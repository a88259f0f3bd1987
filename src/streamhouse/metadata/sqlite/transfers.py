"""Handing a lease over: pending → accepted → completed, or rejected, or failed by its deadline (R20)."""

from __future__ import annotations

import sqlite3
from typing import Final
from uuid import UUID

from streamhouse.core.errors import (
    AgentNotFound,
    DurabilityMismatch,
    InvalidRequest,
    NotLeader,
    PartitionNotFound,
    TransferConflict,
    TransferNotFound,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    OPEN_TRANSFER_STATES,
    Change,
    ChangeKind,
    HeldLease,
    Holder,
    Lease,
    LeaseKey,
    SlotKey,
    Transfer,
    TransferState,
)
from streamhouse.metadata.rows.layer import as_topic_id
from streamhouse.metadata.sqlite.leases import (
    LeaseStanding,
    check_binding,
    expiry,
    find_standing,
    notify_leaders,
    take,
)
from streamhouse.metadata.sqlite.transactions import Tx

_COLUMNS: Final = """transfer_id, topic_id, partition_id, slot, from_agent, to_agent, epoch, state, reason, created_at,
    deadline_at"""


def initiate_transfer(
    tx: Tx, transfer_id: UUID, held: HeldLease, *, holder: Holder, to_agent: str, timeout_ms: int
) -> Transfer:
    if to_agent == holder.agent_id:
        raise InvalidRequest(f"agent {to_agent} cannot hand {held.key} to itself")
    checks.check_agent_id(to_agent)
    checks.check_ttl(timeout_ms, "a transfer")
    standing_transfer = _find(tx, transfer_id)
    if standing_transfer is not None:
        return standing_transfer
    standing = find_standing(tx, held.key)
    mine = standing is not None and standing.is_held_by(holder) and standing.epoch == held.epoch
    if standing is None or not mine or not standing.is_live(tx.now_ms):
        raise _not_leader(tx, held.key, standing)
    if tx.value("SELECT 1 FROM agents WHERE agent_id = ?", (to_agent,)) is None:
        raise AgentNotFound(f"agent {to_agent} is not registered, so nothing can be handed to it")
    _fail_overdue(tx)
    slot, topic_id, partition = _sql_key(held.key)
    if tx.value(
        "SELECT 1 FROM lease_transfers WHERE ended_at IS NULL AND topic_id IS ? AND partition_id IS ? AND slot IS ?",
        (topic_id, partition, slot),
    ):
        raise TransferConflict(f"{held.key} is being transferred already")
    tx.run(
        "INSERT INTO lease_transfers (transfer_id, topic_id, partition_id, slot, from_agent, to_agent, epoch, state, "
        "created_at, deadline_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            transfer_id.bytes,
            topic_id,
            partition,
            slot,
            holder.agent_id,
            to_agent,
            held.epoch,
            TransferState.PENDING.value,
            tx.now_ms,
            tx.now_ms + timeout_ms,
        ),
    )
    tx.notify(Change(kind=ChangeKind.TRANSFERS, name=to_agent))
    return _need(tx, transfer_id)


def accept_transfer(tx: Tx, transfer_id: UUID, *, target: Holder) -> Transfer:
    transfer = _need(tx, transfer_id)
    if target.agent_id != transfer.to_agent:
        raise TransferConflict(f"transfer {transfer_id} goes to {transfer.to_agent}, not to {target.agent_id}")
    if transfer.state is not TransferState.PENDING:
        accepted_by = tx.value(
            "SELECT target_incarnation FROM lease_transfers WHERE transfer_id = ?", (transfer_id.bytes,)
        )
        went_on = transfer.state in (TransferState.ACCEPTED, TransferState.COMPLETED)
        if went_on and accepted_by == target.incarnation.bytes:
            return transfer
        raise TransferConflict(f"transfer {transfer_id} is {transfer.state}; only a pending one can be accepted")
    tx.run(
        "UPDATE lease_transfers SET state = ?, target_incarnation = ?, target_wal_id = ? WHERE transfer_id = ?",
        (TransferState.ACCEPTED.value, target.incarnation.bytes, target.wal_id.bytes, transfer_id.bytes),
    )
    tx.notify(Change(kind=ChangeKind.TRANSFERS, name=transfer.from_agent))
    return _need(tx, transfer_id)


def reject_transfer(tx: Tx, transfer_id: UUID, *, agent_id: str, reason: str) -> Transfer:
    checks.check_agent_id(agent_id)
    checks.check_text(reason, "a reason", may_be_empty=True)
    transfer = _need(tx, transfer_id)
    if agent_id not in (transfer.from_agent, transfer.to_agent):
        raise TransferConflict(f"agent {agent_id} has no part in transfer {transfer_id}")
    if transfer.state is TransferState.REJECTED:
        return transfer
    if transfer.state not in OPEN_TRANSFER_STATES:
        raise TransferConflict(f"transfer {transfer_id} is {transfer.state} and cannot be rejected any more")
    _end(tx, transfer, TransferState.REJECTED, reason)
    other = transfer.from_agent if agent_id == transfer.to_agent else transfer.to_agent
    tx.notify(Change(kind=ChangeKind.TRANSFERS, name=other))
    return _need(tx, transfer_id)


def complete_transfer(
    tx: Tx, transfer_id: UUID, *, holder: Holder, next_offset: int, ttl_ms: int | None, liveness_timeout_ms: int
) -> Lease:
    checks.check_lease_keys([], ttl_ms)
    checks.check_duration(liveness_timeout_ms, "a liveness timeout")
    transfer = _need(tx, transfer_id)
    standing = find_standing(tx, transfer.key)
    if transfer.state is TransferState.COMPLETED:
        lease = None if standing is None else standing.lease(tx.now_ms)
        if lease is None:
            raise PartitionNotFound(f"{transfer.key} is gone since it was transferred")
        return lease
    if holder.agent_id != transfer.from_agent:
        raise TransferConflict(
            f"transfer {transfer_id} is {transfer.from_agent}'s to complete, not {holder.agent_id}'s"
        )
    if transfer.state is not TransferState.ACCEPTED:
        raise TransferConflict(f"transfer {transfer_id} is {transfer.state}; only an accepted one can be completed")
    if standing is None or not standing.is_held_by(holder) or standing.epoch != transfer.epoch:
        raise _not_leader(tx, transfer.key, standing)
    if isinstance(transfer.key, PartitionKey) and standing.high_watermark != next_offset:
        raise TransferConflict(
            f"the watermark of {transfer.key} is {standing.high_watermark}, not {next_offset}",
            hint="flush everything first",
        )
    target = _live_target(tx, transfer, liveness_timeout_ms)
    try:
        check_binding(tx, target.wal_id, ttl_ms)
    except DurabilityMismatch as mismatch:
        raise TransferConflict(mismatch.message) from mismatch
    taken = take(tx, standing, target, expires_at_ms=expiry(tx, ttl_ms))
    _end(tx, transfer, TransferState.COMPLETED, "")
    notify_leaders(tx, [transfer.key])
    tx.notify(Change(kind=ChangeKind.TRANSFERS, name=transfer.to_agent))
    lease = taken.lease(tx.now_ms)
    assert lease is not None
    return lease


def _live_target(tx: Tx, transfer: Transfer, liveness_timeout_ms: int) -> Holder:
    row = tx.row(
        "SELECT t.target_incarnation, t.target_wal_id, a.incarnation, a.last_heartbeat FROM lease_transfers t "
        "LEFT JOIN agents a ON a.agent_id = t.to_agent WHERE t.transfer_id = ?",
        (transfer.transfer_id.bytes,),
    )
    incarnation, wal_id, registered, last_heartbeat = row or (None, None, None, None)
    if last_heartbeat is None or last_heartbeat < tx.now_ms - liveness_timeout_ms:
        raise TransferConflict(f"the target {transfer.to_agent} is not alive")
    if registered != incarnation or incarnation is None:
        raise TransferConflict(f"the target {transfer.to_agent} was restarted since it accepted")
    return Holder(agent_id=transfer.to_agent, incarnation=UUID(bytes=incarnation), wal_id=UUID(bytes=wal_id))


def list_transfers(tx: Tx, *, agent_id: str | None = None, open_only: bool = True) -> list[Transfer]:
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM lease_transfers "
        "WHERE (:agent IS NULL OR from_agent = :agent OR to_agent = :agent) AND (NOT :open OR ended_at IS NULL) "
        "ORDER BY created_at, transfer_id",
        {"agent": agent_id, "open": open_only},
    )
    transfers = [_transfer_of(row, tx.now_ms) for row in rows]
    return [transfer for transfer in transfers if not open_only or transfer.state in OPEN_TRANSFER_STATES]


def expire_transfers(tx: Tx, *, keep_ms: int) -> list[Transfer]:
    checks.check_duration(keep_ms, "an age")
    failed = _fail_overdue(tx)
    tx.run("DELETE FROM lease_transfers WHERE ended_at < ?", (tx.now_ms - keep_ms,))
    return failed


def _fail_overdue(tx: Tx) -> list[Transfer]:
    rows = tx.rows(
        f"SELECT {_COLUMNS} FROM lease_transfers WHERE ended_at IS NULL AND deadline_at <= ? "
        "ORDER BY created_at, transfer_id",
        (tx.now_ms,),
    )
    overdue = [_transfer_of(row, tx.now_ms) for row in rows]
    for transfer in overdue:
        _end(tx, transfer, TransferState.FAILED, transfer.reason)
        tx.notify(Change(kind=ChangeKind.TRANSFERS, name=transfer.from_agent))
    return overdue


def _end(tx: Tx, transfer: Transfer, state: TransferState, reason: str) -> None:
    tx.run(
        "UPDATE lease_transfers SET state = ?, reason = ?, ended_at = ? WHERE transfer_id = ?",
        (state.value, reason, tx.now_ms, transfer.transfer_id.bytes),
    )


def _find(tx: Tx, transfer_id: UUID) -> Transfer | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM lease_transfers WHERE transfer_id = ?", (transfer_id.bytes,))
    return None if row is None else _transfer_of(row, tx.now_ms)


def _need(tx: Tx, transfer_id: UUID) -> Transfer:
    transfer = _find(tx, transfer_id)
    if transfer is None:
        raise TransferNotFound(f"there is no transfer {transfer_id}")
    return transfer


def _transfer_of(row: sqlite3.Row, now_ms: int) -> Transfer:
    """An open one past its deadline reads as FAILED, whether or not that is written down yet."""
    transfer_id, topic_id, partition, slot, from_agent, to_agent, epoch, text, reason, created_at, deadline = row
    state = TransferState(text)
    if state in OPEN_TRANSFER_STATES and deadline <= now_ms:
        state, reason = TransferState.FAILED, "past its deadline"
    return Transfer(
        transfer_id=UUID(bytes=transfer_id),
        key=SlotKey(slot) if slot is not None else PartitionKey(as_topic_id(topic_id), partition),
        from_agent=from_agent,
        to_agent=to_agent,
        epoch=epoch,
        state=state,
        reason=reason,
        created_at_ms=created_at,
        deadline_ms=deadline,
    )


def _sql_key(key: LeaseKey) -> tuple[int | None, bytes | None, int | None]:
    """(slot, topic id, partition): one kind of key fills the first, the other the rest."""
    return (key.slot, None, None) if isinstance(key, SlotKey) else (None, key.topic_id.bytes, key.partition)


def _not_leader(tx: Tx, key: LeaseKey, standing: LeaseStanding | None) -> NotLeader:
    leader = standing.agent_id if standing is not None and standing.is_live(tx.now_ms) else None
    return NotLeader(str(key), current_leader=leader)
