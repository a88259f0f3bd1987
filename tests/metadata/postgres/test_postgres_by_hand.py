"""People at psql: the walk-through of the source document works verbatim, and what they write fences like a leader."""

from __future__ import annotations

import asyncpg
import pytest
from builders import batch, leased_slice
from scenes import append_id, flush_slices, holder, topic, uploaded

from streamhouse.metadata.contract import AcquireVerdict, AgentInfo, HeldLease, OffsetCommit, Verdict
from streamhouse.metadata.migrations import load_migrations
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.testing.services import PostgresService

NO_WAL = "00000000-0000-0000-0000-000000000000"

# The document's own words, from "Manually register an agent" on.
REGISTER = """
INSERT INTO agents (agent_id, address, availability_zone, agent_group, last_heartbeat, started_at, metadata)
VALUES ('test-agent-1', '127.0.0.1:9090', 'local', 'test', extract(epoch from now())*1000, extract(epoch from now())*1000, '{}'::jsonb);
"""  # noqa: E501
ACQUIRE = """
INSERT INTO partition_leases (topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch)
VALUES ('orders', 0, 'test-agent-1', extract(epoch from now())*1000 + 30000, extract(epoch from now())*1000, 1);
"""
CHECK = """
SELECT * FROM agents;
SELECT * FROM partition_leases;
"""
ACQUIRE_AGAIN = """
INSERT INTO partition_leases (topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch)
VALUES ('orders', 0, 'test-agent-2', extract(epoch from now())*1000 + 30000, extract(epoch from now())*1000, 1)
ON CONFLICT (topic, partition_id)
DO UPDATE SET
    leader_agent_id = EXCLUDED.leader_agent_id,
    lease_expires_at = EXCLUDED.lease_expires_at,
    epoch = partition_leases.epoch + 1
WHERE partition_leases.lease_expires_at < extract(epoch from now())*1000;
"""
CHECK_EPOCH = "SELECT topic, partition_id, leader_agent_id, epoch FROM partition_leases;"
TTL_QUERY = """
SELECT topic, partition_id, leader_agent_id,
                  lease_expires_at - extract(epoch from now())*1000 as ttl_ms,
                  epoch
           FROM partition_leases;
"""
HALF_A_MINUTE_LATER = "UPDATE partition_leases SET lease_expires_at = lease_expires_at - 30001;"
PLAIN = ("-At", "-F", "|")


async def test_s1_22_the_walk_through_in_psql(
    postgres_service: PostgresService, dsn: str, store: PostgresMetadata
) -> None:
    (key, *_) = await topic(store, "orders", 3)

    def psql(script: str) -> list[str]:
        return postgres_service.psql(script, dsn=dsn, options=PLAIN).splitlines()

    psql(REGISTER)
    psql(ACQUIRE)
    agent, lease = psql(CHECK)
    assert agent.startswith("test-agent-1|127.0.0.1:9090|local|test|")
    assert lease.startswith("orders|0|test-agent-1|")
    psql(ACQUIRE_AGAIN)
    assert psql(CHECK_EPOCH) == ["orders|0|test-agent-1|1"], "an unexpired lease is left alone"
    psql(HALF_A_MINUTE_LATER)
    psql(ACQUIRE_AGAIN)
    assert psql(CHECK_EPOCH) == ["orders|0|test-agent-2|2"]

    (registered,) = await store.list_agents()
    assert (registered.agent_id, registered.incarnation, registered.node_id) == ("test-agent-1", None, 1)
    # The API sees the operator's lease, is held off by it, and takes over when it has run out.
    (found,) = await store.list_leases(keys=[key])
    assert (found.agent_id, found.incarnation, found.epoch, found.expired) == ("test-agent-2", None, 2, False)
    (held,) = await store.acquire_leases(holder("agent-3"), [key], ttl_ms=30_000)
    assert held.verdict is AcquireVerdict.HELD
    assert held.lease == found
    psql(HALF_A_MINUTE_LATER)
    (taken,) = await store.acquire_leases(holder("agent-3"), [key], ttl_ms=30_000)
    assert taken.verdict is AcquireVerdict.ACQUIRED
    assert taken.lease is not None
    assert taken.lease.epoch == 3
    history = [(start.epoch, start.agent_id) for start in await store.epoch_history(key)]
    assert history == [(1, "test-agent-1"), (2, "test-agent-2"), (3, "agent-3")]


