"""Replacing entries of a partition (compaction) and dropping them (the start of the log moves up).

A compaction is recorded before it is applied. The record holds a reference on the new object, so that the object
cannot be deleted meanwhile; applying hands that reference to the new entry. Applying compares the sources with the
entries that stand there now: any other write to the range makes the plan void.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID

from streamhouse.core.errors import CompactionConflict
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
from streamhouse.metadata.rows.layer import (
    PARTITION_COLUMNS,
    Row,
    RowStore,
    RowTx,
    as_uuid,
    found_partition,
    optional_uuid,
    to_key,
    to_partition,
)

# Commits to the partition wait for a chunk (on SQLite, commits to any partition).
DROP_CHUNK_ENTRIES = 5_000

_LOCK_PARTITION: Final = f"""
SELECT {PARTITION_COLUMNS}, p.last_compaction_id FROM partitions AS p
WHERE p.topic_id = $1 AND p.partition_id = $2 FOR NO KEY UPDATE
"""
_SELECT: Final = """
SELECT c.topic_id, c.partition_id, c.compaction_id, c.state, c.sources::text AS sources, c.target::text AS target,
       c.object_key, o.size_bytes, o.created_at
FROM compactions AS c LEFT JOIN objects AS o ON o.object_key = c.object_key
"""
_PENDING: Final = f"{_SELECT} WHERE c.topic_id = $1 AND c.partition_id = $2"
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
SELECT e.base_offset, e.end_offset, e.object_key FROM partitions AS p
JOIN entries AS e ON e.topic_id = p.topic_id AND e.partition_id = p.partition_id
WHERE p.topic_id = $1 AND p.partition_id = $2 AND e.end_offset BETWEEN greatest($3, p.log_start_offset) AND $4
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
# The cursor moves to the first entry left. A compaction begins exactly at the cursor and would never run below it.
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


class CompactionRows(RowStore, Maintenance):
    async def begin_compaction(self, compaction: Compaction) -> Compaction:
        checks.check_compaction(compaction)
        key, ref = compaction.key, compaction.object

        async def step(tx: RowTx) -> Compaction:
            partition = await _lock(tx, key)
            recorded = await _pending(tx, key)
            if recorded is not None:
                if recorded.compaction_id != compaction.compaction_id:
                    raise CompactionConflict(f"compaction {recorded.compaction_id} of {key} is pending")
                return recorded
            if optional_uuid(partition["last_compaction_id"]) == compaction.compaction_id:
                return compaction
            if ref.created_at_ms < partition["gc_horizon_ms"]:
                raise CompactionConflict(
                    f"object {ref.key} is older than the GC horizon of {key} and may be deleted", hint="write it again"
                )
            checks.check_thinning(compaction, partition["high_watermark"])
            if not await _sources_stand(tx, compaction):
                raise CompactionConflict(
                    f"the entries of {key} are not the sources that compaction was planned on", hint="plan it again"
                )
            await tx.execute(_INSERT, *_where(key), *_record_columns(compaction))
            await tx.reference([ref])
            return compaction

        return await self._transact(step)

    async def get_compaction(self, key: PartitionKey) -> Compaction | None:
        return await self._query(lambda tx: _pending(tx, key))

    async def list_compactions(self) -> list[Compaction]:
        rows = await self._fetch(f"{_SELECT} ORDER BY c.topic_id, c.partition_id")
        return [_to_compaction(row) for row in rows]

    async def apply_compaction(self, key: PartitionKey, compaction_id: UUID) -> CompactionVerdict:
        async def step(tx: RowTx) -> CompactionVerdict | None:
            partition = await _lock(tx, key)
            compaction = await _pending(tx, key)
            if compaction is None or compaction.compaction_id != compaction_id:
                if optional_uuid(partition["last_compaction_id"]) == compaction_id:
                    return CompactionVerdict.ALREADY
                raise CompactionConflict(f"compaction {compaction_id} of {key} is not pending", hint="plan it again")
            if not await _sources_stand(tx, compaction):
                await _drop_record(tx, compaction)
                return None
            await _replace(tx, compaction)
            return CompactionVerdict.APPLIED

        verdict = await self._transact(step)
        # Raised after the commit: the record must stay deleted.
        if verdict is None:
            raise CompactionConflict(
                f"the entries of {key} are no longer the sources of {compaction_id}; it is cleared",
                hint="plan it again",
            )
        return verdict

    async def abort_compaction(self, key: PartitionKey, compaction_id: UUID) -> bool:
        async def step(tx: RowTx) -> bool:
            await tx.fetchrow(_LOCK_PARTITION, *_where(key))
            compaction = await _pending(tx, key)
            if compaction is None or compaction.compaction_id != compaction_id:
                return False
            await _drop_record(tx, compaction)
            return True

        return await self._transact(step)

    async def advance_log_start(self, key: PartitionKey, offset: int) -> PartitionState:
        async def step(tx: RowTx) -> PartitionState:
            partition = await _lock(tx, key)
            start = max(partition["log_start_offset"], min(offset, partition["high_watermark"]))
            if start == partition["log_start_offset"]:
                return to_partition(partition)
            compaction = await _pending(tx, key)
            if compaction is not None and compaction.target.base_offset < start:
                await _drop_record(tx, compaction)
            moved = await tx.fetchrow(_RAISE_START, *_where(key), start)
            assert moved is not None
            return to_partition(moved)

        state = await self._transact(step)
        # Also when the log start stood there already: an interrupted call may have left entries below it.
        after: int | None = -1
        while after is not None:
            after = await self._drop_chunk(key, after)
        return state

    async def _drop_chunk(self, key: PartitionKey, after: int) -> int | None:
        """Drop the lowest entries wholly below the log start. Returns the last one's end; None when none are left."""

        async def step(tx: RowTx) -> int | None:
            partition = await tx.fetchrow(_LOCK_PARTITION, *_where(key))
            if partition is None:  # its topic was deleted meanwhile: ``purge_deleted_topics`` drops the rest
                return None
            limit = DROP_CHUNK_ENTRIES
            dropped = await tx.fetch(_DROP_CHUNK, *_where(key), after, partition["log_start_offset"], limit)
            await tx.dereference([row["object_key"] for row in dropped])
            return max(row["end_offset"] for row in dropped) if len(dropped) == limit else None

        return await self._transact(step)


