"""Races forced by explicit locks: what two sessions do to the same rows, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from builders import batch, leased_slice
from scenes import Opener, append_id, blob_slices, flush_slices, holder, offsets, topic, until_waiting, uploaded

from streamhouse.core.errors import AgentSuperseded
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import AcquireVerdict, AgentInfo, HeldLease, OffsetCommit, SliceOutcome, Verdict
from streamhouse.metadata.postgres.store import PostgresMetadata

DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
TAKE_OVER = "SELECT * FROM sh_acquire_leases($1, $2, $3, $4, $5, $6, $7, $8, $9)"


@asynccontextmanager
async def open_transaction(connection: Any) -> AsyncIterator[None]:
    """Committed when the block ends; everything inside is invisible until then."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    except BaseException:
        await transaction.rollback()
        raise
    await transaction.commit()


async def expire_leases(operator: asyncpg.Connection) -> None:
    await operator.execute("UPDATE partition_leases SET lease_expires_at = sh_now_ms() - 1")


async def test_r1_a_commit_that_waited_out_a_take_over_is_fenced(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """The stale leader's commit is already under way, past any check it made, when the take-over commits."""
    (key,) = await topic(store)
    await store.acquire_leases(holder("old"), [key], ttl_ms=30_000)
    await expire_leases(operator)
    new = holder("new")
    async with open_transaction(operator):
        taken = await operator.fetchrow(
            TAKE_OVER, new.agent_id, new.incarnation, new.wal_id, 30_000, [key.topic_id], [key.partition], [0], [], []
        )
        assert (taken["verdict"], taken["epoch"], taken["high_watermark"]) == ("acquired", 2, 0)
        stale = asyncio.create_task(store.commit_leased(append_id(), flush_slices([key], uploaded(), base=0)))
        await until_waiting(operator)
    (outcome,) = await stale
    assert (outcome.verdict, outcome.leader_epoch, outcome.high_watermark) == (Verdict.FENCED, 2, 0)
    assert await offsets(store, key) == []
    (fresh,) = await store.commit_leased(append_id(), flush_slices([key], uploaded(), base=0, epoch=2))
    assert fresh.verdict is Verdict.COMMITTED


async def test_r1_a_take_over_that_waited_out_a_commit_starts_at_its_watermark(
    store: PostgresMetadata, open_store: Opener, operator: asyncpg.Connection
) -> None:
    (key,) = await topic(store)
    await store.acquire_leases(holder("old"), [key], ttl_ms=30_000)
    await expire_leases(operator)
    other = await open_store()
    async with open_transaction(operator):
        await operator.execute("SELECT 1 FROM partitions FOR UPDATE")
        commit = asyncio.create_task(
            store.commit_leased(append_id(), [leased_slice(key, uploaded(), batch(7), epoch=1, base=0)])
        )
        await until_waiting(operator)
        take_over = asyncio.create_task(other.acquire_leases(holder("new"), [key], ttl_ms=30_000))
        await until_waiting(operator, sessions=2)
    (committed,), (acquired,) = await commit, await take_over
    assert committed.verdict is Verdict.COMMITTED
    assert acquired.verdict is AcquireVerdict.ACQUIRED
    assert acquired.lease is not None
    assert (acquired.lease.epoch, acquired.lease.high_watermark) == (2, 7)
    assert [(start.epoch, start.start_offset) for start in await store.epoch_history(key)] == [(1, 0), (2, 7)]


async def test_r5_a_twin_that_waited_for_the_first_sending_finds_its_append_id(
    store: PostgresMetadata, open_store: Opener, operator: asyncpg.Connection
) -> None:
    """Both sendings of one commit wait for the same row; the second one answers what the first did."""
    (key,) = await topic(store, leaderless=True)
    identity, blob, slices = append_id(), uploaded(), blob_slices([key], batch(4))
    other = await open_store()
    async with open_transaction(operator):
        await operator.execute("SELECT 1 FROM partitions FOR UPDATE")
        sendings = [asyncio.create_task(one.commit_leaderless(identity, blob, slices)) for one in (store, other, store)]
        await until_waiting(operator, sessions=3)
    outcomes = [outcome for (outcome,) in await asyncio.gather(*sendings)]
    assert [(one.base_offset, one.end_offset) for one in outcomes] == [(0, 3)] * 3
    assert sorted(one.repeated for one in outcomes) == [False, True, True]
    assert await offsets(store, key) == [(0, 3)]


async def test_r10_commits_over_the_same_partitions_in_opposite_orders_never_deadlock(
    open_store: Opener, operator: asyncpg.Connection
) -> None:
    stores = [await open_store() for _ in range(2)]
    free = [*await topic(stores[0], "a", 15, leaderless=True), *await topic(stores[0], "b", 15, leaderless=True)]
    shuffles = SeededRandomness(10)

    async def write(store: PostgresMetadata, *, backwards: bool) -> list[SliceOutcome]:
        outcomes: list[SliceOutcome] = []
        for _ in range(25):
            some = [key for key in free if shuffles.uniform(0, 1) < 0.7] or free
            outcomes += await store.commit_leaderless(
                append_id(), uploaded(), blob_slices(some[::-1] if backwards else some)
            )
        return outcomes

    writers = [write(store, backwards=backwards) for store in stores for backwards in (True, False)]
    outcomes = [outcome for some in await asyncio.gather(*writers) for outcome in some]
    assert {outcome.verdict for outcome in outcomes} == {Verdict.COMMITTED}
    for key in free:
        answered = sorted(one.base_offset for one in outcomes if one.key == key)
        assert answered == [base for base, _ in await offsets(stores[0], key)] == list(range(len(answered)))
    # A retry hides a deadlock from the caller, but not from the server's count, which a session reports by its end.
    for store in stores:
        await store.close()
    assert await operator.fetchval(DEADLOCKS) == 0


async def test_r10_one_lost_lease_does_not_fail_the_others(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    keys = await topic(store, partitions=50)
    leader = holder("old")
    await store.acquire_leases(leader, keys, ttl_ms=30_000)
    await operator.execute("UPDATE partition_leases SET lease_expires_at = 0 WHERE partition_id = 17")
    await store.acquire_leases(holder("new"), [keys[17]], ttl_ms=30_000)
    outcomes = await store.commit_leased(append_id(), flush_slices(keys, uploaded(), base=0))
    assert [n for n, one in enumerate(outcomes) if one.verdict is Verdict.FENCED] == [17]
    assert sum(one.verdict is Verdict.COMMITTED for one in outcomes) == 49


async def test_r20_the_clock_goes_on_within_a_transaction(operator: asyncpg.Connection) -> None:
    async with open_transaction(operator):
        early = await operator.fetchrow("SELECT sh_now_ms() AS ours, now() AS begun")
        late = await operator.fetchrow("SELECT sh_now_ms() AS ours, now() AS begun FROM pg_sleep(0.01)")
    assert late["begun"] == early["begun"]
    assert late["ours"] > early["ours"]


async def test_r20_a_lease_that_ran_out_while_its_renewal_waited_is_not_renewed(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    (key,) = await topic(store)
    leader = holder()
    (acquired,) = await store.acquire_leases(leader, [key], ttl_ms=200)
    assert acquired.lease is not None
    async with open_transaction(operator):
        await operator.execute("SELECT 1 FROM partition_leases FOR UPDATE")
        renewal = asyncio.create_task(
            store.renew_leases(leader, [HeldLease(key=key, epoch=acquired.lease.epoch)], ttl_ms=30_000)
        )
        await until_waiting(operator)
        await operator.execute(
            "SELECT pg_sleep(greatest(0, $1::bigint - sh_now_ms()) / 1000.0 + 0.001)", acquired.lease.expires_at_ms
        )
    (outcome,) = await renewal
    assert not outcome.renewed


async def test_r6_the_horizon_waits_for_a_topic_that_is_being_created(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """Its partitions were not visible when the horizon rose, yet they must not take an object from below it."""
    transaction = operator.transaction()
    await transaction.start()
    await operator.execute(
        """INSERT INTO topics (topic_id, name, partition_count, write_mode, config, created_at, version)
           VALUES ($1, 'late', 2, 'leaderless', '{}', 0, 1)""",
        SeededRandomness(6).uuid(),
    )
    # Waits for the name, which another call may be about to take.
    creating = asyncio.create_task(topic(store, "late", 2, leaderless=True))
    await until_waiting(operator)
    raising = asyncio.create_task(store.raise_gc_horizon(5_000))
    await until_waiting(operator, sessions=2)
    await transaction.rollback()
    keys = await creating
    assert await raising == 5_000
    assert [state.gc_horizon_ms for state in await store.get_partitions(keys)] == [5_000, 5_000]
    outcomes = await store.commit_leaderless(append_id(), uploaded(created_at_ms=4_999), blob_slices(keys))
    assert {one.verdict for one in outcomes} == {Verdict.STALE_OBJECT}


async def test_r6_the_horizon_passes_every_partition_of_a_large_store(store: PostgresMetadata) -> None:
    keys = [*await topic(store, "a", 1500), *await topic(store, "b", 1200)]
    assert await store.raise_gc_horizon(7_000) == 7_000
    assert {state.gc_horizon_ms for state in await store.get_partitions(keys)} == {7_000}
    assert await store.raise_gc_horizon(6_000) == 7_000


async def test_r7_a_pin_waits_for_what_is_being_dereferenced(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """Else its reader could list entries that are about to go, whose objects count as dereferenced before the pin."""
    (key,) = await topic(store)
    await store.acquire_leases(holder(), [key], ttl_ms=30_000)
    blob = uploaded()
    await store.commit_leased(append_id(), flush_slices([key], blob, base=0))
    async with open_transaction(operator):
        await operator.execute("DELETE FROM entries")
        await operator.execute("SELECT sh_dereference($1)", [blob.key])
        pinning = asyncio.create_task(store.create_pin(SeededRandomness(7).uuid(), owner="reader", ttl_ms=60_000))
        await until_waiting(operator)
        assert await offsets(store, key) == [(0, 0)]
    pin = await pinning
    assert await offsets(store, key) == []
    stamped = await operator.fetchval("SELECT dereferenced_at FROM objects WHERE object_key = $1", blob.key)
    assert stamped <= pin.created_at_ms


async def test_a_superseded_incarnation_cannot_slip_in_an_acquisition(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """The newer incarnation's registration has begun; the older one's acquisition waits for it and is refused."""
    (key,) = await topic(store)
    old, new = holder("agent-1"), holder("agent-1")
    await store.register_agent(AgentInfo(agent_id="agent-1", incarnation=old.incarnation, listeners={"kafka": "a:1"}))
    async with open_transaction(operator):
        await operator.fetch(
            "SELECT * FROM sh_register_agent($1, $2, 'a:1', 'z', 'g', '{}')", new.agent_id, new.incarnation
        )
        acquiring = asyncio.create_task(store.acquire_leases(old, [key], ttl_ms=30_000))
        await until_waiting(operator)
    with pytest.raises(AgentSuperseded):
        await acquiring
    assert await store.list_leases() == []


async def test_r10_concurrent_first_registrations_never_deadlock(
    open_store: Opener, operator: asyncpg.Connection
) -> None:
    stores = [await open_store() for _ in range(3)]
    for n in range(8):
        infos = [
            AgentInfo(agent_id=f"agent-{n}", incarnation=holder().incarnation, listeners={"kafka": "a:1"})
            for _ in range(6)
        ]
        await asyncio.gather(*(stores[place % 3].register_agent(info) for place, info in enumerate(infos)))
    assert len({agent.node_id for agent in await stores[0].list_agents()}) == 8
    for store in stores:
        await store.close()
    assert await operator.fetchval(DEADLOCKS) == 0


async def test_a_deletion_takes_along_what_was_written_while_it_waited(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """An offset commit that found the topic is finished before the deletion, never after it."""
    (key,) = await topic(store)
    async with open_transaction(operator):
        await operator.execute(
            "SELECT * FROM sh_commit_offsets('readers', 1, NULL, $1, $2, '{5}', '{-1}', '{\"\"}')",
            [key.topic_id],
            [key.partition],
        )
        deleting = asyncio.create_task(store.delete_topic(key.topic_id))
        await until_waiting(operator)
    assert await deleting
    assert await store.fetch_offsets("readers") == {}
    assert await store.commit_offsets_simple("readers", [OffsetCommit(key=key, offset=6)]) == [key]
    assert await store.fetch_offsets("readers") == {}


async def test_r24_a_horizon_raised_in_some_partitions_only_makes_no_garbage(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """Raising it takes several transactions. A vacuum cut off between two has not fenced the last partition."""
    one, _ = await topic(store, "blobs", 2, leaderless=True)
    blob, orphan = uploaded(created_at_ms=1_000), uploaded(created_at_ms=1_000)
    await store.commit_leaderless(append_id(), blob, blob_slices([one]))
    await store.advance_log_start(one, 1)
    await operator.execute("UPDATE objects SET dereferenced_at = 2000")
    await store.raise_gc_horizon(5_000)
    await operator.execute("UPDATE partitions SET gc_horizon_ms = 0 WHERE partition_id = 1")
    assert await store.list_dereferenced(grace_ms=0, limit=10) == []
    assert await store.find_unreferenced({orphan.key: orphan.created_at_ms}) == set()
    assert await store.forget_objects([blob.key]) == set()
    assert await store.raise_gc_horizon(5_000) == 5_000
    assert [each.key for each in await store.list_dereferenced(grace_ms=0, limit=10)] == [blob.key]
    assert await store.find_unreferenced({orphan.key: orphan.created_at_ms}) == {orphan.key}
    assert await store.forget_objects([blob.key]) == {blob.key}
