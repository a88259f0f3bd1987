"""Replacing entries (compaction), dropping them (retention, deleted topics), and what that does to their objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final
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
    ObjectRef,
    PartitionState,
)
from streamhouse.metadata.sqlite.objects import add_references, drop_references
from streamhouse.metadata.sqlite.rows import find_partition, need_partition, sql_key, topic_id_of
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Refused, Row, Tx

# All writing waits for a chunk, whatever partition it is for.
DROP_CHUNK_ENTRIES = 5_000

_SELECT: Final = """
    SELECT topic_id, partition_id, compaction_id, state, sources, target, o.object_key, o.size_bytes, o.created_at
    FROM compactions c JOIN objects o ON o.object_key = c.object_key"""

_INSERT_TARGET: Final = """
    INSERT INTO entries (topic_id, partition_id, base_offset, end_offset, kind, object_key, byte_offset, byte_length,
        record_count, encoding, min_timestamp, max_timestamp, running_max_timestamp, epoch, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

# Which topics have entries but are gone. It leaps from topic to topic along the key instead of reading every entry.
_DELETED_TOPIC: Final = """
    WITH RECURSIVE present (topic_id) AS (
        SELECT min(topic_id) FROM entries
        UNION ALL
        SELECT (SELECT min(topic_id) FROM entries WHERE topic_id > present.topic_id)
        FROM present WHERE present.topic_id IS NOT NULL
    )
    SELECT topic_id FROM present
    WHERE topic_id IS NOT NULL AND topic_id NOT IN (SELECT topic_id FROM topics) LIMIT 1"""


def begin_compaction(tx: Tx, compaction: Compaction) -> Compaction:
    partition = need_partition(tx, compaction.key)
    pending = get_compaction(tx, compaction.key)
    if pending is not None:
        if pending.compaction_id == compaction.compaction_id:
            return pending
        raise CompactionConflict(f"{compaction.key} has another compaction pending, {pending.compaction_id}")
    if _last_applied(tx, compaction.key) == compaction.compaction_id:
        return compaction
    if compaction.object.created_at_ms < partition.gc_horizon_ms:
        raise CompactionConflict(
            f"object {compaction.object.key} is older than the horizon and may be deleted", hint="write it again"
        )
    checks.check_thinning(compaction, partition.high_watermark)
    _check_sources(tx, compaction)
    add_references(tx, [compaction.object])
    tx.run(
        "INSERT INTO compactions (topic_id, partition_id, compaction_id, state, base_offset, end_offset, "
        "tail_base_offset, sources, target, object_key, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *sql_key(compaction.key),
            compaction.compaction_id.bytes,
            CompactionState.WRITING_COMPACTED_INDEX.value,
            compaction.target.base_offset,
            compaction.target.end_offset,
            compaction.sources[-1].base_offset,
            _sources_json(compaction.sources),
            _entry_json(compaction.target),
            compaction.object.key,
            tx.now_ms,
        ),
    )
    begun = get_compaction(tx, compaction.key)
    assert begun is not None
    return begun


def get_compaction(tx: Tx, key: PartitionKey) -> Compaction | None:
    row = tx.row(f"{_SELECT} WHERE topic_id = ? AND partition_id = ?", sql_key(key))
    return None if row is None else _compaction_of(row)


def list_compactions(tx: Tx) -> list[Compaction]:
    return [_compaction_of(row) for row in tx.rows(f"{_SELECT} ORDER BY topic_id, partition_id")]


def apply_compaction(tx: Tx, key: PartitionKey, compaction_id: UUID) -> CompactionVerdict | Refused:
    partition = need_partition(tx, key)
    compaction = get_compaction(tx, key)
    if compaction is None or compaction.compaction_id != compaction_id:
        if _last_applied(tx, key) == compaction_id:
            return CompactionVerdict.ALREADY
        raise CompactionConflict(f"compaction {compaction_id} of {key} is not pending", hint="plan it again")
    try:
        _check_sources(tx, compaction)
    except CompactionConflict as conflict:
        _clear(tx, compaction, drop_object=True)
        return Refused(conflict)
    _replace_entries(tx, compaction)
    _clear(tx, compaction, drop_object=False)  # its reference goes over to the entry
    target = compaction.target
    cursor = partition.compaction_cursor
    tx.run(
        "UPDATE partitions SET last_compaction_id = ?, compaction_cursor = ? WHERE topic_id = ? AND partition_id = ?",
        (
            compaction_id.bytes,
            max(cursor, target.end_offset + 1) if target.base_offset <= cursor else cursor,
            *sql_key(key),
        ),
    )
    return CompactionVerdict.APPLIED


