"""Many producers on PostgreSQL: sweeps and take-overs that cost little and keep nothing else waiting (R22)."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from scenes import WAIT_S, Opener, holder, topic, until_waiting

from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.idempotence import Idempotence
from streamhouse.log.leased.producers import ProducerLoader
from streamhouse.metadata.contract import HeldLease, ProducerState
from streamhouse.metadata.postgres import producers as module
from streamhouse.metadata.postgres.store import PostgresMetadata

DAY_MS = 86_400_000


async def put_windows(
    operator: asyncpg.Connection, key: PartitionKey, count: int, *, age_ms: int = 0, first_id: int = 0
) -> None:
    await operator.execute(
        """INSERT INTO producer_windows (topic_id, partition_id, producer_id, producer_epoch, batches, updated_at)
           SELECT $1, $2, n, 0, ARRAY[0, 1, n], sh_now_ms() - $4 FROM generate_series($3::bigint, $5::bigint) AS n""",
        key.topic_id,
        key.partition,
        first_id,
        age_ms,
        first_id + count - 1,
    )


async def test_r22_a_page_is_turned_into_objects_in_small_steps(
    store: PostgresMetadata, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,) = await topic(store)
    await put_windows(operator, key, 1_000)
    since_turn = most = 0
    convert = module._to_producer

    def counting(row: object) -> object:
        nonlocal since_turn, most
        since_turn += 1
        most = max(most, since_turn)
        return convert(row)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_to_producer", counting)
    loading = asyncio.create_task(store.load_producers([key]))
    while not loading.done():
        since_turn = 0
        await asyncio.sleep(0)
    assert len(loading.result()[key].states) == 1_000
    assert 0 < most <= 100


async def test_r22_renewals_find_a_connection_while_all_openings_wait_for_their_producers(
    open_store: Opener, operator: asyncpg.Connection
) -> None:
    store = await open_store(max_connections=2)
    keys = await topic(store, partitions=8)
    leader = holder()
    leases = [outcome.lease for outcome in await store.acquire_leases(leader, keys, ttl_ms=30_000)]
    held = [HeldLease(key=lease.key, epoch=lease.epoch) for lease in leases if lease is not None]
    loader, openings = ProducerLoader(store), []
    async with operator.transaction():
        await operator.execute("LOCK TABLE producer_windows IN ACCESS EXCLUSIVE MODE")
        for key in keys:
            openings.append(asyncio.create_task(loader.load(key, Idempotence())))
            await until_waiting(operator)
        renewed = await store.renew_leases(leader, held, ttl_ms=30_000)
        assert len(renewed) == len(keys)
        assert all(outcome.renewed for outcome in renewed)
        assert not any(opening.done() for opening in openings)
    await asyncio.gather(*openings)


async def test_r22_a_window_that_a_commit_is_writing_is_not_expired(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    (key,) = await topic(store)
    await put_windows(operator, key, 2, age_ms=2 * DAY_MS)
    write = "UPDATE producer_windows SET updated_at = sh_now_ms(), batches = ARRAY[1, 1, 9] WHERE producer_id = $1"
    async with operator.transaction():
        await operator.execute(write, 1)
        assert await store.expire_producers(idle_ms=DAY_MS, limit=10) == 1, "the other one; nothing waits"
    assert await store.expire_producers(idle_ms=DAY_MS, limit=10) == 0
    page = (await store.load_producers([key], idle_ms=DAY_MS))[key]
    assert [state.producer_id for state in page.states] == [1]


async def test_r22_sweeps_and_pages_go_by_an_index(store: PostgresMetadata, operator: asyncpg.Connection) -> None:
    """Looked at: how many rows each reads. A sweep with nothing to do, and a page, do not walk over the rest."""
    (key,) = await topic(store)
    await put_windows(operator, key, 3_000, age_ms=2 * DAY_MS)
    await put_windows(operator, key, 1_000, age_ms=120_000, first_id=10_000)
    await put_windows(operator, key, 1_000, first_id=20_000)
    await operator.execute("ANALYZE producer_windows")
    before = await _rows_read(operator)
    assert await store.expire_producers(idle_ms=3 * DAY_MS, limit=1_000) == 0
    assert await store.expire_commits(keep_ms=DAY_MS, limit=1_000) == 0
    after: dict[PartitionKey, ProducerState] = {}
    for page in range(20):
        found = (await store.load_producers([key], limit=100, after=after, idle_ms=DAY_MS))[key]
        assert (len(found.states), found.more, found.forgotten_up_to) == (100, page < 19, -1 if page else 2_999)
        after[key] = found.states[-1]
    await store.close()  # its sessions tell the server what they have read
    async with asyncio.timeout(WAIT_S):
        while (read := await _rows_read(operator) - before) < 2_000:  # noqa: ASYNC110 -- the server tells by and by
            await asyncio.sleep(0.05)
    assert read < 3_000 + 2_200, "the first page looks at the idle ones too"


async def _rows_read(operator: asyncpg.Connection) -> int:
    await operator.execute("SELECT pg_stat_clear_snapshot()")
    return int(
        await operator.fetchval(
            """SELECT coalesce(sum(idx_tup_read), 0) + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables
                   WHERE relname IN ('producer_windows', 'commits'))
               FROM pg_stat_user_indexes WHERE relname IN ('producer_windows', 'commits')"""
        )
    )


async def test_r22_a_busy_producer_s_updates_stay_off_the_indexes(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """Commits write windows all the time: within a minute, none adds a row to an index (HOT)."""
    (key,) = await topic(store)
    await put_windows(operator, key, 10)
    minute = await operator.fetchval("SELECT min(updated_minute) * 60000 FROM producer_windows")
    for second in range(20):
        await operator.execute("UPDATE producer_windows SET updated_at = $1", minute + second * 1000)
    stats = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'producer_windows'"
    async with asyncio.timeout(WAIT_S):
        while (row := await operator.fetchrow(stats))["n_tup_upd"] < 200:  # noqa: ASYNC110 -- the server tells by and by
            await asyncio.sleep(0.05)
    assert row["n_tup_hot_upd"] > 180, "a full page may send one elsewhere"
