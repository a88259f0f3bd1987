"""Connections killed, replies lost, the server restarted: every commit has exactly one outcome (R5)."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from builders import assert_dense, batch, leaderless_slice, leased_slice
from lossy_proxy import lossy_proxy
from scenes import (
    IDS,
    WAIT_S,
    Opener,
    append_id,
    blob_slices,
    flush_slices,
    holder,
    offsets,
    topic,
    until_waiting,
    uploaded,
)

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    AcquireVerdict,
    AgentInfo,
    HeldLease,
    ScanRange,
    SliceOutcome,
    SlotKey,
    Verdict,
)
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.testing.services import PostgresService

KILL_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'streamhouse'
"""


async def assert_each_once(store: PostgresMetadata, key: PartitionKey, outcomes: list[SliceOutcome]) -> None:
    """What was answered is what stands there: no commit lost, none twice."""
    (page,) = await store.scan_entries([ScanRange(key=key, from_offset=0)], limit=10_000)
    assert_dense(page.entries, log_start=0, watermark=page.partition.high_watermark)
    answered = sorted((outcome.base_offset, outcome.end_offset) for outcome in outcomes)
    assert answered == [(entry.base_offset, entry.end_offset) for entry in page.entries]


async def test_r5_sessions_killed_at_random_moments(store: PostgresMetadata, operator: asyncpg.Connection) -> None:
    (key, *_) = keys = await topic(store, partitions=20, leaderless=True)
    moments = SeededRandomness(5)

    async def kill() -> None:
        for _ in range(15):
            await asyncio.sleep(moments.uniform(0.02, 0.05))
            await operator.execute(KILL_SESSIONS)

    async def write() -> list[SliceOutcome]:
        outcomes = []
        while not killer.done():
            outcomes.append((await store.commit_leaderless(append_id(), uploaded(), blob_slices(keys)))[0])
        return outcomes

    killer = asyncio.create_task(kill())
    written = await asyncio.gather(*(write() for _ in range(3)))
    await killer
    outcomes = [outcome for some in written for outcome in some]
    assert {outcome.verdict for outcome in outcomes} == {Verdict.COMMITTED}
    await assert_each_once(store, key, outcomes)


@pytest.mark.parametrize("leaderless", [True, False])
async def test_r5_killed_while_waiting_for_a_row_lock(
    store: PostgresMetadata, operator: asyncpg.Connection, leaderless: bool
) -> None:
    keys = await topic(store, leaderless=leaderless)
    (key,) = keys
    identity, blob = append_id(), uploaded()

    async def commit() -> list[SliceOutcome]:
        if leaderless:
            return await store.commit_leaderless(identity, blob, [leaderless_slice(key, batch(3))])
        return await store.commit_leased(identity, [leased_slice(key, blob, batch(3), epoch=1, base=0)])

    if not leaderless:
        await store.acquire_leases(holder(), keys, ttl_ms=30_000)
    transaction = operator.transaction()
    await transaction.start()
    await operator.execute("SELECT 1 FROM partitions FOR UPDATE")
    under_way = asyncio.create_task(commit())
    (waiting,) = await until_waiting(operator)
    await operator.execute("SELECT pg_terminate_backend($1)", waiting)
    await until_waiting(operator, other_than=waiting)
    await transaction.rollback()
    (outcome,) = await under_way
    assert (outcome.verdict, outcome.base_offset, outcome.end_offset) == (Verdict.COMMITTED, 0, 2)
    (repeat,) = await commit()
    assert repeat.repeated
    assert (repeat.base_offset, repeat.end_offset) == (0, 2)
    assert await offsets(store, key) == [(0, 2)]


async def test_r5_a_lost_reply_is_resolved_by_the_identical_commit(dsn: str, open_store: Opener) -> None:
    async with lossy_proxy(dsn) as proxy:
        store = await open_store(proxy.dsn)
        (free,) = await topic(store, "blobs", leaderless=True)
        (led,) = await topic(store, "orders")
        await store.acquire_leases(holder(), [led], ttl_ms=30_000)
        for n in range(3):
            proxy.lose_reply_to = b"sh_commit"
            (outcome,) = await store.commit_leaderless(append_id(), uploaded(), blob_slices([free]))
            assert (outcome.verdict, outcome.base_offset, outcome.repeated) == (Verdict.COMMITTED, n, True)
            proxy.lose_reply_to = b"sh_commit"
            (outcome,) = await store.commit_leased(append_id(), flush_slices([led], uploaded(), base=n))
            assert (outcome.verdict, outcome.base_offset, outcome.repeated) == (Verdict.COMMITTED, n, True)
        assert proxy.lost == 6
        assert await offsets(store, free) == await offsets(store, led) == [(0, 0), (1, 1), (2, 2)]