def _replace_entries(tx: Tx, compaction: Compaction) -> None:
    key, target = compaction.key, compaction.target
    covered = (*sql_key(key), target.base_offset, target.end_offset)
    within = "topic_id = ? AND partition_id = ? AND end_offset BETWEEN ? AND ?"
    reached = int(tx.value(f"SELECT max(running_max_timestamp) FROM entries WHERE {within}", covered))
    tx.run(f"DELETE FROM entries WHERE {within}", covered)
    drop_references(tx, [source.object_key for source in compaction.sources])
    if target.max_timestamp_ms > reached:
        _raise_running_max(tx, key, target)
    tx.run(
        _INSERT_TARGET,
        (
            *sql_key(key),
            target.base_offset,
            target.end_offset,
            target.kind.value,
            target.object_key,
            target.byte_offset,
            target.byte_length,
            target.record_count,
            target.encoding,
            target.min_timestamp_ms,
            target.max_timestamp_ms,
            max(reached, target.max_timestamp_ms),
            target.epoch,
            target.created_at_ms,
        ),
    )


def _raise_running_max(tx: Tx, key: PartitionKey, target: Entry) -> None:
    """A rewrite found a newer record than its sources declared: keep the running maximum running."""
    tx.run(
        "UPDATE entries SET running_max_timestamp = max(running_max_timestamp, ?) "
        "WHERE topic_id = ? AND partition_id = ? AND end_offset > ?",
        (target.max_timestamp_ms, *sql_key(key), target.end_offset),
    )
    tx.run(
        "UPDATE partitions SET max_timestamp = max(max_timestamp, ?) WHERE topic_id = ? AND partition_id = ?",
        (target.max_timestamp_ms, *sql_key(key)),
    )


def abort_compaction(tx: Tx, key: PartitionKey, compaction_id: UUID) -> bool:
    compaction = get_compaction(tx, key)
    if compaction is None or compaction.compaction_id != compaction_id:
        return False
    _clear(tx, compaction, drop_object=True)
    return True


def advance_log_start(tx: Tx, key: PartitionKey, offset: int) -> PartitionState:
    partition = need_partition(tx, key)
    start = max(partition.log_start_offset, min(offset, partition.high_watermark))
    if start == partition.log_start_offset:
        return partition
    compaction = get_compaction(tx, key)
    if compaction is not None and compaction.target.base_offset < start:
        _clear(tx, compaction, drop_object=True)
    first_left = tx.value(
        "SELECT base_offset FROM entries WHERE topic_id = ? AND partition_id = ? AND end_offset >= ? "
        "ORDER BY end_offset LIMIT 1",
        (*sql_key(key), start),
    )
    # Compaction begins exactly at the cursor; left among dropped entries it would never find one there again.
    tx.run(
        "UPDATE partitions SET log_start_offset = ?, compaction_cursor = max(compaction_cursor, ?) "
        "WHERE topic_id = ? AND partition_id = ?",
        (start, partition.high_watermark if first_left is None else first_left, *sql_key(key)),
    )
    return need_partition(tx, key)


def drop_chunk(tx: Tx, key: PartitionKey) -> bool:
    """Drop the lowest entries wholly below the log start; whether more may be left."""
    partition = find_partition(tx, key)
    if partition is None:  # its topic was deleted meanwhile: ``purge_deleted_topics`` has the rest
        return False
    dropped = tx.rows(
        "SELECT end_offset, object_key FROM entries WHERE topic_id = ? AND partition_id = ? AND end_offset < ? "
        "ORDER BY end_offset LIMIT ?",
        (*sql_key(key), partition.log_start_offset, DROP_CHUNK_ENTRIES),
    )
    if dropped:
        tx.run(
            "DELETE FROM entries WHERE topic_id = ? AND partition_id = ? AND end_offset <= ?",
            (*sql_key(key), dropped[-1][0]),
        )
        drop_references(tx, [object_key for _, object_key in dropped])
    return len(dropped) == DROP_CHUNK_ENTRIES


