"""Rows to the contract's dataclasses, for the tables that several areas read."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from streamhouse.core.errors import PartitionNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Entry, EntryKind, LogState, PartitionState, WriteMode
from streamhouse.metadata.sqlite.transactions import Row, Tx

_PARTITION: Final = """
    SELECT log_state, high_watermark, log_start_offset, coalesce(first_unstable_offset, high_watermark), leader_epoch,
        write_mode, gc_horizon_ms, compaction_cursor
    FROM partitions WHERE topic_id = ? AND partition_id = ?"""

ENTRY_COLUMNS: Final = """base_offset, end_offset, kind, object_key, byte_offset, byte_length, record_count, encoding,
    min_timestamp, max_timestamp, epoch, created_at"""


def sql_key(key: PartitionKey) -> tuple[bytes, int]:
    return key.topic_id.bytes, key.partition


def lock_order(key: PartitionKey) -> tuple[int, int]:
    """(topic id, partition), the order of every multi-row step (R10); cheaper to compare than the key itself."""
    return key.topic_id.int, key.partition


def topic_id_of(raw: bytes) -> TopicId:
    return TopicId(UUID(bytes=raw))


def optional_uuid(raw: bytes | None) -> UUID | None:
    return None if raw is None else UUID(bytes=raw)


def find_partition(tx: Tx, key: PartitionKey) -> PartitionState | None:
    row = tx.row(_PARTITION, sql_key(key))
    if row is None:
        return None
    state, high_watermark, log_start, last_stable, epoch, mode, horizon, cursor = row
    return PartitionState(
        key=key,
        log_state=LogState(state),
        high_watermark=high_watermark,
        log_start_offset=log_start,
        last_stable_offset=last_stable,
        leader_epoch=epoch,
        write_mode=WriteMode(mode),
        gc_horizon_ms=horizon,
        compaction_cursor=cursor,
    )


def need_partition(tx: Tx, key: PartitionKey) -> PartitionState:
    found = find_partition(tx, key)
    if found is None:
        raise PartitionNotFound(f"there is no partition {key}")
    return found


def entry_of(row: Row) -> Entry:
    """From ENTRY_COLUMNS."""
    base, end, kind, object_key, byte_offset, byte_length, records, encoding, min_time, max_time, epoch, created = row
    return Entry(
        base_offset=base,
        end_offset=end,
        kind=EntryKind(kind),
        object_key=object_key,
        byte_offset=byte_offset,
        byte_length=byte_length,
        record_count=records,
        encoding=encoding,
        min_timestamp_ms=min_time,
        max_timestamp_ms=max_time,
        epoch=epoch,
        created_at_ms=created,
    )
