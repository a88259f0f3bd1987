"""Objects and who still needs them: references, the GC horizon, the remains of deleted topics, pins, claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from streamhouse.metadata import checks
from streamhouse.metadata.contract import Claim, DereferencedObject, Maintenance, Pin
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import changed_rows, plain_uuid
from streamhouse.metadata.postgres.session import Connection, Row

# Each chunk of partitions is its own transaction, so that no commit waits for the whole table.
_HORIZON_CHUNK: Final = 1000
_RAISE_CHUNK: Final = """
WITH held AS (
    SELECT p.topic_id, p.partition_id FROM partitions AS p
    WHERE (p.topic_id, p.partition_id) > ($2, $3)
    ORDER BY p.topic_id, p.partition_id LIMIT $4 FOR NO KEY UPDATE
), raised AS (
    UPDATE partitions AS p SET gc_horizon_ms = $1
    FROM held AS h
    WHERE p.topic_id = h.topic_id AND p.partition_id = h.partition_id AND p.gc_horizon_ms < $1
)
SELECT h.topic_id, h.partition_id FROM held AS h ORDER BY h.topic_id DESC, h.partition_id DESC LIMIT 1
"""
# Steps from one topic id to the next through the primary key: as many probes as there are topics, however many entries.
_PURGE: Final = """
WITH RECURSIVE present AS (
    (SELECT e.topic_id FROM entries AS e ORDER BY e.topic_id LIMIT 1)
    UNION ALL
    SELECT (SELECT e.topic_id FROM entries AS e WHERE e.topic_id > p.topic_id ORDER BY e.topic_id LIMIT 1)
    FROM present AS p WHERE p.topic_id IS NOT NULL
), doomed AS (
    SELECT e.topic_id, e.partition_id, e.end_offset
    FROM present AS p JOIN entries AS e ON e.topic_id = p.topic_id
    WHERE NOT EXISTS (SELECT 1 FROM topics AS t WHERE t.topic_id = p.topic_id)
    LIMIT $1 FOR UPDATE OF e
)
DELETE FROM entries AS e USING doomed AS d
WHERE e.topic_id = d.topic_id AND e.partition_id = d.partition_id AND e.end_offset = d.end_offset
RETURNING e.object_key
"""
# What stands in every partition: raising it takes several transactions, and may have ended between two (R24).
_HORIZON: Final = """
(SELECT least(s.gc_horizon_ms, (SELECT min(p.gc_horizon_ms) FROM partitions AS p)) FROM store_info AS s)
"""
# References of intents, compactions and entries are one count in one row, so one look sees them all (R7).
_UNREFERENCED: Final = f"""
SELECT k.object_key FROM unnest($1::text[], $2::bigint[]) AS k (object_key, created_at)
WHERE k.created_at < {_HORIZON} AND NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.object_key = k.object_key)
"""
_DEREFERENCED: Final = f"""
SELECT o.object_key, o.size_bytes, o.dereferenced_at FROM objects AS o
WHERE o.refs = 0 AND o.created_at < {_HORIZON} AND o.dereferenced_at < (SELECT sh_now_ms()) - $1::bigint
    AND o.dereferenced_at < coalesce(
        (SELECT min(p.created_at) FROM read_pins AS p WHERE p.expires_at > (SELECT sh_now_ms())), 9223372036854775807)
ORDER BY o.dereferenced_at, o.object_key LIMIT $2
"""
_FORGET: Final = f"""
WITH held AS (
    SELECT o.object_key FROM objects AS o
    WHERE o.object_key = ANY ($1) AND o.refs = 0 AND o.created_at < {_HORIZON}
    ORDER BY o.object_key FOR UPDATE
)
DELETE FROM objects AS o USING held AS h WHERE o.object_key = h.object_key RETURNING o.object_key
"""
_CLAIM: Final = """
INSERT INTO claims AS c (name, owner, claimed_at, expires_at)
SELECT $1, $2, clock.now_ms, clock.now_ms + $3::bigint FROM (SELECT sh_now_ms() AS now_ms) AS clock
ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner,
    claimed_at = CASE WHEN c.owner = excluded.owner AND c.expires_at > excluded.claimed_at
                      THEN c.claimed_at ELSE excluded.claimed_at END,
    expires_at = CASE WHEN c.owner = excluded.owner THEN greatest(c.expires_at, excluded.expires_at)
                      ELSE excluded.expires_at END
