"""Whatever replaces or drops entries of one partition: compaction records, their application, the log's start."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Any, Final
from uuid import UUID

from streamhouse.core.errors import CompactionConflict, PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    Compaction,
    CompactionSource,
    CompactionState,
    CompactionVerdict,
    Entry,
    EntryKind,
    Maintenance,
    ObjectRef,
    PartitionState,
)
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import PARTITION_COLUMNS, plain_uuid, to_key, to_partition
from streamhouse.metadata.postgres.session import Connection, Row

# Commits to the partition wait for a chunk, and its statements have a time limit however long the log was.
DROP_CHUNK_ENTRIES = 5_000

_LOCK_PARTITION: Final = f"""
SELECT {PARTITION_COLUMNS}, p.last_compaction_id FROM partitions AS p
WHERE p.topic_id = $1 AND p.partition_id = $2 FOR NO KEY UPDATE
"""
_COLUMNS: Final = """
    c.topic_id, c.partition_id, c.compaction_id, c.state, c.sources::text AS sources, c.target::text AS target,
    c.object_key
"""
_PENDING: Final = f"SELECT {_COLUMNS} FROM compactions AS c WHERE c.topic_id = $1 AND c.partition_id = $2"
_INSERT: Final = """
INSERT INTO compactions (
    topic_id, partition_id, compaction_id, state, base_offset, end_offset, tail_base_offset, sources, target,
    object_key, created_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::text::jsonb, $9::text::jsonb, $10, sh_now_ms())
"""
_CLEAR: Final = "DELETE FROM compactions WHERE topic_id = $1 AND partition_id = $2"
# What lies wholly below the log start is gone already, whether or not it has been dropped yet.
_COVERED: Final = """
SELECT e.base_offset, e.end_offset, e.object_key FROM entries AS e
JOIN partitions AS p ON p.topic_id = e.topic_id AND p.partition_id = e.partition_id
WHERE e.topic_id = $1 AND e.partition_id = $2 AND e.end_offset >= greatest($3, p.log_start_offset)
    AND e.base_offset <= $4
