"""Consumer groups: their saved state and their committed offsets.

Every write of a coordinator names the epoch of its slot. The slot's row is locked and compared first (R1), so that a
coordinator that lost its slot can save nothing more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Final

from streamhouse.core.errors import Conflict, GroupNotEmpty, GroupNotFound, StaleEpoch
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import CommittedOffset, Group, Groups, OffsetCommit, SlotFence, SlotKey
from streamhouse.metadata.rows.layer import Row, RowStore, RowTx, key_columns, to_key

_COLUMNS: Final = """
    g.group_id, g.slot, g.slot_epoch, g.generation, g.member_count, g.payload, g.updated_at, g.empty_since,
    g.offsets_version
"""
_GET: Final = f"SELECT {_COLUMNS} FROM consumer_groups AS g WHERE g.group_id = $1"
_SAVE: Final = f"""
INSERT INTO consumer_groups AS g (
    group_id, slot, slot_epoch, generation, member_count, payload, updated_at, empty_since, offsets_version
)
SELECT $1, $2, $3, $4, $5::bigint, $6, clock.now_ms, CASE WHEN $5::bigint = 0 THEN clock.now_ms END, 0
FROM (SELECT sh_now_ms() AS now_ms) AS clock
WHERE true ON CONFLICT (group_id) DO UPDATE SET
    slot_epoch = excluded.slot_epoch, generation = excluded.generation, member_count = excluded.member_count,
    payload = excluded.payload, updated_at = excluded.updated_at,
    empty_since = CASE WHEN excluded.member_count = 0 THEN coalesce(g.empty_since, excluded.empty_since) END
WHERE g.slot_epoch <= excluded.slot_epoch AND g.generation <= excluded.generation
RETURNING {_COLUMNS}
"""
_OFFSET_COLUMNS: Final = "o.topic_id, o.partition_id, o.committed_offset, o.leader_epoch, o.metadata, o.committed_at"
_DELETE_OFFSETS: Final = """
DELETE FROM group_offsets AS o
WHERE o.group_id = $1 AND (o.topic_id, o.partition_id) IN (
    SELECT k.topic_id, k.partition_id FROM unnest($2::uuid[], $3::integer[]) AS k (topic_id, partition_id))
