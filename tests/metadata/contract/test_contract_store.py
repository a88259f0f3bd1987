"""The store as a whole: identity, clock, opening and closing, and the durability binding (R2)."""

from __future__ import annotations

import asyncio

import pytest
from builders import START_MS, TTL_MS, assert_dense, batch, leaderless_slice
from harness import Backend, Place

from streamhouse.core.errors import AgentSuperseded, DurabilityMismatch, InvalidRequest
from streamhouse.metadata.contract import (
    NEVER_MS,
    AcquireVerdict,
    Durability,
    HeldLease,
    LeaseKey,
    OffsetCommit,
    SlotKey,
    Verdict,
)


async def test_a_store_has_one_identity_for_life(backend: Backend) -> None:
    info = await backend.store.cluster_info()
    assert (info.durability, info.wal_id, info.gc_horizon_ms) == (None, None, 0)
    assert info.schema_version >= 1
    assert info.backend.startswith({"sqlite": "SQLite ", "postgres": "PostgreSQL "}[backend.name])
    other = await backend.open_another()
    assert await other.cluster_info() == info
    assert await (await backend.reopen()).cluster_info() == info


async def test_everything_is_there_after_reopening(backend: Backend) -> None:
    led = await backend.led("orders")
    await led.append(batch(3, producer=4))
    await backend.register(led.holder)
    await backend.store.commit_offsets_simple("group", [OffsetCommit(key=led.key, offset=2)])
    before = (
        await backend.store.list_topics(),
        await backend.store.list_leases(),
        await backend.store.list_agents(),
        await backend.store.list_groups(),
        await backend.store.fetch_offsets("group"),
        await backend.store.load_producers([led.key]),
        await backend.store.epoch_history(led.key),
        await backend.entries(led.key),
    )
    store = await backend.reopen()
    after = (
        await store.list_topics(),
        await store.list_leases(),
        await store.list_agents(),
        await store.list_groups(),
        await store.fetch_offsets("group"),
        await store.load_producers([led.key]),
        await store.epoch_history(led.key),
        await backend.entries(led.key),
    )
    assert after == before


