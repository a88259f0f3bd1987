"""Consumer groups and their offsets, fenced by their slot's epoch (R1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamhouse.core.errors import Conflict, GroupNotEmpty, GroupNotFound, StaleEpoch
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    Change,
    ChangeKind,
    CommittedOffset,
    Group,
    OffsetCommit,
    SlotFence,
    SlotKey,
    slot_of,
)
from streamhouse.metadata.sqlite.rows import sql_key, topic_id_of
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Row, Tx

_COLUMNS: Final = """group_id, slot, slot_epoch, generation, member_count, payload, updated_at, empty_since,
    offsets_version"""

_SAVE: Final = """
    INSERT INTO consumer_groups (group_id, slot, slot_epoch, generation, member_count, payload, updated_at, empty_since,
        offsets_version)
    VALUES (:group_id, :slot, :epoch, :generation, :members, :payload, :now, iif(:members = 0, :now, NULL), 0)
    ON CONFLICT (group_id) DO UPDATE SET
        slot_epoch = max(slot_epoch, excluded.slot_epoch), generation = excluded.generation,
        member_count = excluded.member_count, payload = excluded.payload, updated_at = excluded.updated_at,
        empty_since = iif(excluded.member_count = 0, coalesce(empty_since, excluded.empty_since), NULL)"""

# A commit by someone without membership is all the life such a group shows: it must not expire under its user.
_TOUCH: Final = """
    INSERT INTO consumer_groups (group_id, slot, slot_epoch, generation, member_count, payload, updated_at, empty_since,
        offsets_version)
    VALUES (:group_id, :slot, :epoch, 0, 0, x'', :now, :now, :written)
    ON CONFLICT (group_id) DO UPDATE SET
        slot_epoch = max(slot_epoch, excluded.slot_epoch), updated_at = excluded.updated_at,
        empty_since = iif(member_count = 0, excluded.empty_since, NULL),
        offsets_version = offsets_version + excluded.offsets_version"""

_COMMIT: Final = """
    INSERT INTO group_offsets (group_id, topic_id, partition_id, committed_offset, leader_epoch, metadata, committed_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (group_id, topic_id, partition_id) DO UPDATE SET committed_offset = excluded.committed_offset,
        leader_epoch = excluded.leader_epoch, metadata = excluded.metadata, committed_at = excluded.committed_at"""


def save_group(tx: Tx, group_id: str, fence: SlotFence, *, generation: int, member_count: int, payload: bytes) -> Group:
    _check_fence(tx, fence)
    before = _find(tx, group_id)
    if before is not None and generation < before.generation:
        raise Conflict(f"group {group_id} is at generation {before.generation}; {generation} is older")
    tx.run(
        _SAVE,
        {
            "group_id": group_id,
            "slot": fence.slot.slot,
            "epoch": fence.epoch,
            "generation": generation,
            "members": member_count,
            "payload": payload,
            "now": tx.now_ms,
        },
    )
    return get_group(tx, group_id)


def get_group(tx: Tx, group_id: str) -> Group:
    group = _find(tx, group_id)
    if group is None:
        raise GroupNotFound(f"there is no group {group_id[:260]!r}")
    return group


def list_groups(tx: Tx, slot: SlotKey | None) -> list[Group]:
    if slot is None:
        rows = tx.rows(f"SELECT {_COLUMNS} FROM consumer_groups ORDER BY group_id")
    else:
        rows = tx.rows(f"SELECT {_COLUMNS} FROM consumer_groups WHERE slot = ? ORDER BY group_id", (slot.slot,))
    return [_group_of(row) for row in rows]


def delete_group(tx: Tx, group_id: str, fence: SlotFence) -> bool:
    _check_fence(tx, fence)
    group = _find(tx, group_id)
    if group is None:
        return False
    if group.member_count:
        raise GroupNotEmpty(f"group {group_id} has {group.member_count} members")
    _delete(tx, group_id)
    return True


def commit_offsets(tx: Tx, group_id: str, fence: SlotFence, offsets: Sequence[OffsetCommit]) -> list[PartitionKey]:
    _check_fence(tx, fence)
    return _commit(tx, group_id, fence.slot, fence.epoch, offsets)


def commit_offsets_simple(tx: Tx, group_id: str, offsets: Sequence[OffsetCommit]) -> list[PartitionKey]:
    group = _find(tx, group_id)
    if group is not None and group.member_count:
        raise GroupNotEmpty(f"group {group_id} has {group.member_count} members; only they commit its offsets")
    missing = _commit(tx, group_id, slot_of(group_id), 0, offsets)
    if len(missing) < len(offsets):
        tx.notify(Change(kind=ChangeKind.GROUPS, name=group_id))
    return missing


def _commit(tx: Tx, group_id: str, slot: SlotKey, epoch: int, offsets: Sequence[OffsetCommit]) -> list[PartitionKey]:
    missing: list[PartitionKey] = []
    rows: list[Row] = []
    for commit in offsets:
        if tx.value("SELECT 1 FROM partitions WHERE topic_id = ? AND partition_id = ?", sql_key(commit.key)) is None:
            missing.append(commit.key)
        else:
            rows.append(
                (group_id, *sql_key(commit.key), commit.offset, commit.leader_epoch, commit.metadata, tx.now_ms)
            )
    tx.run(
        _TOUCH,
        {"group_id": group_id, "slot": slot.slot, "epoch": epoch, "now": tx.now_ms, "written": 1 if rows else 0},
    )
    tx.run_many(_COMMIT, rows)
    return missing


def fetch_offsets(tx: Tx, group_id: str, keys: Sequence[PartitionKey] | None) -> dict[PartitionKey, CommittedOffset]:
    columns = "topic_id, partition_id, committed_offset, leader_epoch, metadata, committed_at"
    if keys is None:
        rows = tx.rows(
            f"SELECT {columns} FROM group_offsets WHERE group_id = ? ORDER BY topic_id, partition_id", (group_id,)
        )
    else:
        asked = f"SELECT {columns} FROM group_offsets WHERE group_id = ? AND topic_id = ? AND partition_id = ?"
        rows = [row for key in keys if (row := tx.row(asked, (group_id, *sql_key(key)))) is not None]
    return {offset.key: offset for offset in map(_offset_of, rows)}


def delete_offsets(tx: Tx, group_id: str, fence: SlotFence, keys: Sequence[PartitionKey]) -> list[PartitionKey]:
    _check_fence(tx, fence)
    get_group(tx, group_id)
    delete = "DELETE FROM group_offsets WHERE group_id = ? AND topic_id = ? AND partition_id = ?"
    deleted = [key for key in keys if tx.run(delete, (group_id, *sql_key(key)))]
    if deleted:
        tx.run(
            "UPDATE consumer_groups SET offsets_version = offsets_version + 1, updated_at = ?, "
            "slot_epoch = max(slot_epoch, ?) WHERE group_id = ?",
            (tx.now_ms, fence.epoch, group_id),
        )
    return deleted


def expire_groups(tx: Tx, *, empty_for_ms: int, limit: int) -> list[str]:
    rows = tx.rows(
        "SELECT group_id FROM consumer_groups WHERE empty_since IS NOT NULL AND empty_since <= ? "
        "ORDER BY empty_since, group_id LIMIT ?",
        (tx.now_ms - empty_for_ms, limit),
    )
    for (group_id,) in rows:
        _delete(tx, group_id)
    return [group_id for (group_id,) in rows]


def _check_fence(tx: Tx, fence: SlotFence) -> None:
    epoch = tx.value("SELECT epoch FROM coordinator_slots WHERE slot = ?", (fence.slot.slot,))
    if epoch != fence.epoch:
        raise StaleEpoch(str(fence.slot), expected=fence.epoch, actual=int(epoch))


def _find(tx: Tx, group_id: str) -> Group | None:
    row = tx.row(f"SELECT {_COLUMNS} FROM consumer_groups WHERE group_id = ?", (group_id,))
    return None if row is None else _group_of(row)


def _delete(tx: Tx, group_id: str) -> None:
    tx.run("DELETE FROM group_offsets WHERE group_id = ?", (group_id,))
    tx.run("DELETE FROM consumer_groups WHERE group_id = ?", (group_id,))


def _group_of(row: Row) -> Group:
    group_id, slot, slot_epoch, generation, member_count, payload, updated_at, empty_since, offsets_version = row
    return Group(
        group_id=group_id,
        slot=SlotKey(slot),
        slot_epoch=slot_epoch,
        generation=generation,
        member_count=member_count,
        payload=payload,
        updated_at_ms=updated_at,
        empty_since_ms=empty_since,
        offsets_version=offsets_version,
    )


def _offset_of(row: Row) -> CommittedOffset:
    topic_id, partition, offset, leader_epoch, metadata, committed_at = row
    return CommittedOffset(
        key=PartitionKey(topic_id_of(topic_id), partition),
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        committed_at_ms=committed_at,
    )


class GroupCalls(Shell):
    async def save_group(
        self, group_id: str, fence: SlotFence, *, generation: int, member_count: int, payload: bytes
    ) -> Group:
        checks.check_group(group_id, payload)
        checks.check_fence(group_id, fence)
        checks.check_group_counts(group_id, generation=generation, member_count=member_count)
        return await self._write(
            save_group, group_id, fence, generation=generation, member_count=member_count, payload=payload
        )

    async def get_group(self, group_id: str) -> Group:
        checks.check_group(group_id)
        return await self._read(get_group, group_id)

    async def list_groups(self, slot: SlotKey | None = None) -> list[Group]:
        return await self._read(list_groups, slot)

    async def delete_group(self, group_id: str, fence: SlotFence) -> bool:
        checks.check_group(group_id)
        checks.check_fence(group_id, fence)
        return await self._write(delete_group, group_id, fence)

    async def commit_offsets(
        self, group_id: str, fence: SlotFence, offsets: Sequence[OffsetCommit]
    ) -> list[PartitionKey]:
        checks.check_group(group_id, offsets=offsets)
        checks.check_fence(group_id, fence)
        return await self._write(commit_offsets, group_id, fence, tuple(offsets))

    async def commit_offsets_simple(self, group_id: str, offsets: Sequence[OffsetCommit]) -> list[PartitionKey]:
        checks.check_group(group_id, offsets=offsets)
        return await self._write(commit_offsets_simple, group_id, tuple(offsets))

    async def fetch_offsets(
        self, group_id: str, keys: Sequence[PartitionKey] | None = None
    ) -> dict[PartitionKey, CommittedOffset]:
        checks.check_group(group_id)
        checks.check_keys(keys or (), "offsets")
        return await self._read(fetch_offsets, group_id, None if keys is None else tuple(keys))

    async def delete_offsets(self, group_id: str, fence: SlotFence, keys: Sequence[PartitionKey]) -> list[PartitionKey]:
        checks.check_group(group_id)
        checks.check_keys(keys, "offsets")
        checks.check_fence(group_id, fence)
        return await self._write(delete_offsets, group_id, fence, tuple(keys))

    async def expire_groups(self, *, empty_for_ms: int, limit: int) -> list[str]:
        checks.check_duration(empty_for_ms, "an empty time")
        checks.check_sweep_limit(limit)
        return await self._write(expire_groups, empty_for_ms=empty_for_ms, limit=limit)