ORDER BY e.end_offset
"""
_DROP_SOURCES: Final = """
DELETE FROM entries WHERE topic_id = $1 AND partition_id = $2 AND end_offset BETWEEN $3 AND $4
RETURNING object_key, running_max_timestamp
"""
# Beginning behind the last chunk spares it the index entries of what has just been dropped.
_DROP_CHUNK: Final = """
DELETE FROM entries WHERE topic_id = $1 AND partition_id = $2 AND end_offset > $3 AND end_offset <= (
    SELECT max(lowest.end_offset) FROM (
        SELECT e.end_offset FROM entries AS e
        WHERE e.topic_id = $1 AND e.partition_id = $2 AND e.end_offset > $3 AND e.end_offset < $4
        ORDER BY e.end_offset LIMIT $5
    ) AS lowest
)
RETURNING end_offset, object_key
"""
_INSERT_TARGET: Final = """
INSERT INTO entries (
    topic_id, partition_id, end_offset, base_offset, kind, object_key, byte_offset, byte_length, record_count,
    encoding, min_timestamp, max_timestamp, running_max_timestamp, epoch, created_at
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
"""
_RAISE_RUNNING_MAX: Final = """
UPDATE entries SET running_max_timestamp = $4
WHERE topic_id = $1 AND partition_id = $2 AND end_offset > $3 AND running_max_timestamp < $4
"""
_RAISE_MAX: Final = """
UPDATE partitions SET max_timestamp = $3 WHERE topic_id = $1 AND partition_id = $2 AND max_timestamp < $3
"""
_MOVE_CURSOR: Final = """
UPDATE partitions SET last_compaction_id = $3,
    compaction_cursor = CASE WHEN compaction_cursor BETWEEN $4 AND $5 THEN $5 ELSE compaction_cursor END
WHERE topic_id = $1 AND partition_id = $2
"""
# The cursor follows to the first entry left: compaction begins exactly at it and would be stuck below.
_RAISE_START: Final = f"""
UPDATE partitions AS p SET
    log_start_offset = $3,
    compaction_cursor = greatest(p.compaction_cursor, coalesce(
        (SELECT e.base_offset FROM entries AS e
         WHERE e.topic_id = $1 AND e.partition_id = $2 AND e.end_offset >= $3 ORDER BY e.end_offset LIMIT 1),
        p.high_watermark))
WHERE p.topic_id = $1 AND p.partition_id = $2
RETURNING {PARTITION_COLUMNS}
"""


class PostgresCompactions(Maintenance):
    _database: Database

    async def begin_compaction(self, compaction: Compaction) -> Compaction:
        checks.check_compaction(compaction)
        key, ref = compaction.key, compaction.object

        async def work(connection: Connection) -> Compaction:
            partition = await _lock(connection, key)
            pending = await connection.fetchrow(_PENDING, *_where(key))
            if pending is not None:
                recorded = _to_compaction(pending)
                if recorded.compaction_id != compaction.compaction_id:
                    raise CompactionConflict(f"compaction {recorded.compaction_id} of {key} is pending")
                return recorded
            if partition["last_compaction_id"] == compaction.compaction_id:
                return compaction
            if ref.created_at_ms < partition["gc_horizon_ms"]:
                raise CompactionConflict(f"object {ref.key} is older than the GC horizon of {key}")
            checks.check_thinning(compaction, partition["high_watermark"])
            if not await _sources_stand(connection, compaction):
                raise CompactionConflict(f"the entries of {key} are not the sources that compaction was planned on")
            await connection.execute(_INSERT, *_where(key), *_record_columns(compaction))
            await connection.execute(
                "SELECT sh_reference($1, $2, $3, $4)", [ref.key], [ref.size_bytes], [ref.created_at_ms], [1]
            )
            return compaction

        return await self._database.transact(work)

    async def get_compaction(self, key: PartitionKey) -> Compaction | None:
        row = await self._database.fetchrow(_PENDING, *_where(key))
        return None if row is None else _to_compaction(row)

    async def list_compactions(self) -> list[Compaction]:
        rows = await self._database.fetch(
            f"SELECT {_COLUMNS} FROM compactions AS c ORDER BY c.topic_id, c.partition_id"
        )
        return [_to_compaction(row) for row in rows]

    async def apply_compaction(self, key: PartitionKey, compaction_id: UUID) -> CompactionVerdict:
        async def work(connection: Connection) -> CompactionVerdict | None:
            partition = await _lock(connection, key)
            pending = await connection.fetchrow(_PENDING, *_where(key))
            if pending is None or pending["compaction_id"] != compaction_id:
                if partition["last_compaction_id"] == compaction_id:
                    return CompactionVerdict.ALREADY
                raise CompactionConflict(f"compaction {compaction_id} of {key} is not pending")
            compaction = _to_compaction(pending)
            if not await _sources_stand(connection, compaction):
                await _drop_record(connection, compaction)
                return None
            await _replace(connection, compaction)
            return CompactionVerdict.APPLIED

        verdict = await self._database.transact(work)
        if verdict is None:
            raise CompactionConflict(
                f"the entries of {key} are no longer the sources of {compaction_id}; it is cleared"
            )
        return verdict

    async def abort_compaction(self, key: PartitionKey, compaction_id: UUID) -> bool:
        async def work(connection: Connection) -> bool:
            await connection.fetchrow(_LOCK_PARTITION, *_where(key))
            pending = await connection.fetchrow(_PENDING, *_where(key))
            if pending is None or pending["compaction_id"] != compaction_id:
                return False
            await _drop_record(connection, _to_compaction(pending))
            return True

        return await self._database.transact(work)

    async def advance_log_start(self, key: PartitionKey, offset: int) -> PartitionState:
        async def work(connection: Connection) -> PartitionState:
            partition = await _lock(connection, key)
            start = max(partition["log_start_offset"], min(offset, partition["high_watermark"]))
            if start == partition["log_start_offset"]:
                return to_partition(partition)
            pending = await connection.fetchrow(_PENDING, *_where(key))
            if pending is not None:
                compaction = _to_compaction(pending)
                if compaction.target.base_offset < start:
                    await _drop_record(connection, compaction)
            moved = await connection.fetchrow(_RAISE_START, *_where(key), start)
            assert moved is not None
            return to_partition(moved)

        state = await self._database.transact(work)
        # Also when the log start stood there already: an interrupted call may have left some.
        after: int | None = -1
        while after is not None:
            after = await self._database.transact(partial(drop_chunk, key=key, after=after))
        return state


async def drop_chunk(connection: Connection, *, key: PartitionKey, after: int) -> int | None:
    """Drop the lowest entries wholly below the log start; the last one's end, None when no more are left."""
    partition = await connection.fetchrow(_LOCK_PARTITION, *_where(key))
    if partition is None:  # its topic was deleted meanwhile: ``purge_deleted_topics`` has the rest
        return None
    start, limit = partition["log_start_offset"], DROP_CHUNK_ENTRIES
    dropped = await connection.fetch(_DROP_CHUNK, *_where(key), after, start, limit)
    if dropped:
        await connection.execute("SELECT sh_dereference($1)", [row["object_key"] for row in dropped])
    return max(row["end_offset"] for row in dropped) if len(dropped) == limit else None


async def _lock(connection: Connection, key: PartitionKey) -> Row:
    row = await connection.fetchrow(_LOCK_PARTITION, *_where(key))
    if row is None:
        raise PartitionNotFound(f"there is no partition {key}")
    return row


async def _sources_stand(connection: Connection, compaction: Compaction) -> bool:
    """Whether the present entries of the range are exactly the sources."""
    target = compaction.target
    rows = await connection.fetch(_COVERED, *_where(compaction.key), target.base_offset, target.end_offset)
    return compaction.sources == tuple(
        CompactionSource(base_offset=row["base_offset"], end_offset=row["end_offset"], object_key=row["object_key"])
        for row in rows
    )


async def _replace(connection: Connection, compaction: Compaction) -> None:
    key, target = compaction.key, compaction.target
    dropped = await connection.fetch(_DROP_SOURCES, *_where(key), target.base_offset, target.end_offset)
    # The last source's running maximum counts everything before it, so it is the target's too.
    running = max(row["running_max_timestamp"] for row in dropped)
    if target.max_timestamp_ms > running:
        # The rewrite found a newer record than its sources declared: keep the running maximum running.
        await connection.execute(_RAISE_RUNNING_MAX, *_where(key), target.end_offset, target.max_timestamp_ms)
        await connection.execute(_RAISE_MAX, *_where(key), target.max_timestamp_ms)
    await connection.execute(
        _INSERT_TARGET,
        *_where(key),
        target.end_offset,
        target.base_offset,
        str(target.kind),
        target.object_key,
        target.byte_offset,
        target.byte_length,
        target.record_count,
        target.encoding,
        target.min_timestamp_ms,
        target.max_timestamp_ms,
        max(running, target.max_timestamp_ms),
        target.epoch,
        target.created_at_ms,
    )
    # The record's reference to the target's object becomes the entry's.
    await connection.execute(_CLEAR, *_where(key))
    await connection.execute("SELECT sh_dereference($1)", [row["object_key"] for row in dropped])
    await connection.execute(
        _MOVE_CURSOR, *_where(key), compaction.compaction_id, target.base_offset, target.end_offset + 1
    )


async def _drop_record(connection: Connection, compaction: Compaction) -> None:
    await connection.execute(_CLEAR, *_where(compaction.key))
    await connection.execute("SELECT sh_dereference($1)", [compaction.object.key])


def _where(key: PartitionKey) -> tuple[UUID, int]:
    return key.topic_id, key.partition


def _record_columns(compaction: Compaction) -> tuple[Any, ...]:
    sources = [[source.base_offset, source.end_offset, source.object_key] for source in compaction.sources]
    target = {"entry": asdict(compaction.target), "object": asdict(compaction.object)}
    return (
        compaction.compaction_id,
        str(compaction.state),
        compaction.target.base_offset,
        compaction.target.end_offset,
        compaction.sources[-1].base_offset,
        json.dumps(sources),
        json.dumps(target),
        compaction.object.key,
    )


def _to_compaction(row: Row) -> Compaction:
    target = json.loads(row["target"])
    entry = dict(target["entry"])
    return Compaction(
        key=to_key(row),
        compaction_id=plain_uuid(row["compaction_id"]),
        sources=tuple(
            CompactionSource(base_offset=base, end_offset=end, object_key=object_key)
            for base, end, object_key in json.loads(row["sources"])
        ),
        target=Entry(**(entry | {"kind": EntryKind(entry["kind"])})),
        object=ObjectRef(**target["object"]),
        state=CompactionState(row["state"]),
    )
