"""R20 on PostgreSQL: the row that keeps the clock from going back makes no call wait, and an old store gets it."""

from __future__ import annotations

import asyncio

import asyncpg
from scenes import WAIT_S, append_id, flush_slices, holder, topic, uploaded

from streamhouse.metadata.contract import AgentInfo, HeldLease, Verdict
from streamhouse.metadata.postgres.store import PostgresMetadata

BACK = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint - 300000"


async def test_r20_no_call_waits_for_a_session_that_stores_the_clock(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    keys = await topic(store)
    leader = holder()
    await store.register_agent(
        AgentInfo(agent_id=leader.agent_id, incarnation=leader.incarnation, listeners={"kafka": "agent-1:9092"})
    )
    await operator.execute("UPDATE store_clock SET now_ms = now_ms - 60000, clock_ms = clock_ms - 60000")
    async with operator.transaction(), asyncio.timeout(WAIT_S / 2):
        await operator.execute("UPDATE store_clock SET now_ms = now_ms")
        await store.acquire_leases(leader, keys, ttl_ms=30_000)
        await store.renew_leases(leader, [HeldLease(key=keys[0], epoch=1)], ttl_ms=30_000)
        await store.heartbeat(leader.agent_id, leader.incarnation)
        await store.now_ms()
        (outcome,) = await store.commit_leased(append_id(), flush_slices(keys, uploaded(), base=0))
        assert outcome.verdict is Verdict.COMMITTED


async def test_r20_a_reading_is_stored_now_and_then_and_not_by_commits(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    keys = await topic(store)
    leader = holder()
    await store.acquire_leases(leader, keys, ttl_ms=30_000)
    # A reading in the near future: none is due, however slowly this test runs.
    await operator.execute(
        "UPDATE store_clock SET now_ms = sh_clock_ms() + 3600000, clock_ms = sh_clock_ms() + 3600000"
    )
    await operator.execute(
        "CREATE OR REPLACE FUNCTION sh_clock_ms() RETURNS bigint LANGUAGE sql AS 'SELECT clock_ms FROM store_clock'"
    )
    before = await operator.fetchval("SELECT xmin::text FROM store_clock")
    for base in range(3):
        (outcome,) = await store.commit_leased(append_id(), flush_slices(keys, uploaded(), base=base))
        assert outcome.verdict is Verdict.COMMITTED
        await store.renew_leases(leader, [HeldLease(key=keys[0], epoch=1)], ttl_ms=30_000)
        await store.now_ms()
    assert await operator.fetchval("SELECT xmin::text FROM store_clock") == before


async def test_r20_a_server_clock_five_minutes_behind_is_not_followed(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """The real function, with the server's reading replaced, as at a fail-over to a machine with another clock."""
    before = await store.now_ms()
    await operator.execute(f"CREATE OR REPLACE FUNCTION sh_clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS '{BACK}'")
    await store.now_ms()
    seen = [await operator.fetchval("SELECT sh_now_ms() FROM pg_sleep(0.02)") for _ in range(5)]
    assert seen == sorted(seen)
    assert before - 1000 <= seen[0] < seen[-1]


async def test_r20_without_its_row_the_clock_is_the_servers(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    await operator.execute("DELETE FROM store_clock")
    clock, ours, ticked = await operator.fetchrow("SELECT sh_clock_ms(), sh_now_ms(), sh_tick()")
    assert clock <= ours <= ticked