async def test_calls_of_several_statements_survive_lost_replies(dsn: str, open_store: Opener) -> None:
    """Each reply of a transaction is lost once, the last being that of its COMMIT."""
    async with lossy_proxy(dsn) as proxy:
        store = await open_store(proxy.dsn)
        await topic(store, "warm-up")
        lost_before = -1
        replies = 0
        while proxy.lost > lost_before:
            # Lose the reply after the first 0, 1, 2, … of this call, until the call has no more to lose.
            lost_before = proxy.lost
            proxy.lose_reply_to, proxy.after_replies = b"", replies
            await topic(store, f"topic-{replies}", partitions=3)
            proxy.lose_reply_to = None
            replies += 1
        # BEGIN, four statements or more, COMMIT: each reply was lost once, and a last round lost none.
        assert proxy.lost == replies - 1 >= 6
        topics = {one.name: one for one in await store.list_topics()}
        assert set(topics) == {"warm-up", *(f"topic-{n}" for n in range(replies))}
        for n in range(replies):
            assert len(await store.get_partitions(topics[f"topic-{n}"].partition_keys())) == 3


async def test_r5_the_server_is_killed_in_the_middle_of_a_stream_of_commits(
    postgres_service: PostgresService, store: PostgresMetadata
) -> None:
    free = await topic(store, "blobs", partitions=4, leaderless=True)
    led = await topic(store, "orders", partitions=4)
    await store.acquire_leases(holder(), led, ttl_ms=3_600_000)
    stop = asyncio.Event()

    async def write_blobs() -> list[SliceOutcome]:
        outcomes = []
        while not stop.is_set():
            outcomes.append((await store.commit_leaderless(append_id(), uploaded(), blob_slices(free)))[0])
        return outcomes

    async def write_flushes() -> list[SliceOutcome]:
        outcomes: list[SliceOutcome] = []
        while not stop.is_set():
            slices = flush_slices(led, uploaded(), base=len(outcomes))
            outcomes.append((await store.commit_leased(append_id(), slices))[0])
        return outcomes

    writers = [
        asyncio.create_task(write_blobs()),
        asyncio.create_task(write_blobs()),
        asyncio.create_task(write_flushes()),
    ]
    for _ in range(2):
        await asyncio.sleep(0.1)
        await asyncio.to_thread(postgres_service.restart)
    await asyncio.sleep(0.1)
    stop.set()
    first, second, flushed = await asyncio.gather(*writers)
    assert {outcome.verdict for outcome in (*first, *second, *flushed)} == {Verdict.COMMITTED}
    await assert_each_once(store, free[0], [*first, *second])
    await assert_each_once(store, led[0], flushed)