WHERE c.owner = excluded.owner OR c.expires_at <= excluded.claimed_at
RETURNING c.name, c.owner, c.claimed_at, c.expires_at
"""
_RENEW_PINS: Final = """
UPDATE read_pins AS p SET expires_at = greatest(p.expires_at, clock.now_ms + $2::bigint)
FROM (SELECT sh_now_ms() AS now_ms) AS clock
WHERE p.pin_id = ANY ($1) AND p.expires_at > clock.now_ms
RETURNING p.pin_id
"""


class PostgresObjects(Maintenance):
    _database: Database

    async def purge_deleted_topics(self, *, limit: int) -> int:
        checks.check_sweep_limit(limit)

        async def work(connection: Connection) -> int:
            rows = await connection.fetch(_PURGE, limit)
            if rows:
                await connection.execute("SELECT sh_dereference($1)", [row["object_key"] for row in rows])
            return len(rows)

        return await self._database.transact(work)

    async def raise_gc_horizon(self, horizon_ms: int) -> int:
        checks.check_duration(horizon_ms, "a GC horizon")
        # The store-wide one first: whatever is created from here on starts with it. A creation under way holds the row.
        horizon = await self._database.fetchval(
            """UPDATE store_info SET gc_horizon_ms = greatest(gc_horizon_ms, least($1, (SELECT sh_tick_now())))
               RETURNING gc_horizon_ms""",
            horizon_ms,
        )
        last: tuple[UUID, int] | None = (UUID(int=0), -1)
        while last is not None:
            row = await self._database.fetchrow(_RAISE_CHUNK, horizon, *last, _HORIZON_CHUNK)
            last = None if row is None else (row["topic_id"], row["partition_id"])
        return int(horizon)

    async def find_unreferenced(self, stamps: Mapping[str, int]) -> set[str]:
        checks.check_stamps(stamps)
        rows = await self._database.fetch(_UNREFERENCED, list(stamps), list(stamps.values()))
        return {row["object_key"] for row in rows}

    async def list_dereferenced(self, *, grace_ms: int, limit: int) -> list[DereferencedObject]:
        checks.check_duration(grace_ms, "a grace period")
        checks.check_sweep_limit(limit)
        rows = await self._database.fetch(_DEREFERENCED, grace_ms, limit)
        return [
            DereferencedObject(
                key=row["object_key"], size_bytes=row["size_bytes"], dereferenced_at_ms=row["dereferenced_at"]
            )
            for row in rows
        ]

    async def forget_objects(self, keys: Sequence[str]) -> set[str]:
        checks.check_keys(keys, "objects")
        return {row["object_key"] for row in await self._database.fetch(_FORGET, list(keys))}


class PostgresPinsAndClaims(Maintenance):
    _database: Database

    async def create_pin(self, pin_id: UUID, *, owner: str, ttl_ms: int) -> Pin:
        checks.check_text(owner, "a pin's owner")
        checks.check_ttl(ttl_ms, "a pin")
        row = await self._database.fetchrow("SELECT * FROM sh_create_pin($1, $2, $3)", pin_id, owner, ttl_ms)
        assert row is not None
        return Pin(pin_id=pin_id, owner=owner, created_at_ms=row["created_at"], expires_at_ms=row["expires_at"])

    async def renew_pins(self, pin_ids: Sequence[UUID], *, ttl_ms: int) -> set[UUID]:
        checks.check_keys(pin_ids, "pins")
        checks.check_ttl(ttl_ms, "a pin")
        rows = await self._database.fetch(_RENEW_PINS, list(pin_ids), ttl_ms)
        return {plain_uuid(row["pin_id"]) for row in rows}

    async def release_pins(self, pin_ids: Sequence[UUID]) -> int:
        checks.check_keys(pin_ids, "pins")
        status = await self._database.call(
            lambda connection: connection.execute("DELETE FROM read_pins WHERE pin_id = ANY ($1)", list(pin_ids))
        )
        return changed_rows(status)

    async def list_pins(self) -> list[Pin]:
        rows = await self._database.fetch(
            """SELECT pin_id, owner, created_at, expires_at FROM read_pins
               WHERE expires_at > (SELECT sh_now_ms()) ORDER BY created_at, pin_id"""
        )
        return [
            Pin(
                pin_id=plain_uuid(row["pin_id"]),
                owner=row["owner"],
                created_at_ms=row["created_at"],
                expires_at_ms=row["expires_at"],
            )
            for row in rows
        ]

    async def acquire_claim(self, name: str, *, owner: str, ttl_ms: int) -> Claim:
        checks.check_text(name, "a claim's name")
        checks.check_text(owner, "a claim's owner")
        checks.check_ttl(ttl_ms, "a claim")

        async def work(connection: Connection) -> Claim:
            while True:
                row = await connection.fetchrow(_CLAIM, name, owner, ttl_ms)
                if row is None:
                    row = await connection.fetchrow(
                        "SELECT name, owner, claimed_at, expires_at FROM claims WHERE name = $1", name
                    )
                # Released between the two looks: it is free now.
                if row is not None:
                    return _to_claim(row)

        return await self._database.call(work)

    async def release_claim(self, name: str, *, owner: str) -> bool:
        checks.check_text(name, "a claim's name")
        checks.check_text(owner, "a claim's owner")
        gone = await self._database.fetchval(
            "DELETE FROM claims WHERE name = $1 AND owner = $2 RETURNING true", name, owner
        )
        return bool(gone)

    async def list_claims(self, prefix: str = "") -> list[Claim]:
        checks.check_text(prefix, "a claim's prefix", may_be_empty=True)
        rows = await self._database.fetch(
            """SELECT name, owner, claimed_at, expires_at FROM claims
               WHERE starts_with(name, $1) AND expires_at > (SELECT sh_now_ms()) ORDER BY name""",
            prefix,
        )
        return [_to_claim(row) for row in rows]


def _to_claim(row: Row) -> Claim:
    return Claim(name=row["name"], owner=row["owner"], claimed_at_ms=row["claimed_at"], expires_at_ms=row["expires_at"])
