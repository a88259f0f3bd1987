"""What the pages tell operators of PostgreSQL is true: their queries as they stand, and the number of connections."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import asyncpg
import pytest
from builders import batch, leased_slice
from scenes import append_id, holder, topic, until_waiting, uploaded

from streamhouse.metadata.postgres.store import PostgresMetadata

DOCS = Path(__file__).parents[3] / "docs"
SQL_BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def queries(page: str) -> list[str]:
    """Each statement of the page's SQL blocks."""
    found = "".join(SQL_BLOCK.findall((DOCS / page).read_text()))
    return [statement for statement in re.sub(r"--.*", "", found).split(";") if statement.strip()]


@pytest.mark.parametrize("page", ["operations.md", "metadata.md"])
async def test_the_queries_show_the_topics_that_exist(
    page: str, store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    orders, gone, again = [await topic(store, name, 2) for name in ("orders", "gone", "again")]
    await store.acquire_leases(holder("agent-7"), [*orders, *gone, *again], ttl_ms=3_600_000)
    await store.commit_leased(append_id(), [leased_slice(orders[1], uploaded(), batch(150), epoch=1, base=0)])
    for deleted in (gone, again):
        await store.delete_topic(deleted[0].topic_id)
    await topic(store, "again", 2)

    answers = [await operator.fetch(query) for query in queries(page)]
    (leases,) = [rows for rows in answers if "leader_agent_id" in rows[0]]
    assert [(row["topic"], row["partition_id"], row["leader_agent_id"], row["epoch"]) for row in leases] == [
        ("orders", 0, "agent-7", 1),
        ("orders", 1, "agent-7", 1),
    ]
    assert all(0 < row["ttl_ms"] <= 3_600_000 for row in leases if "ttl_ms" in row)
    (ends,) = [rows for rows in answers if set(rows[0].keys()) == {"topic", "partition_id", "high_watermark"}]
    assert {tuple(row) for row in ends} == {("again", 0, 0), ("again", 1, 0), ("orders", 0, 0), ("orders", 1, 150)}


async def test_a_process_takes_eleven_connections_and_no_more(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    assert "at most eleven connections" in (DOCS / "operations.md").read_text()
    ours = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'streamhouse'"
    )
    await operator.execute("SELECT pg_advisory_lock(4711)")
    async with store.subscribe():
        busy = [asyncio.create_task(store._database.fetch("SELECT pg_advisory_xact_lock(4711)")) for _ in range(30)]
        await until_waiting(operator, 10)
        assert await operator.fetchval(ours) == 11
        await operator.execute("SELECT pg_advisory_unlock(4711)")
        await asyncio.gather(*busy)
        assert await operator.fetchval(ours) == 11
