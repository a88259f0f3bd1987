"""Reads the sparse index: ceiling lookups and scans, each one statement and so one consistent view.

Entries wholly below the log start are absent for all of them: retention drops those little by little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamhouse.core.errors import PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import (
    Entry,
    EntryLookup,
    EntryPage,
    EpochStart,
    Log,
    PartitionState,
    ScanRange,
)
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.layer import (
    ENTRY_COLUMNS,
    PARTITION_COLUMNS,
    Row,
    as_uuid,
    key_columns,
    to_entry,
    to_partition,
)

_SAME_PARTITION: Final = "e.topic_id = p.topic_id AND e.partition_id = p.partition_id"
_FIND: Final = f"""
SELECT {PARTITION_COLUMNS}, e.* FROM partitions AS p
LEFT JOIN LATERAL (
    SELECT {ENTRY_COLUMNS} FROM entries AS e
    WHERE {_SAME_PARTITION} AND e.end_offset >= greatest($3, p.log_start_offset) ORDER BY e.end_offset LIMIT 1
) AS e ON true
WHERE p.topic_id = $1 AND p.partition_id = $2
"""
# The running maximum leads to the first entry that can do; it may owe its maximum to one that is trimmed or compacted
# away, so the first with its own stands there or further on. What the log's first entry has reached keeps the search
# off those below it that are still to be dropped.
_FIND_BY_TIMESTAMP: Final = f"""
SELECT {PARTITION_COLUMNS}, e.* FROM partitions AS p
LEFT JOIN LATERAL (
    SELECT e.running_max_timestamp AS reached FROM entries AS e
    WHERE {_SAME_PARTITION} AND e.end_offset >= p.log_start_offset ORDER BY e.end_offset LIMIT 1
) AS first ON true
LEFT JOIN LATERAL (
    SELECT e.end_offset AS place FROM entries AS e
    WHERE {_SAME_PARTITION} AND e.running_max_timestamp >= greatest($3, first.reached)
        AND e.end_offset >= p.log_start_offset
    ORDER BY e.running_max_timestamp, e.end_offset LIMIT 1
) AS near ON true
LEFT JOIN LATERAL (
    SELECT {ENTRY_COLUMNS} FROM entries AS e
    WHERE {_SAME_PARTITION} AND e.end_offset >= near.place AND e.max_timestamp >= $3 ORDER BY e.end_offset LIMIT 1
) AS e ON true
WHERE p.topic_id = $1 AND p.partition_id = $2
"""
# The last entry's running maximum is the largest there ever was, and the first entry that has it is the answer, unless
# the one that set it is gone: only then are all looked at.
_FIND_MAXIMUM: Final = f"""
SELECT {PARTITION_COLUMNS}, e.* FROM partitions AS p
LEFT JOIN LATERAL (
    SELECT e.running_max_timestamp AS largest FROM entries AS e
    WHERE {_SAME_PARTITION} AND e.end_offset >= p.log_start_offset ORDER BY e.end_offset DESC LIMIT 1
) AS newest ON true
LEFT JOIN LATERAL (
    SELECT e.end_offset AS place, e.max_timestamp FROM entries AS e
    WHERE {_SAME_PARTITION} AND e.running_max_timestamp >= newest.largest AND e.end_offset >= p.log_start_offset
    ORDER BY e.running_max_timestamp, e.end_offset LIMIT 1
) AS likely ON true
LEFT JOIN LATERAL (
    SELECT e.end_offset AS place FROM entries AS e
    WHERE likely.max_timestamp < newest.largest AND {_SAME_PARTITION} AND e.end_offset >= p.log_start_offset
    ORDER BY e.max_timestamp DESC, e.end_offset LIMIT 1
) AS searched ON true
LEFT JOIN LATERAL (
    SELECT {ENTRY_COLUMNS} FROM entries AS e
    WHERE {_SAME_PARTITION} AND e.end_offset = coalesce(searched.place, likely.place)
) AS e ON true
WHERE p.topic_id = $1 AND p.partition_id = $2
"""
_SCAN: Final = f"""
SELECT k.n, {PARTITION_COLUMNS}, e.*
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::bigint[])
    WITH ORDINALITY AS k (topic_id, partition_id, from_offset, to_offset, n)
JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
LEFT JOIN LATERAL (
    SELECT {ENTRY_COLUMNS} FROM entries AS e
    WHERE {_SAME_PARTITION} AND k.from_offset < k.to_offset
        AND e.end_offset >= greatest(k.from_offset, p.log_start_offset) AND e.base_offset < k.to_offset
    ORDER BY e.end_offset LIMIT $5
) AS e ON true
ORDER BY k.n, e.end_offset
"""
_END_OF_TIME: Final = 2**63 - 1


class PostgresLookups(Log):
    _database: Database

    async def find_entry(self, key: PartitionKey, offset: int) -> EntryLookup:
        return await self._look_up(_FIND, key, offset)

    async def find_entry_by_timestamp(self, key: PartitionKey, timestamp_ms: int) -> EntryLookup:
        return await self._look_up(_FIND_BY_TIMESTAMP, key, timestamp_ms)

    async def find_max_timestamp_entry(self, key: PartitionKey) -> EntryLookup:
        return await self._look_up(_FIND_MAXIMUM, key)

    async def _look_up(self, query: str, key: PartitionKey, *args: Any) -> EntryLookup:
        row = await self._database.fetchrow(query, key.topic_id, key.partition, *args)
        if row is None:
            raise PartitionNotFound(f"there is no partition {key}")
        return EntryLookup(partition=to_partition(row), entry=_entry_of(row))

    async def scan_entries(self, ranges: Sequence[ScanRange], *, limit: int) -> list[EntryPage]:
        checks.check_scan_limit(limit)
        checks.check_keys([scan.key for scan in ranges], "ranges")
        rows = await self._database.fetch(
            _SCAN,
            *key_columns(scan.key for scan in ranges),
            [scan.from_offset for scan in ranges],
            [_END_OF_TIME if scan.to_offset is None else scan.to_offset for scan in ranges],
            limit + 1,
        )
        pages: dict[int, tuple[PartitionState, list[Entry]]] = {}
        for row in rows:
            page = pages.get(row["n"])
            if page is None:
                page = pages[row["n"]] = (to_partition(row), [])
            entry = _entry_of(row)
            if entry is not None:
                page[1].append(entry)
        return [
            EntryPage(partition=partition, entries=tuple(entries[:limit]), more=len(entries) > limit)
            for partition, entries in pages.values()
        ]

    async def epoch_history(self, key: PartitionKey) -> list[EpochStart]:
        rows = await self._database.fetch(
            """SELECT epoch, start_offset, agent_id, wal_id, started_at FROM epoch_history
               WHERE topic_id = $1 AND partition_id = $2 ORDER BY epoch""",
            key.topic_id,
            key.partition,
        )
        return [
            EpochStart(
                epoch=row["epoch"],
                start_offset=row["start_offset"],
                agent_id=row["agent_id"],
                wal_id=as_uuid(row["wal_id"]),
                started_at_ms=row["started_at"],
            )
            for row in rows
        ]


def _entry_of(row: Row) -> Entry | None:
    return None if row["end_offset"] is None else to_entry(row)