async def test_s1_19_the_ttl_query(postgres_service: PostgresService, dsn: str, store: PostgresMetadata) -> None:
    keys = [*await topic(store, "orders", 3), *await topic(store, "user-events", 2), *await topic(store, "metrics", 4)]
    await store.acquire_leases(holder("agent-us-east-1a"), keys, ttl_ms=3_600_000)
    rows = [line.split("|") for line in postgres_service.psql(TTL_QUERY, dsn=dsn, options=PLAIN).splitlines()]
    assert {(row[0], row[1]) for row in rows} == {
        (name, str(n)) for name, count in (("orders", 3), ("user-events", 2), ("metrics", 4)) for n in range(count)
    }
    assert {(row[2], row[4]) for row in rows} == {("agent-us-east-1a", "1")}
    assert all(0 < float(row[3]) <= 3_600_000 for row in rows)


async def test_s1_5_the_documents_look_at_partitions_and_segments(
    postgres_service: PostgresService, dsn: str, store: PostgresMetadata
) -> None:
    keys = await topic(store, "orders", 2)
    await store.acquire_leases(holder(), keys, ttl_ms=30_000)
    await store.commit_leased(append_id(), [leased_slice(keys[1], uploaded(), batch(150), epoch=1, base=0)])
    look = "SELECT topic, partition_id, high_watermark FROM partitions ORDER BY partition_id"
    assert postgres_service.psql(look, dsn=dsn, options=PLAIN).splitlines() == ["orders|0|0", "orders|1|150"]
    look = "SELECT topic, partition_id, base_offset, end_offset FROM segments"
    assert postgres_service.psql(look, dsn=dsn, options=PLAIN).splitlines() == ["orders|1|0|149"]