async def test_many_processes_may_open_at_once(place: Place) -> None:
    stores = [place.new_store(seed) for seed in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        assert len({(await store.cluster_info()).cluster_id for store in stores}) == 1
    finally:
        for store in stores:
            await store.close()


async def test_closing_twice_is_fine(backend: Backend) -> None:
    await backend.store.close()
    await backend.store.close()


async def test_a_store_is_a_context(place: Place) -> None:
    async with place.new_store(seed=3) as store:
        assert await store.list_topics() == []


async def test_s1_8_the_store_s_clock_is_shared_and_moves_on(backend: Backend) -> None:
    other = await backend.open_another()
    assert await backend.store.now_ms() == START_MS
    await backend.advance(12_345)
    assert await backend.store.now_ms() == START_MS + 12_345
    assert await other.now_ms() == START_MS + 12_345


async def test_one_store_serves_many_tasks(backend: Backend) -> None:
    topic = await backend.topic(partitions=4, leaderless=True)
    led = await backend.led("leased")
    keys = topic.partition_keys()

    async def produce(task: int) -> None:
        for turn in range(5):
            (outcome,) = await backend.store.commit_leaderless(
                backend.append_id(),
                backend.object(),
                [leaderless_slice(keys[task % 4], batch(1, producer=task, sequence=turn))],
            )
            assert outcome.batches[0].verdict == "appended"

    async def look(task: int) -> None:
        for _ in range(5):
            await backend.store.find_entry(keys[task % 4], 0)
            await backend.store.get_partitions(keys)
            await backend.store.commit_offsets_simple(f"group-{task}", [OffsetCommit(key=keys[0], offset=task)])

    async def lead() -> None:
        for _ in range(10):
            await led.append(batch(2))
            await backend.store.renew_leases(led.holder, [HeldLease(key=led.key, epoch=led.epoch)], ttl_ms=TTL_MS)

    await asyncio.gather(*(produce(task) for task in range(16)), *(look(task) for task in range(16)), lead())
    for key in keys:
        assert_dense(await backend.entries(key), log_start=0, watermark=20)
    assert_dense(await backend.entries(led.key), log_start=0, watermark=20)
    assert len(await backend.store.list_groups()) == 16


# Durability.


async def test_r2_the_first_binding_counts(backend: Backend) -> None:
    wal = backend.uuid()
    bound = await backend.store.bind_durability(Durability.WAL, wal)
    assert (bound.durability, bound.wal_id) == (Durability.WAL, wal)
    other = await backend.open_another()
    assert await other.bind_durability(Durability.WAL, wal) == bound
    for durability, wal_id in ((Durability.WAL, backend.uuid()), (Durability.OBJECT, None)):
        with pytest.raises(DurabilityMismatch):
            await other.bind_durability(durability, wal_id)
    assert await (await backend.reopen()).cluster_info() == bound


async def test_r2_a_store_bound_to_objects_takes_no_wal(backend: Backend) -> None:
    bound = await backend.store.bind_durability(Durability.OBJECT, None)
    assert (bound.durability, bound.wal_id) == (Durability.OBJECT, None)
    assert await backend.store.bind_durability(Durability.OBJECT, None) == bound
    with pytest.raises(DurabilityMismatch):
        await backend.store.bind_durability(Durability.WAL, backend.uuid())


async def test_r2_a_wal_has_an_id_and_nothing_else_has(backend: Backend) -> None:
    with pytest.raises(InvalidRequest):
        await backend.store.bind_durability(Durability.WAL, None)
    with pytest.raises(InvalidRequest):
        await backend.store.bind_durability(Durability.OBJECT, backend.uuid())
    assert (await backend.store.cluster_info()).durability is None


async def test_r2_of_concurrent_bindings_one_counts(backend: Backend) -> None:
    other = await backend.open_another()
    wals = [backend.uuid() for _ in range(6)]
    answers = await asyncio.gather(
        *((backend.store, other)[turn % 2].bind_durability(Durability.WAL, wal) for turn, wal in enumerate(wals)),
        return_exceptions=True,
    )
    assert len([one for one in answers if isinstance(one, DurabilityMismatch)]) == 5
    assert (await backend.store.cluster_info()).wal_id in wals


async def test_r2_only_the_bound_wal_acquires(backend: Backend) -> None:
    key = await backend.partition()
    wal = backend.uuid()
    await backend.store.bind_durability(Durability.WAL, wal)
    for ttl_ms in (None, TTL_MS):
        with pytest.raises(DurabilityMismatch):
            await backend.store.acquire_leases(backend.holder(), [key], ttl_ms=ttl_ms)
    holder = backend.holder(wal_id=wal)
    (outcome,) = await backend.store.acquire_leases(holder, [key], ttl_ms=None)
    assert outcome.verdict is AcquireVerdict.ACQUIRED
    assert outcome.lease is not None
    assert (outcome.lease.epoch, outcome.lease.expires_at_ms, outcome.lease.expired) == (1, NEVER_MS, False)


async def test_r2_a_lease_without_end_needs_the_binding(backend: Backend) -> None:
    key = await backend.partition()
    with pytest.raises(DurabilityMismatch):
        await backend.store.acquire_leases(backend.holder(), [key], ttl_ms=None)
    await backend.store.bind_durability(Durability.OBJECT, None)
    with pytest.raises(DurabilityMismatch):
        await backend.store.acquire_leases(backend.holder(), [key], ttl_ms=None)
    assert (await backend.lead(key)).epoch == 1


async def test_r2_the_directory_s_lock_is_the_lease(backend: Backend) -> None:
    """No expiry, one epoch a start, whatever agent id the next start has."""
    topic = await backend.topic(partitions=2)
    keys: list[LeaseKey] = [*topic.partition_keys(), SlotKey(0)]
    wal = backend.uuid()
    await backend.store.bind_durability(Durability.WAL, wal)
    starts = [backend.holder("agent-1", wal_id=wal), backend.holder("agent-1", wal_id=wal)]
    starts.append(backend.holder("renamed", wal_id=wal))
    for epoch, holder in enumerate(starts, start=1):
        await backend.advance(365 * 86_400_000)
        for verdict in (AcquireVerdict.ACQUIRED, AcquireVerdict.EXTENDED):
            outcomes = await backend.store.acquire_leases(holder, keys, ttl_ms=None)
            assert {outcome.verdict for outcome in outcomes} == {verdict}
            assert {outcome.lease.epoch for outcome in outcomes if outcome.lease} == {epoch}
        renewed = await backend.store.renew_leases(
            holder, [HeldLease(key=key, epoch=epoch) for key in keys], ttl_ms=None
        )
        assert all(outcome.renewed for outcome in renewed)
    history = await backend.store.epoch_history(topic.partition_keys()[0])
    assert [(start.epoch, start.wal_id) for start in history] == [(1, wal), (2, wal), (3, wal)]


async def test_r2_a_lease_without_end_is_not_shortened_by_a_renewal(backend: Backend) -> None:
    key = await backend.partition()
    wal = backend.uuid()
    await backend.store.bind_durability(Durability.WAL, wal)
    holder = backend.holder(wal_id=wal)
    await backend.store.acquire_leases(holder, [key], ttl_ms=None)
    (outcome,) = await backend.store.renew_leases(holder, [HeldLease(key=key, epoch=1)], ttl_ms=TTL_MS)
    assert outcome.lease is not None
    assert outcome.lease.expires_at_ms == NEVER_MS


async def test_r2_a_superseded_incarnation_is_refused_in_wal_mode_too(backend: Backend) -> None:
    key = await backend.partition()
    wal = backend.uuid()
    await backend.store.bind_durability(Durability.WAL, wal)
    old, new = backend.holder(wal_id=wal), backend.holder(wal_id=wal)
    await backend.register(old)
    await backend.register(new)
    with pytest.raises(AgentSuperseded):
        await backend.store.acquire_leases(old, [key], ttl_ms=None)


async def test_r2_an_offline_drain_opens_the_store_to_a_fleet(backend: Backend) -> None:
    key = await backend.partition()
    wal = backend.uuid()
    await backend.store.bind_durability(Durability.WAL, wal)
    await backend.store.acquire_leases(backend.holder("single", wal_id=wal), [key, SlotKey(1)], ttl_ms=None)
    for wrong in (None, backend.uuid()):
        with pytest.raises(DurabilityMismatch):
            await backend.store.unbind_durability(wrong)
    for _ in range(2):
        info = await backend.store.unbind_durability(wal)
        assert (info.durability, info.wal_id) == (None, None)
    assert all(lease.expired for lease in await backend.store.list_leases())
    await backend.store.bind_durability(Durability.OBJECT, None)
    outcomes = await backend.store.acquire_leases(backend.holder("fleet-1"), [key, SlotKey(1)], ttl_ms=TTL_MS)
    assert [outcome.lease.epoch for outcome in outcomes if outcome.lease] == [2, 2]


async def test_r2_unbinding_leaves_leases_that_end_by_themselves(backend: Backend) -> None:
    led = await backend.led()
    await backend.store.bind_durability(Durability.OBJECT, None)
    with pytest.raises(DurabilityMismatch):
        await backend.store.unbind_durability(backend.uuid())
    await backend.store.unbind_durability(None)
    (lease,) = await backend.store.list_leases()
    assert (lease.key, lease.expired) == (led.key, False)
    await led.append(batch(1))


async def test_r2_an_unbound_store_stays_unbound(backend: Backend) -> None:
    for wal_id in (None, backend.uuid()):
        info = await backend.store.unbind_durability(wal_id)
        assert info.durability is None


async def test_a_verdict_is_a_word(backend: Backend) -> None:
    """What a backend returns compares equal to the enum, not only to the string it stores."""
    led = await backend.led()
    outcome = await led.append(batch(1))
    assert type(outcome.verdict) is Verdict
    assert type((await backend.entries(led.key))[0].kind).__name__ == "EntryKind"
