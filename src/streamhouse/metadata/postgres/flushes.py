"""Flush requests: asking leaders to bring what they acknowledged into objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import FlushRequest, Pipeline
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import key_columns, plain_uuid, to_key
from streamhouse.metadata.postgres.session import Connection, Row

_KEEP_MS: Final = 3_600_000  # how long an expired request stays, for people who look at the table
_SWEEP: Final = 1000  # rows that one request cleans away of earlier ones
_COLUMNS: Final = "f.request_id, f.topic_id, f.partition_id, f.requested_at, f.expires_at"
_CLEAN: Final = """
WITH old AS MATERIALIZED (
    SELECT o.request_id, o.topic_id, o.partition_id FROM flush_requests AS o
    WHERE o.expires_at < (SELECT sh_now_ms()) - $1::bigint LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM flush_requests AS f USING old
WHERE f.request_id = old.request_id AND f.topic_id = old.topic_id AND f.partition_id = old.partition_id
"""
_REQUEST: Final = """
INSERT INTO flush_requests (request_id, topic_id, partition_id, requested_at, expires_at)
SELECT $1, p.topic_id, p.partition_id, clock.now_ms, clock.now_ms + $4::bigint
FROM (SELECT sh_now_ms() AS now_ms) AS clock
CROSS JOIN unnest($2::uuid[], $3::integer[]) AS k (topic_id, partition_id)
JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
ON CONFLICT DO NOTHING
"""
_ASKED: Final = f"""
SELECT {_COLUMNS} FROM unnest($2::uuid[], $3::integer[]) WITH ORDINALITY AS k (topic_id, partition_id, n)
JOIN flush_requests AS f ON f.request_id = $1 AND f.topic_id = k.topic_id AND f.partition_id = k.partition_id
ORDER BY k.n
"""
_COMPLETE: Final = """
WITH done AS (
    UPDATE flush_requests AS f SET completed_at = sh_now_ms()
    FROM unnest($1::uuid[], $2::uuid[], $3::integer[]) AS k (request_id, topic_id, partition_id)
    WHERE f.request_id = k.request_id AND f.topic_id = k.topic_id AND f.partition_id = k.partition_id
        AND f.completed_at IS NULL
    RETURNING f.topic_id, f.partition_id
), told AS (
    SELECT sh_notify_keys('flush', array_agg(d.topic_id), array_agg(d.partition_id)) FROM done AS d HAVING count(*) > 0
)
SELECT (SELECT count(*) FROM done), (SELECT count(*) FROM told)
"""
_OPEN: Final = "f.completed_at IS NULL AND f.expires_at > (SELECT sh_now_ms())"
_OLDEST_FIRST: Final = "ORDER BY f.requested_at, f.request_id, f.topic_id, f.partition_id"


class PostgresFlushes(Pipeline):
    _database: Database

    async def request_flush(self, request_id: UUID, keys: Sequence[PartitionKey], *, ttl_ms: int) -> list[FlushRequest]:
        checks.check_keys(keys, "partitions")
        checks.check_ttl(ttl_ms, "a flush request")
        topic_ids, partition_ids = key_columns(dict.fromkeys(keys))

        async def work(connection: Connection) -> list[FlushRequest]:
            await connection.execute(_CLEAN, _KEEP_MS, _SWEEP)
            # Holds the topics, so that the deletion of one cannot pass by and leave the request behind.
            await connection.execute(
                "SELECT 1 FROM topics WHERE topic_id = ANY ($1) ORDER BY topic_id FOR KEY SHARE", sorted(set(topic_ids))
            )
            await connection.execute(_REQUEST, request_id, topic_ids, partition_ids, ttl_ms)
            asked = [_to_request(row) for row in await connection.fetch(_ASKED, request_id, topic_ids, partition_ids)]
            if asked:
                await connection.execute(
                    "SELECT sh_notify_keys('flush', $1, $2)", *key_columns(request.key for request in asked)
                )
            return asked

        return await self._database.transact(work)

    async def list_flush_requests(self, keys: Sequence[PartitionKey] | None = None) -> list[FlushRequest]:
        if keys is None:
            rows = await self._database.fetch(
                f"SELECT {_COLUMNS} FROM flush_requests AS f WHERE {_OPEN} {_OLDEST_FIRST}"
            )
        else:
            checks.check_keys(keys, "partitions")
            rows = await self._database.fetch(
                f"""SELECT {_COLUMNS} FROM unnest($1::uuid[], $2::integer[]) AS k (topic_id, partition_id)
                    JOIN flush_requests AS f ON f.topic_id = k.topic_id AND f.partition_id = k.partition_id
                    WHERE {_OPEN} {_OLDEST_FIRST}""",
                *key_columns(dict.fromkeys(keys)),
            )
        return [_to_request(row) for row in rows]

    async def complete_flushes(self, requests: Sequence[tuple[UUID, PartitionKey]]) -> int:
        checks.check_keys([key for _, key in requests], "flush requests")
        done = await self._database.fetchval(
            _COMPLETE, [request_id for request_id, _ in requests], *key_columns(key for _, key in requests)
        )
        return int(done)

    async def pending_flush(self, request_id: UUID) -> list[PartitionKey]:
        rows = await self._database.fetch(
            f"""SELECT f.topic_id, f.partition_id FROM flush_requests AS f WHERE f.request_id = $1 AND {_OPEN}
                ORDER BY f.topic_id, f.partition_id""",
            request_id,
        )
        return [to_key(row) for row in rows]


def _to_request(row: Row) -> FlushRequest:
    return FlushRequest(
        request_id=plain_uuid(row["request_id"]),
        key=to_key(row),
        requested_at_ms=row["requested_at"],
        expires_at_ms=row["expires_at"],
    )