async def _lock(tx: RowTx, key: PartitionKey) -> Row:
    return found_partition(await tx.fetchrow(_LOCK_PARTITION, *_where(key)), key)


async def _pending(tx: RowTx, key: PartitionKey) -> Compaction | None:
    row = await tx.fetchrow(_PENDING, *_where(key))
    return None if row is None else _to_compaction(row)


async def _sources_stand(tx: RowTx, compaction: Compaction) -> bool:
    """Whether the present entries of the range are exactly the sources."""
    target = compaction.target
    rows = await tx.fetch(_COVERED, *_where(compaction.key), target.base_offset, target.end_offset)
    return compaction.sources == tuple(
        CompactionSource(base_offset=row["base_offset"], end_offset=row["end_offset"], object_key=row["object_key"])
        for row in rows
    )


async def _replace(tx: RowTx, compaction: Compaction) -> None:
    key, target = compaction.key, compaction.target
    dropped = await tx.fetch(_DROP_SOURCES, *_where(key), target.base_offset, target.end_offset)
    # The last source's running maximum counts everything before it, so it is the target's too.
    running = max(row["running_max_timestamp"] for row in dropped)
    if target.max_timestamp_ms > running:
        # The rewrite found a newer record than its sources declared: later entries must not fall below it.
        await tx.execute(_RAISE_RUNNING_MAX, *_where(key), target.end_offset, target.max_timestamp_ms)
        await tx.execute(_RAISE_MAX, *_where(key), target.max_timestamp_ms)
    await tx.execute(
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
    await tx.execute(_CLEAR, *_where(key))
    await tx.dereference([row["object_key"] for row in dropped])
    await tx.execute(_MOVE_CURSOR, *_where(key), compaction.compaction_id, target.base_offset, target.end_offset + 1)


async def _drop_record(tx: RowTx, compaction: Compaction) -> None:
    await tx.execute(_CLEAR, *_where(compaction.key))
    await tx.dereference([compaction.object.key])


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
    # Earlier versions kept only the entry's fields on SQLite; the object's are in its own row.
    entry = target.get("entry", target)
    if "object" in target:
        ref = ObjectRef(**target["object"])
    else:
        ref = ObjectRef(key=row["object_key"], size_bytes=row["size_bytes"], created_at_ms=row["created_at"])
    return Compaction(
        key=to_key(row),
        compaction_id=as_uuid(row["compaction_id"]),
        sources=tuple(
            CompactionSource(base_offset=base, end_offset=end, object_key=object_key)
            for base, end, object_key in json.loads(row["sources"])
        ),
        target=Entry(**(entry | {"kind": EntryKind(entry["kind"])})),
        object=ref,
        state=CompactionState(row["state"]),
    )
