"""Offset commits of consumer groups, fenced by their slot's epoch (R1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamhouse.core.errors import GroupNotEmpty, StaleEpoch
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Change, ChangeKind, OffsetCommit, SlotFence, slot_of
from streamhouse.metadata.sqlite.rows import sql_key
from streamhouse.metadata.sqlite.transactions import Row, Tx

# A group without members shows no other sign of use than these commits: they keep it from expiring.
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


def commit_offsets(
    tx: Tx, group_id: str, fence: SlotFence | None, offsets: Sequence[OffsetCommit]
) -> list[PartitionKey]:
    """``fence`` is None for a commit without membership. Returns the keys whose partition does not exist."""
    if fence is None:
        _refuse_members(tx, group_id)
    else:
        _check_slot(tx, fence)
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
        {
            "group_id": group_id,
            "slot": slot_of(group_id).slot,
            "epoch": 0 if fence is None else fence.epoch,
            "now": tx.now_ms,
            "written": 1 if rows else 0,
        },
    )
    tx.run_many(_COMMIT, rows)
    if fence is None and rows:
        tx.notify(Change(kind=ChangeKind.GROUPS, name=group_id))
    return missing


def _check_slot(tx: Tx, fence: SlotFence) -> None:
    epoch = tx.value("SELECT epoch FROM coordinator_slots WHERE slot = ?", (fence.slot.slot,))
    if epoch != fence.epoch:
        raise StaleEpoch(str(fence.slot), expected=fence.epoch, actual=int(epoch))


def _refuse_members(tx: Tx, group_id: str) -> None:
    members = tx.value("SELECT member_count FROM consumer_groups WHERE group_id = ?", (group_id,))
    if members:
        raise GroupNotEmpty(f"group {group_id} has {members} members; only they commit its offsets")
