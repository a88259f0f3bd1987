"""Objects and what refers to them, the remains of deleted topics, and the small rows that expire: pins and claims.

An object has a row from its first reference until it is forgotten. Entries, compactions and intents share one count of
references in that row, so one look sees them all (R7). A pin keeps what is dereferenced after it from being deleted. A
claim only schedules work: two workers with the same claim waste time and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final
from uuid import UUID

from streamhouse.metadata import checks
from streamhouse.metadata.contract import Claim, DereferencedObject, Maintenance, Pin, WaitingObjects
from streamhouse.metadata.rows.layer import Row, RowStore, RowTx, as_uuid

_MAX_CLEANED: Final = 100  # expired claims that one acquisition deletes

# Steps from one topic id to the next through the primary key: as many probes as there are topics, however many entries.
_PURGE: Final = """
WITH RECURSIVE present (topic_id) AS (
    SELECT (SELECT e.topic_id FROM entries AS e ORDER BY e.topic_id LIMIT 1)
    UNION ALL
    SELECT (SELECT e.topic_id FROM entries AS e WHERE e.topic_id > p.topic_id ORDER BY e.topic_id LIMIT 1)
    FROM present AS p WHERE p.topic_id IS NOT NULL
)
SELECT e.topic_id, e.partition_id, e.end_offset, e.object_key
FROM present AS p JOIN entries AS e ON e.topic_id = p.topic_id
WHERE NOT EXISTS (SELECT 1 FROM topics AS t WHERE t.topic_id = p.topic_id)
LIMIT $1 FOR UPDATE OF e
"""
_DELETE_ENTRIES: Final = """
DELETE FROM entries WHERE (topic_id, partition_id, end_offset) IN (
    SELECT k.topic_id, k.partition_id, k.end_offset
    FROM unnest($1::uuid[], $2::integer[], $3::bigint[]) AS k (topic_id, partition_id, end_offset))
RETURNING object_key
"""
_OLDEST_PIN: Final = """coalesce(
    (SELECT min(p.created_at) FROM read_pins AS p WHERE p.expires_at > (SELECT sh_now_ms())), 9223372036854775807)"""
_SUM_WAITING: Final = f"""
SELECT count(*) AS objects, coalesce(sum(d.size_bytes), 0)::bigint AS size_bytes,
    coalesce(sum(d.is_pinned), 0)::bigint AS pinned_objects,
    coalesce(sum(d.is_pinned * d.size_bytes), 0)::bigint AS pinned_bytes,
    coalesce(max(d.dereferenced_at), 0) AS last_dereferenced_at, coalesce(max(d.created_at), 0) AS last_created_at