async def test_r5_a_server_that_breaks_off_the_handshake_is_tried_again(
    store: PostgresMetadata, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncpg then says what it says of a server that is not PostgreSQL, which is final only for the first connect."""
    connect, refused = asyncpg.connect, 0

    async def break_off_twice(*args: object, **kwargs: object) -> object:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise ConnectionError('PostgreSQL server at "127.0.0.1:5432" rejected SSL upgrade')
        return await connect(*args, **kwargs)

    monkeypatch.setattr(asyncpg, "connect", break_off_twice)
    await operator.execute(KILL_SESSIONS)
    assert await store.list_topics() == []
    assert refused == 2


async def test_a_server_that_stays_away_is_reported_and_may_come_back(
    dsn: str, postgres_service: PostgresService, open_store: Opener
) -> None:
    store = await open_store(retry_deadline_ms=300)
    (key,) = await topic(store, leaderless=True)
    identity, blob, slices = append_id(), uploaded(), blob_slices([key])
    postgres_service.kill()
    try:
        with pytest.raises(MetadataUnavailable, match=r"127\.0\.0\.1"):
            await store.commit_leaderless(identity, blob, slices)
    finally:
        await asyncio.to_thread(postgres_service.restart)
    (outcome,) = await store.commit_leaderless(identity, blob, slices)
    assert (outcome.verdict, outcome.base_offset) == (Verdict.COMMITTED, 0)


async def test_a_cancelled_call_leaves_the_store_usable(store: PostgresMetadata, operator: asyncpg.Connection) -> None:
    (key,) = await topic(store, leaderless=True)
    transaction = operator.transaction()
    await transaction.start()
    await operator.execute("SELECT 1 FROM partitions FOR UPDATE")
    calls = [
        asyncio.create_task(store.commit_leaderless(append_id(), uploaded(), blob_slices([key]))) for _ in range(20)
    ]
    await until_waiting(operator, sessions=10)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await transaction.rollback()
    (outcome,) = await store.commit_leaderless(append_id(), uploaded(), blob_slices([key]))
    assert outcome.verdict is Verdict.COMMITTED


async def test_calls_on_a_closed_store_are_refused_at_once(open_store: Opener) -> None:
    store = await open_store()
    await store.close()
    await store.close()
    with pytest.raises(MetadataUnavailable, match="not open"):
        await store.list_topics()
    await store.open()
    assert await store.list_topics() == []


@pytest.mark.parametrize("first_call", [True, False])
async def test_r20_a_process_suspended_in_a_transaction_holds_nobody_up(
    dsn: str, open_store: Opener, first_call: bool
) -> None:
    """The agent that takes over needs the rows that it has locked. Its first call has statements to prepare."""
    async with lossy_proxy(dsn) as proxy:
        paused, other = await open_store(proxy.dsn), await open_store()
        keys = await topic(other, partitions=3)
        leader, heir = holder("agent-1"), holder("agent-2")
        await other.acquire_leases(leader, keys, ttl_ms=500)
        if not first_call:
            await paused.advance_log_start(keys[1], 0)
        proxy.suspend_after = b"DELETE FROM entries"
        call = asyncio.create_task(paused.advance_log_start(keys[1], 0))
        await asyncio.wait_for(proxy.suspended.wait(), WAIT_S)
        await asyncio.sleep(0.6)  # the leases have run out
        outcomes = await other.acquire_leases(heir, keys, ttl_ms=30_000)
        assert {one.verdict for one in outcomes} == {AcquireVerdict.ACQUIRED}
        assert not call.done()
        proxy.resumed.set()
        assert (await call).log_start_offset == 0


async def test_r20_nothing_is_prepared_while_a_transaction_holds_locks(
    postgres_database: str, open_store: Opener
) -> None:
    """The server takes a client that is suspended between preparing a statement and running it for busy, and leaves it
    its locks for as long as it sleeps."""
    async with lossy_proxy(postgres_database) as proxy:
        store = await open_store(proxy.dsn, max_connections=2)  # which makes the schema
        await lease_transfers(store)
        assert proxy.syncs > 0
        assert proxy.prepared_in_transactions == []


async def lease_transfers(store: PostgresMetadata) -> None:
    """Every call that takes a transfer a step further, those on a topic's rows among them."""
    keys = await topic(store, partitions=2)
    giver, taker = holder("agent-1"), holder("agent-2")
    for agent in (giver, taker):
        await store.register_agent(
            AgentInfo(agent_id=agent.agent_id, incarnation=agent.incarnation, listeners={"kafka": "host:1"})
        )
    for key in (*keys, SlotKey(3)):
        await store.acquire_leases(giver, [key], ttl_ms=30_000)
        transfer_id = IDS.uuid()
        held = HeldLease(key=key, epoch=1)
        await store.initiate_transfer(transfer_id, held, holder=giver, to_agent="agent-2", timeout_ms=30_000)
        await store.accept_transfer(transfer_id, target=taker)
        lease = await store.complete_transfer(
            transfer_id, holder=giver, next_offset=0, ttl_ms=30_000, liveness_timeout_ms=30_000
        )
        assert (lease.agent_id, lease.epoch) == ("agent-2", 2)
    await store.expire_transfers(keep_ms=0)
    await store.grow_topic(keys[0].topic_id, 3)
    assert await store.delete_topic(keys[0].topic_id)
