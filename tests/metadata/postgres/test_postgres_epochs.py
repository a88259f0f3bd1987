"""The sweeps of epochs and agents on PostgreSQL: what they read, and what they pass by (R22)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
from scenes import Opener, holder, topic, until_waiting

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import AgentInfo, HistoryPlace
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.metadata.rows import epochs

WEEK_MS = 7 * 86_400_000


async def put_leaderships(operator: asyncpg.Connection, keys: list[PartitionKey], count: int) -> None:
    """Old ones of an agent each, none of which wrote anything."""
    for key in keys:
        await operator.execute(
            """INSERT INTO epoch_history (topic_id, partition_id, epoch, start_offset, agent_id, wal_id, started_at)
               SELECT $1, $2, n, 0, 'a', gen_random_uuid(), n FROM generate_series(1, $3::bigint) AS n""",
            key.topic_id,
            key.partition,
            count,
        )


def rows_read(plan: dict[str, Any]) -> int:
    """How many rows of the histories the nodes of a plan have returned."""
    own = plan["Actual Rows"] * plan["Actual Loops"] if plan.get("Relation Name") == "epoch_history" else 0
    return int(own) + sum(map(rows_read, plan.get("Plans", [])))


async def test_r22_a_step_reads_the_rows_of_its_step(store: PostgresMetadata, operator: asyncpg.Connection) -> None:
    keys = sorted(await topic(store, partitions=40))
    await put_leaderships(operator, keys, 100)
    await operator.execute("ANALYZE epoch_history, partitions")
    start = epochs._columns(HistoryPlace(key=keys[5], epoch=0))
    end = epochs._columns(HistoryPlace(key=keys[5], epoch=100))
    for query, args, most in (
        (epochs._LAST_OF_STEP, (*start, 99), 100),
        (epochs._EXPIRE, (*start, *end, WEEK_MS), 10 * 100),
    ):
        explained = await store._database.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *args)
        read = rows_read(json.loads(explained)[0]["Plan"])
        assert 100 <= read <= most, f"{read} rows of 4,000 read"
    assert len(await store.epoch_history(keys[5])) == 1
    assert len(await store.epoch_history(keys[6])) == 100


async def test_r22_a_sweep_passes_by_rows_that_another_one_deletes(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    (key,) = await topic(store)
    await put_leaderships(operator, [key], 10)
    async with operator.transaction():
        await operator.execute("DELETE FROM epoch_history WHERE epoch BETWEEN 3 AND 5")
        swept = await store.expire_epochs(keep_ms=WEEK_MS, limit=100)
    assert (swept.deleted, swept.after) == (6, None)
    assert [start.epoch for start in await store.epoch_history(key)] == [10]


async def test_r22_a_registration_under_way_is_passed_by(open_store: Opener, operator: asyncpg.Connection) -> None:
    """It has found the row, and would have nothing to write its heartbeat to."""
    store, run = await open_store(), holder("agent-1")
    info = AgentInfo(agent_id="agent-1", incarnation=run.incarnation)
    await store.register_agent(info)
    await operator.execute("UPDATE agents SET last_heartbeat = 0")
    async with operator.transaction():
        await operator.execute("SELECT 1 FROM node_ids WHERE agent_id = 'agent-1' FOR UPDATE")
        assert await store.expire_agents(silent_ms=WEEK_MS, limit=10) == []
    assert await store.expire_agents(silent_ms=WEEK_MS, limit=10) == ["agent-1"]


async def test_r22_an_agent_whose_heartbeat_is_under_way_stays(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    run = holder("agent-1")
    await store.register_agent(AgentInfo(agent_id="agent-1", incarnation=run.incarnation))
    await operator.execute("UPDATE agents SET last_heartbeat = 0")
    async with operator.transaction():
        await operator.execute("UPDATE agents SET last_heartbeat = sh_now_ms()")
        sweeping = asyncio.create_task(store.expire_agents(silent_ms=WEEK_MS, limit=10))
        await until_waiting(operator)
    assert await sweeping == []
    assert [agent.agent_id for agent in await store.list_agents()] == ["agent-1"]
