"""The GC horizon of every partition (R6, R24), and pins, which wait for dereferencing under way (R7)."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from streamhouse.metadata import checks
from streamhouse.metadata.contract import Pin
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.objects import ObjectRows

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


class PostgresObjects(ObjectRows):
    _database: Database

    # Raising it takes several transactions and may have ended between two, so this is what stands in every partition.
    _HORIZON = """
        (SELECT least(s.gc_horizon_ms, (SELECT min(p.gc_horizon_ms) FROM partitions AS p)) FROM store_info AS s)"""

    async def raise_gc_horizon(self, horizon_ms: int) -> int:
        checks.check_duration(horizon_ms, "a GC horizon")
        # The store-wide one first: partitions created from here on start with it. A creation under way holds the row.
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

    async def create_pin(self, pin_id: UUID, *, owner: str, ttl_ms: int) -> Pin:
        checks.check_text(owner, "a pin's owner")
        checks.check_ttl(ttl_ms, "a pin")
        row = await self._database.fetchrow("SELECT * FROM sh_create_pin($1, $2, $3)", pin_id, owner, ttl_ms)
        assert row is not None
        return Pin(pin_id=pin_id, owner=owner, created_at_ms=row["created_at"], expires_at_ms=row["expires_at"])
