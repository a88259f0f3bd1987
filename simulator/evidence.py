"""Reads what is left at the end of a run, directly from tables and objects."""

from __future__ import annotations

import sqlite3

from simulator.history import Key, Leftovers, RawEntry, RawPartition
from streamhouse.metadata.sqlite.connections import MEMORY, connect
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.memory import MemoryStore


def collect(metadata: SqliteMetadata, objects: MemoryStore) -> Leftovers:
    rows = _connection(metadata).execute("SELECT hex(topic_id), partition_id FROM partitions").fetchall()
    partitions: dict[Key, RawPartition] = {}
    for topic_id, number in rows:
        key = (topic_id.lower(), number)
        partition = raw_partition(metadata, key)
        assert partition is not None
        partitions[key] = partition
    return Leftovers(partitions=partitions, objects=stored_objects(objects))


def raw_partition(metadata: SqliteMetadata, key: Key) -> RawPartition | None:
    connection = _connection(metadata)
    place = (bytes.fromhex(key[0]), key[1])
    row = connection.execute(
        "SELECT high_watermark, log_start_offset FROM partitions WHERE topic_id = ? AND partition_id = ?", place
    ).fetchone()
    if row is None:
        return None
    entries = connection.execute(
        "SELECT base_offset, end_offset, object_key, byte_offset, byte_length, record_count, encoding, epoch "
        "FROM entries WHERE topic_id = ? AND partition_id = ? ORDER BY end_offset",
        place,
    ).fetchall()
    return RawPartition(
        high_watermark=row[0],
        log_start=row[1],
        entries=tuple(
            RawEntry(
                base_offset=base,
                end_offset=end,
                object_key=name,
                byte_offset=byte_offset,
                byte_length=byte_length,
                record_count=records,
                encoding=encoding,
                epoch=epoch,
            )
            for base, end, name, byte_offset, byte_length, records, encoding, epoch in entries
        ),
    )


def stored_objects(objects: MemoryStore) -> dict[str, bytes]:
    return {name: stored.data for name, stored in objects._objects.items()}


def leave_slots(metadata: SqliteMetadata, count: int) -> None:
    """Fewer coordinator slots than the schema makes: they are leased like partitions and say nothing new."""
    _connection(metadata).execute("DELETE FROM coordinator_slots WHERE slot >= ?", (count,))


def dump(metadata: SqliteMetadata) -> bytes:
    return _connection(metadata).serialize()


def restore(metadata: SqliteMetadata, data: bytes) -> None:
    """Uses a new connection: SQLite crashes when a prepared statement with json_each outlives ``deserialize``."""
    engine = metadata._engine
    old, engine._connection = _connection(metadata), connect(MEMORY, busy_timeout_ms=0)
    old.close()
    engine._connection.deserialize(data)


def _connection(metadata: SqliteMetadata) -> sqlite3.Connection:
    return metadata._engine._writer_connection()
