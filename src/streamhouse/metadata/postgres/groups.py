"""Consumer groups: their persisted state and their committed offsets."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

from streamhouse.core.errors import Conflict, GroupNotEmpty, GroupNotFound, StaleEpoch
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import CommittedOffset, Group, Groups, OffsetCommit, SlotFence, SlotKey, slot_of
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import key_columns, to_key
from streamhouse.metadata.postgres.session import Connection, Row

_ENCODED: Final = "\x01"  # the migration that brought it has put it before the texts that began with it
_COLUMNS: Final = """
    g.group_id, g.slot, g.slot_epoch, g.generation, g.member_count, g.payload, g.updated_at, g.empty_since,
    g.offsets_version
"""
_LOCK_GROUP: Final = f"SELECT {_COLUMNS} FROM consumer_groups AS g WHERE g.group_id = $1 FOR UPDATE"
_SAVE: Final = f"""
INSERT INTO consumer_groups AS g (
    group_id, slot, slot_epoch, generation, member_count, payload, updated_at, empty_since, offsets_version
)
SELECT $1, $2, $3, $4, $5::bigint, $6, clock.now_ms, CASE WHEN $5::bigint = 0 THEN clock.now_ms END, 0
FROM (SELECT sh_now_ms() AS now_ms) AS clock
ON CONFLICT (group_id) DO UPDATE SET
    slot_epoch = excluded.slot_epoch, generation = excluded.generation, member_count = excluded.member_count,
    payload = excluded.payload, updated_at = excluded.updated_at,
    empty_since = CASE WHEN excluded.member_count = 0 THEN coalesce(g.empty_since, excluded.empty_since) END