def purge_deleted_topics(tx: Tx, *, limit: int) -> int:
    purged = 0
    while purged < limit:
        topic_id = tx.value(_DELETED_TOPIC)
        if topic_id is None:
            break
        rows = tx.rows(
            "SELECT topic_id, partition_id, end_offset, object_key FROM entries WHERE topic_id = ? LIMIT ?",
            (topic_id, limit - purged),
        )
        tx.run_many(
            "DELETE FROM entries WHERE topic_id = ? AND partition_id = ? AND end_offset = ?", [row[:3] for row in rows]
        )
        drop_references(tx, [row[3] for row in rows])
        purged += len(rows)
    return purged


def _check_sources(tx: Tx, compaction: Compaction) -> None:
    """They must be exactly the entries that stand there now; what lies wholly below the log start is gone already."""
    log_start = need_partition(tx, compaction.key).log_start_offset
    rows = tx.rows(
        "SELECT base_offset, end_offset, object_key FROM entries "
        "WHERE topic_id = ? AND partition_id = ? AND end_offset BETWEEN ? AND ? ORDER BY end_offset",
        (*sql_key(compaction.key), max(compaction.target.base_offset, log_start), compaction.target.end_offset),
    )
    if rows != [(source.base_offset, source.end_offset, source.object_key) for source in compaction.sources]:
        raise CompactionConflict(
            f"offsets {compaction.target.base_offset}-{compaction.target.end_offset} of {compaction.key} "
            "have other entries by now",
            hint="plan it again",
        )


def _clear(tx: Tx, compaction: Compaction, *, drop_object: bool) -> None:
    tx.run("DELETE FROM compactions WHERE topic_id = ? AND partition_id = ?", sql_key(compaction.key))
    if drop_object:
        drop_references(tx, [compaction.object.key])


def _last_applied(tx: Tx, key: PartitionKey) -> UUID | None:
    raw = tx.value("SELECT last_compaction_id FROM partitions WHERE topic_id = ? AND partition_id = ?", sql_key(key))
    return None if raw is None else UUID(bytes=raw)


def _sources_json(sources: Sequence[CompactionSource]) -> str:
    return json.dumps([(source.base_offset, source.end_offset, source.object_key) for source in sources])


def _entry_json(entry: Entry) -> str:
    return json.dumps(
        {
            "base_offset": entry.base_offset,
            "end_offset": entry.end_offset,
            "kind": entry.kind.value,
            "object_key": entry.object_key,
            "byte_offset": entry.byte_offset,
            "byte_length": entry.byte_length,
            "record_count": entry.record_count,
            "encoding": entry.encoding,
            "min_timestamp_ms": entry.min_timestamp_ms,
            "max_timestamp_ms": entry.max_timestamp_ms,
            "epoch": entry.epoch,
            "created_at_ms": entry.created_at_ms,
        }
    )


def _compaction_of(row: Row) -> Compaction:
    topic_id, partition, compaction_id, state, sources, target, object_key, size, created_at = row
    fields = json.loads(target)
    return Compaction(
        key=PartitionKey(topic_id_of(topic_id), partition),
        compaction_id=UUID(bytes=compaction_id),
        sources=tuple(
            CompactionSource(base_offset=base, end_offset=end, object_key=name)
            for base, end, name in json.loads(sources)
        ),
        target=Entry(**{**fields, "kind": EntryKind(fields["kind"])}),
        object=ObjectRef(key=object_key, size_bytes=size, created_at_ms=created_at),
        state=CompactionState(state),
    )


class CompactionCalls(Shell):
    async def begin_compaction(self, compaction: Compaction) -> Compaction:
        checks.check_compaction(compaction)
        return await self._write(begin_compaction, compaction)

    async def get_compaction(self, key: PartitionKey) -> Compaction | None:
        return await self._read(get_compaction, key)

    async def list_compactions(self) -> list[Compaction]:
        return await self._read(list_compactions)

    async def apply_compaction(self, key: PartitionKey, compaction_id: UUID) -> CompactionVerdict:
        return await self._write(apply_compaction, key, compaction_id)

    async def abort_compaction(self, key: PartitionKey, compaction_id: UUID) -> bool:
        return await self._write(abort_compaction, key, compaction_id)

    async def advance_log_start(self, key: PartitionKey, offset: int) -> PartitionState:
        state = await self._write(advance_log_start, key, offset)
        # Also when the log start stood there already: an interrupted call may have left some.
        while await self._write(drop_chunk, key):
            pass
        return state

    async def purge_deleted_topics(self, *, limit: int) -> int:
        checks.check_sweep_limit(limit)
        return await self._write(purge_deleted_topics, limit=limit)
