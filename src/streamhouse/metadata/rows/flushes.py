"""Flush requests: a reader asks the leaders to bring what they have acknowledged into objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Change, ChangeKind, FlushRequest, Pipeline
from streamhouse.metadata.rows.layer import Row, RowStore, RowTx, as_uuid, key_columns, to_key

_KEEP_MS: Final = 3_600_000  # how long an expired request stays, for people who look at the table
_MAX_CLEANED: Final = 1000  # expired rows that one request deletes; it may add more, so agents sweep as well
_COLUMNS: Final = "f.request_id, f.topic_id, f.partition_id, f.requested_at, f.expires_at"
_CLEAN: Final = """
WITH old AS MATERIALIZED (
    SELECT o.request_id, o.topic_id, o.partition_id FROM flush_requests AS o
    WHERE o.expires_at < (SELECT sh_now_ms()) - $1::bigint LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM flush_requests
WHERE (request_id, topic_id, partition_id) IN (SELECT request_id, topic_id, partition_id FROM old)
"""
_EXPIRE: Final = f"{_CLEAN} RETURNING request_id"
_REQUEST: Final = """
INSERT INTO flush_requests (request_id, topic_id, partition_id, requested_at, expires_at)
SELECT $1, p.topic_id, p.partition_id, clock.now_ms, clock.now_ms + $4::bigint
FROM (SELECT sh_now_ms() AS now_ms) AS clock
CROSS JOIN unnest($2::uuid[], $3::integer[]) AS k (topic_id, partition_id)
JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
WHERE true ON CONFLICT DO NOTHING
"""
_ASKED: Final = f"""
SELECT {_COLUMNS} FROM unnest($2::uuid[], $3::integer[]) WITH ORDINALITY AS k (topic_id, partition_id, n)
JOIN flush_requests AS f ON f.request_id = $1 AND f.topic_id = k.topic_id AND f.partition_id = k.partition_id
ORDER BY k.n
"""
_COMPLETE: Final = """
UPDATE flush_requests AS f SET completed_at = sh_now_ms()
FROM unnest($1::uuid[], $2::uuid[], $3::integer[]) AS k (request_id, topic_id, partition_id)
WHERE f.request_id = k.request_id AND f.topic_id = k.topic_id AND f.partition_id = k.partition_id
    AND f.completed_at IS NULL
RETURNING f.topic_id, f.partition_id
"""
_OPEN: Final = "f.completed_at IS NULL AND f.expires_at > (SELECT sh_now_ms())"
_OLDEST_FIRST: Final = "ORDER BY f.requested_at, f.request_id, f.topic_id, f.partition_id"


class FlushRows(RowStore, Pipeline):
    async def request_flush(self, request_id: UUID, keys: Sequence[PartitionKey], *, ttl_ms: int) -> list[FlushRequest]:
        checks.check_keys(keys, "partitions")
        checks.check_ttl(ttl_ms, "a flush request")
        topic_ids, partition_ids = key_columns(dict.fromkeys(keys))

        async def step(tx: RowTx) -> list[FlushRequest]:
            await tx.execute(_CLEAN, _KEEP_MS, _MAX_CLEANED)
            # Locked, so that the deletion of a topic cannot pass by and leave the request behind.
            await tx.fetch(
                "SELECT 1 FROM topics WHERE topic_id = ANY ($1::uuid[]) ORDER BY topic_id FOR KEY SHARE",
                sorted(set(topic_ids)),
            )
            await tx.execute(_REQUEST, request_id, topic_ids, partition_ids, ttl_ms)
            asked = [_to_request(row) for row in await tx.fetch(_ASKED, request_id, topic_ids, partition_ids)]
            if asked:
                await tx.notify(Change(kind=ChangeKind.FLUSH, keys=tuple(request.key for request in asked)))
            return asked

        return await self._transact(step)

    async def list_flush_requests(self, keys: Sequence[PartitionKey] | None = None) -> list[FlushRequest]:
        if keys is None:
            rows = await self._fetch(f"SELECT {_COLUMNS} FROM flush_requests AS f WHERE {_OPEN} {_OLDEST_FIRST}")
        else:
            checks.check_keys(keys, "partitions")
            rows = await self._fetch(
                f"""SELECT {_COLUMNS} FROM unnest($1::uuid[], $2::integer[]) AS k (topic_id, partition_id)
                    JOIN flush_requests AS f ON f.topic_id = k.topic_id AND f.partition_id = k.partition_id
                    WHERE {_OPEN} {_OLDEST_FIRST}""",
                *key_columns(dict.fromkeys(keys)),
            )
        return [_to_request(row) for row in rows]

    async def complete_flushes(self, requests: Sequence[tuple[UUID, PartitionKey]]) -> int:
        checks.check_keys([key for _, key in requests], "flush requests")
        request_ids = [request_id for request_id, _ in requests]

        async def step(tx: RowTx) -> int:
            rows = await tx.fetch(_COMPLETE, request_ids, *key_columns(key for _, key in requests))
            if rows:
                await tx.notify(Change(kind=ChangeKind.FLUSH, keys=tuple(dict.fromkeys(map(to_key, rows)))))
            return len(rows)

        return await self._transact(step)

    async def pending_flush(self, request_id: UUID) -> list[PartitionKey]:
        rows = await self._fetch(
            f"""SELECT f.topic_id, f.partition_id FROM flush_requests AS f WHERE f.request_id = $1 AND {_OPEN}
                ORDER BY f.topic_id, f.partition_id""",
            request_id,
        )
        return [to_key(row) for row in rows]

    async def expire_flush_requests(self, *, keep_ms: int, limit: int) -> int:
        checks.check_duration(keep_ms, "an age")
        checks.check_sweep_limit(limit)
        return len(await self._statement(lambda tx: tx.fetch(_EXPIRE, keep_ms, limit)))


def _to_request(row: Row) -> FlushRequest:
    return FlushRequest(
        request_id=as_uuid(row["request_id"]),
        key=to_key(row),
        requested_at_ms=row["requested_at"],
        expires_at_ms=row["expires_at"],
    )
