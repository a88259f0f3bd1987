"""Producer windows, producer ids, and the rows that expire: idle windows and old append ids (R5, R9, R22)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_PRODUCERS_PER_PARTITION
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Log, ProducerBatch, ProducerPage, ProducerState
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.layer import Row, key_columns, to_key

_MINUTE_MS: Final = 60_000
_BEGINNING: Final = (2**63 - 1, 2**63 - 1)
_ROWS_PER_STEP: Final = 100
"""Rows that are turned into objects before other tasks of the event loop run: about a millisecond of work."""

# Both bounds on the minute are conditions of the index, so that a page never walks over idle windows that wait for
# their sweep. OFFSET 0 keeps the look for those from being repeated for every row of the page.
_LOAD: Final = """
WITH wanted AS MATERIALIZED (SELECT coalesce(sh_now_ms() - $6::bigint, 0) AS oldest)
SELECT k.topic_id, k.partition_id, w.producer_id, w.producer_epoch, w.batches, w.updated_at,
       f.forgotten_up_to, f.highest_id
FROM wanted
CROSS JOIN unnest($1::uuid[], $2::integer[], $3::bigint[], $4::bigint[], $7::boolean[])
    AS k (topic_id, partition_id, after_minute, after_id, is_first)
CROSS JOIN LATERAL (
    SELECT coalesce(max(h.producer_id), -1) AS highest_id FROM (
        SELECT o.producer_id FROM producer_windows AS o
        WHERE o.topic_id = k.topic_id AND o.partition_id = k.partition_id ORDER BY o.producer_id DESC LIMIT 1
    ) AS h
    OFFSET 0
) AS h
CROSS JOIN LATERAL (
    SELECT h.highest_id, greatest(
        coalesce((SELECT f.up_to_producer_id FROM forgotten_producers AS f
                  WHERE f.topic_id = k.topic_id AND f.partition_id = k.partition_id), -1),
        coalesce((SELECT max(o.producer_id) FROM producer_windows AS o
                  WHERE k.is_first AND o.topic_id = k.topic_id AND o.partition_id = k.partition_id
                      AND o.updated_minute <= wanted.oldest / 60000 AND o.updated_at < wanted.oldest), -1)
    ) AS forgotten_up_to
    OFFSET 0
) AS f
LEFT JOIN LATERAL (
    SELECT w.producer_id, w.producer_epoch, w.batches, w.updated_at, w.updated_minute FROM producer_windows AS w
    WHERE w.topic_id = k.topic_id AND w.partition_id = k.partition_id
        AND (w.updated_minute, w.producer_id) < (k.after_minute, k.after_id)
        AND w.updated_minute >= wanted.oldest / 60000 AND w.updated_at >= wanted.oldest
    ORDER BY w.updated_minute DESC, w.producer_id DESC LIMIT $5
) AS w ON true
ORDER BY k.topic_id, k.partition_id, w.updated_minute DESC, w.producer_id DESC
"""

# The rows to go are picked in a materialised WITH: as a plain sub-select the planner may run it once for every row of
# the table, and with SKIP LOCKED each run would pick others. A row that a commit has just written is looked at again
# once it is locked, and stays. The marks are written in key order, so that two sweeps cannot wait for each other.
_EXPIRE_PRODUCERS: Final = """
WITH idle AS MATERIALIZED (
    SELECT o.topic_id, o.partition_id, o.producer_id FROM producer_windows AS o
    WHERE o.updated_minute + 0 <= ((SELECT sh_now_ms()) - $1) / 60000 AND o.updated_at < (SELECT sh_now_ms()) - $1
    ORDER BY o.updated_minute + 0 LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM producer_windows AS w USING idle
    WHERE w.topic_id = idle.topic_id AND w.partition_id = idle.partition_id AND w.producer_id = idle.producer_id
    RETURNING w.topic_id, w.partition_id, w.producer_id
), marked AS (
    INSERT INTO forgotten_producers AS f (topic_id, partition_id, up_to_producer_id)
    SELECT g.topic_id, g.partition_id, max(g.producer_id) FROM gone AS g GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (topic_id, partition_id) DO UPDATE
    SET up_to_producer_id = greatest(f.up_to_producer_id, excluded.up_to_producer_id)
)
SELECT count(*) FROM gone
"""
# Not below the time, so that a fail-over that loses this commit does not give the same ids out again: two producers of
# one id would each take the other's batches for repeats. A thousand ids a millisecond, and 2^53 holds them all.
_ALLOCATE_IDS: Final = """
UPDATE store_info SET next_producer_id = greatest(next_producer_id, sh_now_ms() * 1000) + $1 RETURNING next_producer_id
"""
_EXPIRE_COMMITS: Final = """
WITH old AS MATERIALIZED (
    SELECT o.append_id FROM commits AS o
    WHERE o.committed_at < (SELECT sh_now_ms()) - $1
        AND o.newest_object_at < (SELECT gc_horizon_ms FROM store_info)
    ORDER BY o.newest_object_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM commits AS c USING old WHERE c.append_id = old.append_id
"""


class PostgresProducers(Log):
    _database: Database

    async def load_producers(
        self,
        keys: Sequence[PartitionKey],
        *,
        limit: int = MAX_PRODUCERS_PER_PARTITION,
        after: Mapping[PartitionKey, ProducerState] | None = None,
        idle_ms: int | None = None,
    ) -> dict[PartitionKey, ProducerPage]:
        checks.check_keys(keys, "partitions")
        checks.check_producer_page(limit, idle_ms)
        asked = list(dict.fromkeys(keys))
        starts = [_place(after.get(key)) if after else _BEGINNING for key in asked]
        rows = await self._database.fetch(
            _LOAD,
            *key_columns(asked),
            [minute for minute, _ in starts],
            [producer_id for _, producer_id in starts],
            limit + 1,
            idle_ms,
            [start == _BEGINNING for start in starts],
        )
        found: dict[PartitionKey, list[ProducerState]] = {key: [] for key in asked}
        ends: dict[PartitionKey, tuple[int, int]] = {}
        for number, row in enumerate(rows, start=1):
            key = to_key(row)
            ends[key] = (row["forgotten_up_to"], row["highest_id"])
            if row["producer_id"] is not None:
                found[key].append(_to_producer(row))
            if number % _ROWS_PER_STEP == 0:
                await asyncio.sleep(0)
        return {
            key: ProducerPage(
                states=tuple(states[:limit]),
                more=len(states) > limit,
                forgotten_up_to=ends[key][0],
                highest_id=ends[key][1],
            )
            for key, states in found.items()
        }

    async def expire_producers(self, *, idle_ms: int, limit: int) -> int:
        checks.check_duration(idle_ms, "an idle time")
        checks.check_sweep_limit(limit)
        return int(await self._database.fetchval(_EXPIRE_PRODUCERS, idle_ms, limit))

    async def allocate_producer_ids(self, count: int) -> range:
        checks.check_producer_id_count(count)
        end = await self._database.fetchval(_ALLOCATE_IDS, count)
        return range(end - count, end)

    async def expire_commits(self, *, keep_ms: int, limit: int) -> int:
        checks.check_duration(keep_ms, "an age")
        checks.check_sweep_limit(limit)
        return await self._database.call(lambda tx: tx.execute(_EXPIRE_COMMITS, keep_ms, limit))


def _place(state: ProducerState | None) -> tuple[int, int]:
    return _BEGINNING if state is None else (state.updated_at_ms // _MINUTE_MS, state.producer_id)


def _to_producer(row: Row) -> ProducerState:
    flat = row["batches"]
    return ProducerState(
        producer_id=row["producer_id"],
        producer_epoch=row["producer_epoch"],
        batches=tuple(
            ProducerBatch(base_sequence=sequence, record_count=count, base_offset=offset)
            for sequence, count, offset in zip(flat[0::3], flat[1::3], flat[2::3], strict=True)
        ),
        updated_at_ms=row["updated_at"],
    )