FROM (
    SELECT o.size_bytes, o.dereferenced_at, o.created_at,
        CASE WHEN o.dereferenced_at >= {_OLDEST_PIN} THEN 1 ELSE 0 END AS is_pinned
    FROM objects AS o
    WHERE o.refs = 0 AND o.dereferenced_at IS NOT NULL
        AND (o.created_at >= (SELECT sh_now_ms()) - $1::bigint
            OR o.dereferenced_at >= (SELECT sh_now_ms()) - $2::bigint OR o.dereferenced_at >= {_OLDEST_PIN})
    ORDER BY o.dereferenced_at, o.object_key LIMIT $3
) AS d
"""
_CLEAN_CLAIMS: Final = """
WITH old AS MATERIALIZED (
    SELECT c.name FROM claims AS c WHERE c.expires_at <= (SELECT sh_now_ms()) AND c.name <> $1
    LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM claims WHERE name IN (SELECT name FROM old)
"""
_CLAIM: Final = """
INSERT INTO claims AS c (name, owner, claimed_at, expires_at)
SELECT $1, $2, clock.now_ms, clock.now_ms + $3::bigint FROM (SELECT sh_now_ms() AS now_ms) AS clock
WHERE true ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner,
    claimed_at = CASE WHEN c.owner = excluded.owner AND c.expires_at > excluded.claimed_at
                      THEN c.claimed_at ELSE excluded.claimed_at END,
    expires_at = CASE WHEN c.owner = excluded.owner THEN greatest(c.expires_at, excluded.expires_at)
                      ELSE excluded.expires_at END
WHERE c.owner = excluded.owner OR c.expires_at <= excluded.claimed_at
RETURNING c.name, c.owner, c.claimed_at, c.expires_at
"""
_RENEW_PINS: Final = """
UPDATE read_pins SET expires_at = greatest(expires_at, sh_now_ms() + $2::bigint)
WHERE pin_id = ANY ($1::uuid[]) AND expires_at > (SELECT sh_now_ms())
RETURNING pin_id
"""


class ObjectRows(RowStore, Maintenance):
    _HORIZON: ClassVar[str]
    """SQL of the horizon that stands in every partition (R24)."""

    async def purge_deleted_topics(self, *, limit: int) -> int:
        checks.check_sweep_limit(limit)

        async def step(tx: RowTx) -> int:
            rows = await tx.fetch(_PURGE, limit)
            if not rows:
                return 0
            columns = [[row[column] for row in rows] for column in ("topic_id", "partition_id", "end_offset")]
            deleted = await tx.fetch(_DELETE_ENTRIES, *columns)
            await tx.dereference([row["object_key"] for row in deleted])
            return len(deleted)

        return await self._transact(step)

    async def find_unreferenced(self, stamps: Mapping[str, int]) -> set[str]:
        checks.check_stamps(stamps)
        rows = await self._fetch(
            f"""SELECT k.object_key FROM unnest($1::text[], $2::bigint[]) AS k (object_key, created_at)
                WHERE k.created_at < {self._HORIZON}
                    AND NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.object_key = k.object_key)""",
            list(stamps),
            list(stamps.values()),
        )
        return {row["object_key"] for row in rows}

    async def list_dereferenced(self, *, grace_ms: int, limit: int) -> list[DereferencedObject]:
        checks.check_duration(grace_ms, "a grace period")
        checks.check_sweep_limit(limit)
        rows = await self._fetch(
            f"""SELECT o.object_key, o.size_bytes, o.dereferenced_at FROM objects AS o
                WHERE o.refs = 0 AND o.created_at < {self._HORIZON} AND o.dereferenced_at IS NOT NULL
                    AND o.dereferenced_at < (SELECT sh_now_ms()) - $1::bigint
                    AND o.dereferenced_at < {_OLDEST_PIN}
                ORDER BY o.dereferenced_at, o.object_key LIMIT $2""",
            grace_ms,
            limit,
        )
        return [
            DereferencedObject(
                key=row["object_key"], size_bytes=row["size_bytes"], dereferenced_at_ms=row["dereferenced_at"]
            )
            for row in rows
        ]

    async def sum_waiting_objects(self, *, writer_grace_ms: int, reader_grace_ms: int, limit: int) -> WaitingObjects:
        for grace_ms in (writer_grace_ms, reader_grace_ms):
            checks.check_duration(grace_ms, "a grace period")
        checks.check_sweep_limit(limit)
        (row,) = await self._fetch(_SUM_WAITING, writer_grace_ms, reader_grace_ms, limit)
        return WaitingObjects(
            objects=row["objects"],
            size_bytes=row["size_bytes"],
            pinned_objects=row["pinned_objects"],
            pinned_bytes=row["pinned_bytes"],
            last_dereferenced_ms=row["last_dereferenced_at"],
            last_created_ms=row["last_created_at"],
        )

    async def forget_objects(self, keys: Sequence[str]) -> set[str]:
        checks.check_keys(keys, "objects")
        garbage = f"object_key = ANY ($1::text[]) AND refs = 0 AND created_at < {self._HORIZON}"

        async def step(tx: RowTx) -> set[str]:
            # Locked in the order of keys, as everywhere.
            await tx.fetch(f"SELECT 1 FROM objects WHERE {garbage} ORDER BY object_key FOR UPDATE", list(keys))
            rows = await tx.fetch(f"DELETE FROM objects WHERE {garbage} RETURNING object_key", list(keys))
            return {row["object_key"] for row in rows}

        return await self._transact(step)

    async def renew_pins(self, pin_ids: Sequence[UUID], *, ttl_ms: int) -> set[UUID]:
        checks.check_keys(pin_ids, "pins")
        checks.check_ttl(ttl_ms, "a pin")
        rows = await self._statement(lambda tx: tx.fetch(_RENEW_PINS, list(pin_ids), ttl_ms))
        return {as_uuid(row["pin_id"]) for row in rows}

    async def release_pins(self, pin_ids: Sequence[UUID]) -> int:
        checks.check_keys(pin_ids, "pins")
        delete = "DELETE FROM read_pins WHERE pin_id = ANY ($1::uuid[])"
        return await self._statement(lambda tx: tx.execute(delete, list(pin_ids)))

    async def list_pins(self) -> list[Pin]:
        rows = await self._fetch(
            """SELECT pin_id, owner, created_at, expires_at FROM read_pins
               WHERE expires_at > (SELECT sh_now_ms()) ORDER BY created_at, pin_id"""
        )
        return [to_pin(row) for row in rows]

    async def acquire_claim(self, name: str, *, owner: str, ttl_ms: int) -> Claim:
        checks.check_text(name, "a claim's name")
        checks.check_text(owner, "a claim's owner")
        checks.check_ttl(ttl_ms, "a claim")

        async def step(tx: RowTx) -> Claim:
            while True:
                row = await tx.fetchrow(_CLAIM, name, owner, ttl_ms)
                if row is None:
                    row = await tx.fetchrow(
                        "SELECT name, owner, claimed_at, expires_at FROM claims WHERE name = $1", name
                    )
                # No row: it was released between the two statements, and is free now.
                if row is not None:
                    break
            # Last: this skips locked rows, and so never waits while it holds the claim.
            await tx.execute(_CLEAN_CLAIMS, name, _MAX_CLEANED)
            return _to_claim(row)

        return await self._transact(step)

    async def release_claim(self, name: str, *, owner: str) -> bool:
        checks.check_text(name, "a claim's name")
        checks.check_text(owner, "a claim's owner")
        delete = "DELETE FROM claims WHERE name = $1 AND owner = $2"
        return await self._statement(lambda tx: tx.execute(delete, name, owner)) > 0

    async def list_claims(self, prefix: str = "") -> list[Claim]:
        checks.check_text(prefix, "a claim's prefix", may_be_empty=True)
        rows = await self._fetch(
            """SELECT name, owner, claimed_at, expires_at FROM claims
               WHERE substr(name, 1, length($1::text)) = $1 AND expires_at > (SELECT sh_now_ms()) ORDER BY name""",
            prefix,
        )
        return [_to_claim(row) for row in rows]


def to_pin(row: Row) -> Pin:
    return Pin(
        pin_id=as_uuid(row["pin_id"]),
        owner=row["owner"],
        created_at_ms=row["created_at"],
        expires_at_ms=row["expires_at"],
    )


def _to_claim(row: Row) -> Claim:
    return Claim(name=row["name"], owner=row["owner"], claimed_at_ms=row["claimed_at"], expires_at_ms=row["expires_at"])
