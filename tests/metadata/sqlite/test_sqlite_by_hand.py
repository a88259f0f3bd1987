"""People with a SQL shell: the documented tables and queries work, and what they write by hand counts."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from builders import compaction_of, leased_slice

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import CompactionConflict
from streamhouse.core.ids import AppendId, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    AcquireVerdict,
    AgentInfo,
    Holder,
    NewTopic,
    ObjectRef,
    ScanRange,
    Topic,
    Verdict,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata

IDS = SeededRandomness(8)
NOW = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteMetadata]:
    async with SqliteMetadata(tmp_path / "metadata.db", clock=clock, randomness=SeededRandomness(1)) as opened:
        yield opened


@pytest.fixture
async def shell(store: SqliteMetadata, tmp_path: Path) -> AsyncIterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)
    yield connection
    connection.close()


async def create(store: SqliteMetadata, name: str = "orders", **configs: str) -> Topic:
    return await store.create_topic(
        NewTopic(topic_id=TopicId(IDS.uuid()), name=name, partition_count=1, configs=configs)
    )


def holder(agent_id: str) -> Holder:
    return Holder(agent_id=agent_id, incarnation=IDS.uuid(), wal_id=IDS.uuid())


async def test_s1_22_an_operator_s_lease_fences_and_is_taken_over_when_it_expires(
    store: SqliteMetadata, shell: sqlite3.Connection, clock: ManualClock
) -> None:
    (key,) = (await create(store)).partition_keys()
    shell.execute(
        "INSERT INTO partition_leases (topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch) "
        "VALUES ('orders', 0, 'test-agent-1', ? + 30000, ?, 1)",
        (NOW, NOW),
    )
    (held,) = await store.acquire_leases(holder("other"), [key], ttl_ms=1000)
    assert held.verdict is AcquireVerdict.HELD
    assert held.lease is not None
    assert (held.lease.agent_id, held.lease.incarnation, held.lease.epoch) == ("test-agent-1", None, 1)
    (history,) = await store.epoch_history(key)
    assert (history.epoch, history.start_offset, history.wal_id.int) == (1, 0, 0)

    clock.advance(30_000)
    take_over = (
        "INSERT INTO partition_leases (topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch) "
        "VALUES ('orders', 0, 'test-agent-2', ?1 + 30000, ?1, 1) ON CONFLICT (topic, partition_id) DO UPDATE SET "
        "leader_agent_id = excluded.leader_agent_id, lease_expires_at = excluded.lease_expires_at, "
        "epoch = partition_leases.epoch + 1 WHERE partition_leases.lease_expires_at < ?1 + 1"
    )
    shell.execute(take_over, (clock.wall_ms(),))
    row = shell.execute("SELECT topic, partition_id, leader_agent_id, epoch FROM partition_leases").fetchone()
    assert row == ("orders", 0, "test-agent-2", 2)
    assert [state.leader_epoch for state in await store.get_partitions([key])] == [2]

    clock.advance(30_000)
    (taken,) = await store.acquire_leases(holder("other"), [key], ttl_ms=1000)
    assert taken.lease is not None
    assert (taken.verdict, taken.lease.epoch) == (AcquireVerdict.ACQUIRED, 3)
    assert [start.epoch for start in await store.epoch_history(key)] == [1, 2, 3]


async def test_s1_22_an_operator_who_takes_a_lease_from_an_agent_fences_it(
    store: SqliteMetadata, shell: sqlite3.Connection, clock: ManualClock
) -> None:
    (key,) = (await create(store)).partition_keys()
    agent = holder("agent-1")
    await store.acquire_leases(agent, [key], ttl_ms=1000)
    shell.execute(
        "UPDATE partition_leases SET leader_agent_id = 'me', lease_expires_at = ?, epoch = epoch + 1", (NOW * 2,)
    )
    ref = ObjectRef(key="o", size_bytes=1, created_at_ms=NOW)
    (outcome,) = await store.commit_leased(AppendId(IDS.uuid()), [leased_slice(key, ref, epoch=1, base=0)])
    assert outcome.verdict is Verdict.FENCED
    (lease,) = await store.list_leases()
    assert (lease.agent_id, lease.incarnation, lease.epoch) == ("me", None, 2)


async def test_s1_22_a_lease_written_before_its_topic_exists(store: SqliteMetadata, shell: sqlite3.Connection) -> None:
    shell.execute(
        "INSERT INTO partition_leases (topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch) "
        "VALUES ('orders', 0, 'early', ?, ?, 7)",
        (NOW + 1000, NOW),
    )
    (key,) = (await create(store)).partition_keys()
    (held,) = await store.acquire_leases(holder("other"), [key], ttl_ms=1000)
    assert held.lease is not None
    assert (held.verdict, held.lease.agent_id, held.lease.epoch) == (AcquireVerdict.HELD, "early", 7)


async def test_s1_6_an_agent_registered_by_hand_is_listed(store: SqliteMetadata, shell: sqlite3.Connection) -> None:
    shell.execute(
        "INSERT INTO agents (agent_id, address, availability_zone, agent_group, last_heartbeat, started_at, metadata) "
        "VALUES ('test-agent-1', '127.0.0.1:9090', 'local', 'test', ?1, ?1, '{}')",
        (NOW,),
    )
    (agent,) = await store.list_agents(alive_within_ms=1000)
    assert (agent.agent_id, agent.incarnation, agent.node_id, agent.metadata) == ("test-agent-1", None, 1, {})
    assert agent.listeners == {"kafka": "127.0.0.1:9090"}


async def test_an_agent_of_the_version_before_registers_one_address_and_finds_the_others_by_theirs(
    store: SqliteMetadata, shell: sqlite3.Connection
) -> None:
    listeners = {"kafka": "new:9092", "http": "new:8080"}
    await store.register_agent(AgentInfo(agent_id="new", incarnation=IDS.uuid(), listeners=listeners))
    await store.register_agent(AgentInfo(agent_id="silent", incarnation=IDS.uuid()))
    before = "SELECT agent_id, address FROM agents ORDER BY agent_id"
    assert shell.execute(before).fetchall() == [("new", "new:9092"), ("silent", "not-listening:0")]
    # The version before, in the place of the newer agent: its statement does not know the column of listeners.
    shell.execute("UPDATE agents SET address = 'old:9092', incarnation = ? WHERE agent_id = 'new'", (IDS.uuid().bytes,))
    assert [agent.listeners for agent in await store.list_agents()] == [{"kafka": "old:9092"}, {}]


async def test_s1_19_the_documented_queries_work(store: SqliteMetadata, shell: sqlite3.Connection) -> None:
    (key,) = (await create(store)).partition_keys()
    await store.acquire_leases(holder("agent-1"), [key], ttl_ms=30_000)
    ref = ObjectRef(key="o", size_bytes=1, created_at_ms=NOW)
    await store.commit_leased(AppendId(IDS.uuid()), [leased_slice(key, ref, epoch=1, base=0)])
    assert shell.execute("SELECT topic, partition_id, high_watermark FROM partitions").fetchall() == [("orders", 0, 1)]
    ttl = "SELECT topic, partition_id, leader_agent_id, lease_expires_at - ? AS ttl_ms, epoch FROM partition_leases"
    assert shell.execute(ttl, (NOW,)).fetchall() == [("orders", 0, "agent-1", 30_000, 1)]
    segments = "SELECT topic, partition_id, base_offset, end_offset, object_key FROM segments"
    assert shell.execute(segments).fetchall() == [("orders", 0, 0, 0, "o")]


async def test_a_compaction_whose_sources_are_gone_is_refused_and_cleared(
    store: SqliteMetadata, shell: sqlite3.Connection
) -> None:
    """No call leads here (retention aborts what it undercuts); a repair by hand may."""
    (key,) = (await create(store)).partition_keys()
    await store.acquire_leases(holder("agent-1"), [key], ttl_ms=30_000)
    for base in range(2):
        ref = ObjectRef(key=f"o{base}", size_bytes=1, created_at_ms=NOW)
        await store.commit_leased(AppendId(IDS.uuid()), [leased_slice(key, ref, epoch=1, base=base)])
    (page,) = await store.scan_entries([ScanRange(key=key, from_offset=0)], limit=10)
    wanted = compaction_of(key, page.entries, ObjectRef(key="big", size_bytes=2, created_at_ms=NOW), IDS)
    await store.begin_compaction(wanted)
    shell.execute("UPDATE entries SET object_key = 'elsewhere' WHERE end_offset = 1")
    with pytest.raises(CompactionConflict):
        await store.apply_compaction(key, wanted.compaction_id)
    assert await store.get_compaction(key) is None
    assert shell.execute("SELECT refs, dereferenced_at FROM objects WHERE object_key = 'big'").fetchone() == (0, NOW)


async def test_s3_2_retention_and_policy_are_columns(store: SqliteMetadata, shell: sqlite3.Connection) -> None:
    await create(store, "a")
    await create(store, "b", **{"retention.ms": "5000", "cleanup.policy": "compact"})
    rows = shell.execute("SELECT name, retention_ms, cleanup_policy FROM topics ORDER BY name").fetchall()
    assert rows == [("a", 86_400_000, "delete"), ("b", 5000, "compact")]