async def test_s3_2_a_topics_defaults_show_as_columns(
    postgres_service: PostgresService, dsn: str, store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    (key,) = await topic(store, "orders")
    look = "SELECT name, partition_count, retention_ms, cleanup_policy FROM topics"
    assert postgres_service.psql(look, dsn=dsn, options=PLAIN).splitlines() == ["orders|1|86400000|delete"]
    await store.alter_topic_configs(key.topic_id, set_configs={"retention.ms": "-1", "cleanup.policy": "compact"})
    assert postgres_service.psql(look, dsn=dsn, options=PLAIN).splitlines() == ["orders|1|-1|compact"]


async def test_r1_an_operators_lease_fences_the_leader(store: PostgresMetadata, operator: asyncpg.Connection) -> None:
    (key,) = await topic(store, "orders")
    leader = holder("agent-1")
    await store.acquire_leases(leader, [key], ttl_ms=30_000)
    await store.commit_leased(append_id(), flush_slices([key], uploaded(), base=0))
    await operator.execute(HALF_A_MINUTE_LATER)
    await operator.execute(ACQUIRE_AGAIN)
    (outcome,) = await store.commit_leased(append_id(), flush_slices([key], uploaded(), base=1))
    assert (outcome.verdict, outcome.leader_epoch) == (Verdict.FENCED, 2)
    (renewal,) = await store.renew_leases(leader, [HeldLease(key=key, epoch=1)], ttl_ms=30_000)
    assert not renewal.renewed
    *_, last = await store.epoch_history(key)
    assert (last.epoch, last.start_offset, last.agent_id, str(last.wal_id)) == (2, 1, "test-agent-2", NO_WAL)


async def test_s1_13_no_hand_takes_an_epoch_back(store: PostgresMetadata, operator: asyncpg.Connection) -> None:
    (key,) = await topic(store, "orders")
    for _ in range(3):
        await store.acquire_leases(holder("agent-1"), [key], ttl_ms=30_000)

    async def epochs() -> tuple[int, int]:
        (state,) = await store.get_partitions([key])
        (lease,) = await store.list_leases()
        return state.leader_epoch, lease.epoch

    assert await epochs() == (3, 3)
    await operator.execute("UPDATE partition_leases SET epoch = 1")
    assert await epochs() == (3, 3)
    await operator.execute("UPDATE partition_leases SET leader_agent_id = 'someone'")
    assert await epochs() == (4, 4), "another leader is another epoch, whatever the statement says"
    await operator.execute("UPDATE partition_leases SET epoch = 9")
    assert await epochs() == (9, 9)
    await operator.execute("DELETE FROM partition_leases")
    await operator.execute(ACQUIRE)
    assert await epochs() == (10, 10)
    assert [start.epoch for start in await store.epoch_history(key)] == [1, 2, 3, 4, 9, 10]


async def test_a_lease_by_hand_on_a_topic_to_come_counts_when_it_comes(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    await operator.execute(ACQUIRE.replace(", 1);", ", 41);"))
    assert await store.list_leases() == []
    (key,) = await topic(store, "orders")
    assert await store.list_leases() == [], "that was no lease of this topic"
    (state,) = await store.get_partitions([key])
    assert state.leader_epoch == 41


async def test_a_leaderless_topic_cannot_be_leased_by_hand(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    await topic(store, "orders", leaderless=True)
    with pytest.raises(asyncpg.CheckViolationError, match="leaderless"):
        await operator.execute(ACQUIRE)


async def test_offset_metadata_from_before_the_mark_is_read_as_it_was(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """A process of the version before may write a text that begins with the mark, and is no base64."""
    (key,) = await topic(store)
    for text in ("plain", "\x01 not base64", "\x01", "\x01//8="):
        await store.commit_offsets_simple("g", [OffsetCommit(key=key, offset=1)])
        await operator.execute("UPDATE group_offsets SET metadata = $1", text)
        found = (await store.fetch_offsets("g"))[key].metadata
        assert found == ("" if text == "\x01" else text)


async def test_the_migration_keeps_a_text_that_happens_to_begin_with_the_mark(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    migrations = load_migrations("streamhouse.metadata.postgres")
    (script,) = [each.sql for each in migrations if each.name == "offset_metadata"]
    (key,) = await topic(store)
    for text in ("plain", "\x01AA==", "\x01" + "long " * 100):
        await store.commit_offsets_simple("g", [OffsetCommit(key=key, offset=1)])
        await operator.execute("UPDATE group_offsets SET metadata = $1", text)
        await operator.execute(script)
        assert (await store.fetch_offsets("g"))[key].metadata == text


async def test_an_agent_of_the_version_before_registers_one_address_and_finds_the_others_by_theirs(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    listeners = {"kafka": "new:9092", "http": "new:8080"}
    await store.register_agent(AgentInfo(agent_id="new", incarnation=holder().incarnation, listeners=listeners))
    await store.register_agent(AgentInfo(agent_id="silent", incarnation=holder().incarnation))
    before = await operator.fetch("SELECT agent_id, address FROM agents ORDER BY agent_id")
    assert [tuple(row) for row in before] == [("new", "new:9092"), ("silent", "not-listening:0")]
    # The version before, in the place of the newer agent: it registers with six arguments.
    register = "SELECT * FROM sh_register_agent($1, $2, $3, 'default', 'default', '{}')"
    await operator.fetch(register, "new", holder().incarnation, "old:9092")
    assert [agent.listeners for agent in await store.list_agents()] == [{"kafka": "old:9092"}, {}]
