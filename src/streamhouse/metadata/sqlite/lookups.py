"""Finds entries: by offset, by time, by range. Each is a ceiling lookup on an index, never a scan from the start.

Entries wholly below the log start are absent for all of them: retention drops those little by little.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import EntryLookup, EntryPage, EpochStart, PartitionState, ScanRange
from streamhouse.metadata.rows.layer import ENTRY_COLUMNS, to_entry
from streamhouse.metadata.sqlite.rows import find_partition, need_partition, sql_key
from streamhouse.metadata.sqlite.transactions import Tx

_BY_OFFSET: Final = f"""
    SELECT {ENTRY_COLUMNS} FROM entries AS e WHERE topic_id = ? AND partition_id = ? AND end_offset >= ?
    ORDER BY end_offset LIMIT 1"""

# Where the running maximum reaches the time. The entry there may itself be older: the one that reached it was trimmed,
# or key compaction took its newest record.
_FIRST_REACHING: Final = """
    SELECT end_offset FROM entries
    WHERE topic_id = ? AND partition_id = ? AND running_max_timestamp >= ? AND end_offset >= ?
    ORDER BY running_max_timestamp, end_offset LIMIT 1"""
_BY_TIME_FROM: Final = f"""
    SELECT {ENTRY_COLUMNS} FROM entries AS e
    WHERE topic_id = ? AND partition_id = ? AND end_offset >= ? AND max_timestamp >= ?
    ORDER BY end_offset LIMIT 1"""

_OLDEST_RUNNING_MAX: Final = """
    SELECT running_max_timestamp FROM entries WHERE topic_id = ? AND partition_id = ? AND end_offset >= ?
    ORDER BY end_offset LIMIT 1"""
_NEWEST_RUNNING_MAX: Final = """
    SELECT running_max_timestamp FROM entries WHERE topic_id = ? AND partition_id = ? AND end_offset >= ?
    ORDER BY end_offset DESC LIMIT 1"""
_LARGEST_OF_ALL: Final = f"""
    SELECT {ENTRY_COLUMNS} FROM entries AS e WHERE topic_id = ? AND partition_id = ? AND end_offset >= ?
    ORDER BY max_timestamp DESC, end_offset LIMIT 1"""

# The inner query finds the last entry that can overlap, so that a short range stays a short scan.
_RANGE: Final = f"""
    SELECT {ENTRY_COLUMNS} FROM entries AS e
    WHERE topic_id = :topic_id AND partition_id = :partition AND end_offset >= :start
        AND end_offset <= coalesce(
            (SELECT min(end_offset) FROM entries
             WHERE topic_id = :topic_id AND partition_id = :partition AND end_offset >= :stop - 1),
            9223372036854775807)
        AND base_offset < :stop
    ORDER BY end_offset LIMIT :limit"""

_ENDLESS: Final = 2**63 - 1


def find_entry(tx: Tx, key: PartitionKey, offset: int) -> EntryLookup:
    partition = need_partition(tx, key)
    return _lookup(partition, tx.row(_BY_OFFSET, (*sql_key(key), max(offset, partition.log_start_offset))))


def find_entry_by_timestamp(tx: Tx, key: PartitionKey, timestamp_ms: int) -> EntryLookup:
    partition = need_partition(tx, key)
    log_start = partition.log_start_offset
    reached = tx.value(_OLDEST_RUNNING_MAX, (*sql_key(key), log_start))
    if reached is None:
        return _lookup(partition, None)
    # What the log's first entry has reached keeps the search off those below it that are still to be dropped.
    start = tx.value(_FIRST_REACHING, (*sql_key(key), max(timestamp_ms, reached), log_start))
    if start is None:
        return _lookup(partition, None)
    return _lookup(partition, tx.row(_BY_TIME_FROM, (*sql_key(key), start, timestamp_ms)))


def find_max_timestamp_entry(tx: Tx, key: PartitionKey) -> EntryLookup:
    partition = need_partition(tx, key)
    log_start = partition.log_start_offset
    largest = tx.value(_NEWEST_RUNNING_MAX, (*sql_key(key), log_start))
    if largest is None:
        return _lookup(partition, None)
    start = tx.value(_FIRST_REACHING, (*sql_key(key), largest, log_start))
    row = tx.row(_BY_OFFSET, (*sql_key(key), start))
    if row is not None and to_entry(row).max_timestamp_ms == largest:
        return _lookup(partition, row)
    # The record that had it is gone: look at them all.
    return _lookup(partition, tx.row(_LARGEST_OF_ALL, (*sql_key(key), log_start)))


def scan_entries(tx: Tx, ranges: Sequence[ScanRange], *, limit: int) -> list[EntryPage]:
    checks.check_scan_limit(limit)
    checks.check_keys([wanted.key for wanted in ranges], "ranges")
    pages = []
    for wanted in ranges:
        partition = find_partition(tx, wanted.key)
        if partition is not None:
            pages.append(_scan(tx, partition, wanted, limit))
    return pages


def _scan(tx: Tx, partition: PartitionState, wanted: ScanRange, limit: int) -> EntryPage:
    stop = _ENDLESS if wanted.to_offset is None else wanted.to_offset
    if stop <= wanted.from_offset:
        return EntryPage(partition=partition, entries=(), more=False)
    rows = tx.rows(
        _RANGE,
        {
            "topic_id": wanted.key.topic_id.bytes,
            "partition": wanted.key.partition,
            "start": max(wanted.from_offset, partition.log_start_offset),
            "stop": stop,
            "limit": limit + 1,
        },
    )
    entries = tuple(to_entry(row) for row in rows[:limit])
    return EntryPage(partition=partition, entries=entries, more=len(rows) > limit)


def epoch_history(tx: Tx, key: PartitionKey) -> list[EpochStart]:
    rows = tx.rows(
        "SELECT epoch, start_offset, agent_id, wal_id, started_at FROM epoch_history "
        "WHERE topic_id = ? AND partition_id = ? ORDER BY epoch",
        sql_key(key),
    )
    return [
        EpochStart(epoch=epoch, start_offset=start, agent_id=agent_id, wal_id=UUID(bytes=wal_id), started_at_ms=at)
        for epoch, start, agent_id, wal_id, at in rows
    ]


def _lookup(partition: PartitionState, row: sqlite3.Row | None) -> EntryLookup:
    return EntryLookup(partition=partition, entry=None if row is None else to_entry(row))
