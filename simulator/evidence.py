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
    return Leftovers(
        partitions=partitions,
        objects=stored_objects(objects),
        referenced=frozenset(referenced_objects(metadata)),
        store_ms=store_ms(metadata),
    )


def raw_partition(metadata: SqliteMetadata, key: Key) -> RawPartition | None:
    connection = _connection(metadata)
    place = (bytes.fromhex(key[0]), key[1])
    row = connection.execute(
        "SELECT high_watermark, log_start_offset, compaction_cursor FROM partitions "
        "WHERE topic_id = ? AND partition_id = ?",
        place,
    ).fetchone()
    if row is None:
        return None
    entries = connection.execute(
        "SELECT base_offset, end_offset, object_key, byte_offset, byte_length, record_count, encoding, epoch, kind "
        "FROM entries WHERE topic_id = ? AND partition_id = ? ORDER BY end_offset",
        place,
    ).fetchall()
    return RawPartition(
        high_watermark=row[0],
        log_start=row[1],
        cursor=row[2],
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
                compacted=kind == "COMPACTED",
            )
            for base, end, name, byte_offset, byte_length, records, encoding, epoch, kind in entries
        ),
    )


def stored_objects(objects: MemoryStore) -> dict[str, bytes]:
    return {name: stored.data for name, stored in objects._objects.items()}


def referenced_objects(metadata: SqliteMetadata) -> set[str]:
    """The keys that entries, pending compactions and shares of sinks that are not adopted yet name."""
    rows = _connection(metadata).execute(
        "SELECT object_key FROM entries UNION SELECT object_key FROM compactions "
        "UNION SELECT object_key FROM sink_slices WHERE adopted_base_offset IS NULL"
    )
    return {name for (name,) in rows}


def pending_compactions(metadata: SqliteMetadata) -> int:
    (count,) = _connection(metadata).execute("SELECT count(*) FROM compactions").fetchone()
    return int(count)


def gc_horizon_ms(metadata: SqliteMetadata) -> int:
    (horizon_ms,) = _connection(metadata).execute("SELECT gc_horizon_ms FROM store_info").fetchone()
    return int(horizon_ms)


def pins_since_ms(metadata: SqliteMetadata, now_ms: int) -> tuple[int, ...]:
    """When each live pin was created."""
    rows = _connection(metadata).execute(
        "SELECT created_at FROM read_pins WHERE expires_at > ? ORDER BY created_at", (now_ms,)
    )
    return tuple(created for (created,) in rows)


def store_ms(metadata: SqliteMetadata) -> int:
    """The time of the store's clock."""
    (stored_ms,) = _connection(metadata).execute("SELECT clock_ms FROM store_info").fetchone()
    return metadata._store_clock.now_ms(stored_ms)


def renew_everything(metadata: SqliteMetadata, by_ms: int, *, now_ms: int, pins: bool) -> None:
    """Make what is live last longer, as if all agents had renewed it: leases, heartbeats, transfers, perhaps pins."""
    run = _connection(metadata).execute
    for table in ("partition_leases", "coordinator_slots"):
        run(
            f"UPDATE {table} SET lease_expires_at = lease_expires_at + ? WHERE lease_expires_at > ?",
            (by_ms, now_ms),
        )
    run("UPDATE agents SET last_heartbeat = last_heartbeat + ?", (by_ms,))
    run("UPDATE lease_transfers SET deadline_at = deadline_at + ?", (by_ms,))
    if pins:
        run("UPDATE read_pins SET expires_at = expires_at + ? WHERE expires_at > ?", (by_ms, now_ms))


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