RETURNING o.topic_id, o.partition_id
"""


class GroupRows(RowStore, Groups):
    @abstractmethod
    async def _commit_offsets(
        self, group_id: str, fence: SlotFence | None, offsets: Sequence[OffsetCommit]
    ) -> list[PartitionKey]:
        """Commit offsets in one go. ``fence`` is None for a commit without membership (``commit_offsets_simple``)."""

    def _offset_metadata(self, stored: str) -> str:
        """The text of a client, as it was before the store encoded it."""
        return stored

    async def save_group(
        self, group_id: str, fence: SlotFence, *, generation: int, member_count: int, payload: bytes
    ) -> Group:
        checks.check_group(group_id, payload)
        checks.check_fence(group_id, fence)
        checks.check_group_counts(group_id, generation=generation, member_count=member_count)

        async def step(tx: RowTx) -> Group:
            await _check_slot(tx, fence)
            row = await tx.fetchrow(_SAVE, group_id, fence.slot.slot, fence.epoch, generation, member_count, payload)
            if row is not None:
                return _to_group(row)
            stored = await _lock(tx, group_id, fence)
            assert stored is not None
            raise Conflict(f"group {group_id} is at generation {stored['generation']}, past {generation}")

        return await self._transact(step)

    async def get_group(self, group_id: str) -> Group:
        checks.check_group(group_id)
        row = await self._fetchrow(_GET, group_id)
        if row is None:
            raise _not_found(group_id)
        return _to_group(row)

    async def list_groups(self, slot: SlotKey | None = None) -> list[Group]:
        rows = await self._fetch(
            f"""SELECT {_COLUMNS} FROM consumer_groups AS g WHERE $1::integer IS NULL OR g.slot = $1
                ORDER BY g.group_id""",
            None if slot is None else slot.slot,
        )
        return [_to_group(row) for row in rows]

    async def delete_group(self, group_id: str, fence: SlotFence) -> bool:
        checks.check_group(group_id)
        checks.check_fence(group_id, fence)

        async def step(tx: RowTx) -> bool:
            await _check_slot(tx, fence)
            group = await _lock(tx, group_id, fence)
            if group is None:
                return False
            if group["member_count"] > 0:
                raise GroupNotEmpty(f"group {group_id} has {group['member_count']} members")
            await tx.execute("DELETE FROM group_offsets WHERE group_id = $1", group_id)
            await tx.execute("DELETE FROM consumer_groups WHERE group_id = $1", group_id)
            return True

        return await self._transact(step)

    async def commit_offsets(
        self, group_id: str, fence: SlotFence, offsets: Sequence[OffsetCommit]
    ) -> list[PartitionKey]:
        checks.check_group(group_id, offsets=offsets)
        checks.check_fence(group_id, fence)
        return await self._commit_offsets(group_id, fence, offsets)

    async def commit_offsets_simple(self, group_id: str, offsets: Sequence[OffsetCommit]) -> list[PartitionKey]:
        checks.check_group(group_id, offsets=offsets)
        return await self._commit_offsets(group_id, None, offsets)

    async def fetch_offsets(
        self, group_id: str, keys: Sequence[PartitionKey] | None = None
    ) -> dict[PartitionKey, CommittedOffset]:
        checks.check_group(group_id)
        if keys is None:
            rows = await self._fetch(
                f"""SELECT {_OFFSET_COLUMNS} FROM group_offsets AS o WHERE o.group_id = $1
                    ORDER BY o.topic_id, o.partition_id""",
                group_id,
            )
        else:
            checks.check_keys(keys, "partitions")
            rows = await self._fetch(
                f"""SELECT {_OFFSET_COLUMNS} FROM unnest($2::uuid[], $3::integer[]) AS k (topic_id, partition_id)
                    JOIN group_offsets AS o
                        ON o.group_id = $1 AND o.topic_id = k.topic_id AND o.partition_id = k.partition_id""",
                group_id,
                *key_columns(keys),
            )
        return {offset.key: offset for offset in map(self._to_offset, rows)}

    async def delete_offsets(self, group_id: str, fence: SlotFence, keys: Sequence[PartitionKey]) -> list[PartitionKey]:
        checks.check_group(group_id)
        checks.check_fence(group_id, fence)
        checks.check_keys(keys, "partitions")

        async def step(tx: RowTx) -> list[PartitionKey]:
            await _check_slot(tx, fence)
            if await _lock(tx, group_id, fence) is None:
                raise _not_found(group_id)
            rows = await tx.fetch(_DELETE_OFFSETS, group_id, *key_columns(keys))
            if rows:
                await tx.execute(
                    """UPDATE consumer_groups SET offsets_version = offsets_version + 1,
                           slot_epoch = greatest(slot_epoch, $2), updated_at = sh_now_ms()
                       WHERE group_id = $1""",
                    group_id,
                    fence.epoch,
                )
            dropped = set(map(to_key, rows))
            return [key for key in dict.fromkeys(keys) if key in dropped]

        return await self._transact(step)

    async def expire_groups(self, *, empty_for_ms: int, limit: int) -> list[str]:
        checks.check_duration(empty_for_ms, "an idle time")
        checks.check_sweep_limit(limit)

        async def step(tx: RowTx) -> list[str]:
            rows = await tx.fetch(
                """SELECT group_id FROM consumer_groups WHERE empty_since <= (SELECT sh_now_ms()) - $1::bigint
                   ORDER BY empty_since, group_id LIMIT $2 FOR UPDATE SKIP LOCKED""",
                empty_for_ms,
                limit,
            )
            expired = sorted(row["group_id"] for row in rows)
            if expired:
                await tx.execute("DELETE FROM group_offsets WHERE group_id = ANY ($1::text[])", expired)
                await tx.execute("DELETE FROM consumer_groups WHERE group_id = ANY ($1::text[])", expired)
            return expired

        return await self._transact(step)

    def _to_offset(self, row: Row) -> CommittedOffset:
        return CommittedOffset(
            key=to_key(row),
            offset=row["committed_offset"],
            leader_epoch=row["leader_epoch"],
            metadata=self._offset_metadata(row["metadata"]),
            committed_at_ms=row["committed_at"],
        )


async def _check_slot(tx: RowTx, fence: SlotFence) -> None:
    """The slot's row is locked first, at the very epoch of the coordinator (R1)."""
    epoch = await tx.fetchval("SELECT epoch FROM coordinator_slots WHERE slot = $1 FOR SHARE", fence.slot.slot)
    if epoch != fence.epoch:
        raise StaleEpoch(str(fence.slot), expected=fence.epoch, actual=epoch or 0)


async def _lock(tx: RowTx, group_id: str, fence: SlotFence) -> Row | None:
    row = await tx.fetchrow(f"{_GET} FOR UPDATE", group_id)
    if row is not None and row["slot_epoch"] > fence.epoch:
        raise StaleEpoch(str(fence.slot), expected=fence.epoch, actual=row["slot_epoch"])
    return row


def _not_found(group_id: str) -> GroupNotFound:
    return GroupNotFound(f"there is no group {group_id[:260]!r}")


def _to_group(row: Row) -> Group:
    return Group(
        group_id=row["group_id"],
        slot=SlotKey(row["slot"]),
        slot_epoch=row["slot_epoch"],
        generation=row["generation"],
        member_count=row["member_count"],
        payload=row["payload"],
        updated_at_ms=row["updated_at"],
        empty_since_ms=row["empty_since"],
        offsets_version=row["offsets_version"],
    )