WHERE g.slot_epoch <= excluded.slot_epoch AND g.generation <= excluded.generation
RETURNING {_COLUMNS}
"""
_COMMIT: Final = "SELECT * FROM sh_commit_offsets($1, $2, $3, $4, $5, $6, $7, $8)"
_EXPIRE: Final = """
WITH empty AS (
    SELECT g.group_id FROM consumer_groups AS g
    WHERE g.empty_since <= (SELECT sh_now_ms()) - $1::bigint
    ORDER BY g.empty_since, g.group_id LIMIT $2 FOR UPDATE SKIP LOCKED
), offsets AS (
    DELETE FROM group_offsets AS o USING empty AS e WHERE o.group_id = e.group_id
)
DELETE FROM consumer_groups AS g USING empty AS e WHERE g.group_id = e.group_id RETURNING g.group_id
"""


class PostgresGroups(Groups):
    _database: Database

    async def save_group(
        self, group_id: str, fence: SlotFence, *, generation: int, member_count: int, payload: bytes
    ) -> Group:
        checks.check_group(group_id, payload)
        checks.check_fence(group_id, fence)
        checks.check_group_counts(group_id, generation=generation, member_count=member_count)

        async def work(connection: Connection) -> Group:
            await connection.execute("SELECT sh_check_slot($1, $2)", fence.slot.slot, fence.epoch)
            row = await connection.fetchrow(
                _SAVE, group_id, fence.slot.slot, fence.epoch, generation, member_count, payload
            )
            if row is not None:
                return _to_group(row)
            stored = await connection.fetchrow(_LOCK_GROUP, group_id)
            assert stored is not None
            if stored["slot_epoch"] > fence.epoch:
                raise StaleEpoch(str(fence.slot), expected=fence.epoch, actual=stored["slot_epoch"])
            raise Conflict(f"group {group_id} is at generation {stored['generation']}, past {generation}")

        return await self._database.transact(work)

    async def get_group(self, group_id: str) -> Group:
        row = await self._database.fetchrow(
            f"SELECT {_COLUMNS} FROM consumer_groups AS g WHERE g.group_id = $1", group_id
        )
        if row is None:
            raise GroupNotFound(f"there is no group {group_id}")
        return _to_group(row)

    async def list_groups(self, slot: SlotKey | None = None) -> list[Group]:
        rows = await self._database.fetch(
            f"""SELECT {_COLUMNS} FROM consumer_groups AS g WHERE $1::integer IS NULL OR g.slot = $1
                ORDER BY g.group_id""",
            None if slot is None else slot.slot,
        )
        return [_to_group(row) for row in rows]

    async def delete_group(self, group_id: str, fence: SlotFence) -> bool:
        checks.check_group(group_id)
        checks.check_fence(group_id, fence)

        async def work(connection: Connection) -> bool:
            group = await _lock_fenced(connection, group_id, fence)
            if group is None:
                return False
            if group["member_count"] > 0:
                raise GroupNotEmpty(f"group {group_id} has {group['member_count']} members")
            await connection.execute("DELETE FROM group_offsets WHERE group_id = $1", group_id)
            await connection.execute("DELETE FROM consumer_groups WHERE group_id = $1", group_id)
            return True

        return await self._database.transact(work)

    async def commit_offsets(
        self, group_id: str, fence: SlotFence, offsets: Sequence[OffsetCommit]
    ) -> list[PartitionKey]:
        checks.check_group(group_id, offsets=offsets)
        checks.check_fence(group_id, fence)
        args = (group_id, fence.slot.slot, fence.epoch, *_offset_columns(offsets))
        rows = await self._database.fetch(_COMMIT, *args)
        return [to_key(row) for row in rows]

    async def commit_offsets_simple(self, group_id: str, offsets: Sequence[OffsetCommit]) -> list[PartitionKey]:
        checks.check_group(group_id, offsets=offsets)
        rows = await self._database.fetch(_COMMIT, group_id, slot_of(group_id).slot, None, *_offset_columns(offsets))
        return [to_key(row) for row in rows]

    async def fetch_offsets(
        self, group_id: str, keys: Sequence[PartitionKey] | None = None
    ) -> dict[PartitionKey, CommittedOffset]:
        checks.check_group(group_id)
        wanted = "o.topic_id, o.partition_id, o.committed_offset, o.leader_epoch, o.metadata, o.committed_at"
        if keys is None:
            rows = await self._database.fetch(
                f"SELECT {wanted} FROM group_offsets AS o WHERE o.group_id = $1 ORDER BY o.topic_id, o.partition_id",
                group_id,
            )
        else:
            checks.check_keys(keys, "partitions")
            rows = await self._database.fetch(
                f"""SELECT {wanted} FROM unnest($2::uuid[], $3::integer[]) AS k (topic_id, partition_id)
                    JOIN group_offsets AS o
                        ON o.group_id = $1 AND o.topic_id = k.topic_id AND o.partition_id = k.partition_id""",
                group_id,
                *key_columns(keys),
            )
        return {offset.key: offset for offset in map(_to_offset, rows)}

    async def delete_offsets(self, group_id: str, fence: SlotFence, keys: Sequence[PartitionKey]) -> list[PartitionKey]:
        checks.check_group(group_id)
        checks.check_fence(group_id, fence)
        checks.check_keys(keys, "partitions")

        async def work(connection: Connection) -> list[PartitionKey]:
            if await _lock_fenced(connection, group_id, fence) is None:
                raise GroupNotFound(f"there is no group {group_id}")
            rows = await connection.fetch(
                """DELETE FROM group_offsets AS o
                   USING unnest($2::uuid[], $3::integer[]) AS k (topic_id, partition_id)
                   WHERE o.group_id = $1 AND o.topic_id = k.topic_id AND o.partition_id = k.partition_id
                   RETURNING o.topic_id, o.partition_id""",
                group_id,
                *key_columns(keys),
            )
            if rows:
                await connection.execute(
                    """UPDATE consumer_groups SET offsets_version = offsets_version + 1,
                           slot_epoch = greatest(slot_epoch, $2), updated_at = sh_now_ms()
                       WHERE group_id = $1""",
                    group_id,
                    fence.epoch,
                )
            dropped = {to_key(row) for row in rows}
            return [key for key in dict.fromkeys(keys) if key in dropped]

        return await self._database.transact(work)

    async def expire_groups(self, *, empty_for_ms: int, limit: int) -> list[str]:
        checks.check_duration(empty_for_ms, "an idle time")
        checks.check_sweep_limit(limit)
        rows = await self._database.fetch(_EXPIRE, empty_for_ms, limit)
        return sorted(row["group_id"] for row in rows)


async def _lock_fenced(connection: Connection, group_id: str, fence: SlotFence) -> Row | None:
    await connection.execute("SELECT sh_check_slot($1, $2)", fence.slot.slot, fence.epoch)
    row = await connection.fetchrow(_LOCK_GROUP, group_id)
    if row is not None and row["slot_epoch"] > fence.epoch:
        raise StaleEpoch(str(fence.slot), expected=fence.epoch, actual=row["slot_epoch"])
    return row


def _offset_columns(offsets: Sequence[OffsetCommit]) -> tuple[Any, ...]:
    return (
        *key_columns(commit.key for commit in offsets),
        [commit.offset for commit in offsets],
        [commit.leader_epoch for commit in offsets],
        [storable_text(commit.metadata) for commit in offsets],
    )


def storable_text(text: str) -> str:
    """PostgreSQL's text holds no NUL. A text with one is stored in base64 behind a mark; every other as it is."""
    if "\0" not in text and not text.startswith(_ENCODED):
        return text
    return _ENCODED + base64.b64encode(text.encode()).decode()


def stored_text(stored: str) -> str:
    if not stored.startswith(_ENCODED):
        return stored
    try:
        return base64.b64decode(stored[len(_ENCODED) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return stored  # written by a process that does not know the mark yet


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


def _to_offset(row: Row) -> CommittedOffset:
    return CommittedOffset(
        key=to_key(row),
        offset=row["committed_offset"],
        leader_epoch=row["leader_epoch"],
        metadata=stored_text(row["metadata"]),
        committed_at_ms=row["committed_at"],
    )
