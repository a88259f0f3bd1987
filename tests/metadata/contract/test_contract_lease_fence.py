"""What a lease is for: its history (R3), its fence (R1), and one winner among contenders (S3.11)."""

from __future__ import annotations

import asyncio

from builders import TTL_MS, batch, leased_slice
from harness import Backend

from streamhouse.metadata.contract import AcquireVerdict, LeaseKey, SlotKey, Verdict

# History.


async def test_r3_each_leadership_is_kept_with_its_wal_and_where_it_began(backend: Backend) -> None:
    first, second = backend.holder("agent-1"), backend.holder("agent-2")
    led = await backend.led(holder=first)
    await led.append(batch(10))
    await backend.advance(TTL_MS)
    await backend.lead(led.key, second)
    await backend.advance(TTL_MS)
    await backend.lead(led.key, first)
    history = await backend.store.epoch_history(led.key)
    assert [(start.epoch, start.start_offset, start.agent_id, start.wal_id) for start in history] == [
        (1, 0, "agent-1", first.wal_id),
        (2, 10, "agent-2", second.wal_id),
        (3, 10, "agent-1", first.wal_id),
    ]
    assert [start.started_at_ms for start in history] == [
        backend.now_ms - 2 * TTL_MS,
        backend.now_ms - TTL_MS,
        backend.now_ms,
    ]


async def test_r3_history_is_the_partition_s_own(backend: Backend) -> None:
    topic = await backend.topic(partitions=2)
    await backend.lead(topic.partition_keys()[1])
    assert await backend.store.epoch_history(topic.partition_keys()[0]) == []
    assert len(await backend.store.epoch_history(topic.partition_keys()[1])) == 1


# The fence.


async def test_r1_a_take_over_fences_the_former_leader_s_commit(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(5))
    await backend.advance(TTL_MS)
    lease = await backend.lead(led.key, backend.holder("agent-2"))
    assert lease.high_watermark == 5
    (stale,) = await backend.store.commit_leased(
        backend.append_id(), [leased_slice(led.key, backend.object(), batch(1), epoch=led.epoch, base=5)]
    )
    assert (stale.verdict, stale.leader_epoch, stale.high_watermark) == (Verdict.FENCED, 2, 5)
    (fresh,) = await backend.store.commit_leased(
        backend.append_id(), [leased_slice(led.key, backend.object(), batch(1), epoch=2, base=5)]
    )
    assert fresh.verdict is Verdict.COMMITTED


async def test_an_expired_lease_nobody_took_still_commits(backend: Backend) -> None:
    led = await backend.led()
    await backend.advance(10 * TTL_MS)
    await led.append(batch(2))
    assert await backend.watermark(led.key) == 2


async def test_s3_11_of_eight_contenders_exactly_one_wins_fifty_times(backend: Backend) -> None:
    stores = [backend.store, *[await backend.open_another() for _ in range(3)]]
    topic = await backend.topic("orders", partitions=50)
    holders = [backend.holder(f"agent-{turn}") for turn in range(8)]
    for key in topic.partition_keys():
        answers = await asyncio.gather(
            *(stores[turn % 4].acquire_leases(holder, [key], ttl_ms=TTL_MS) for turn, holder in enumerate(holders))
        )
        outcomes = [outcome for (outcome,) in answers]
        won = [outcome for outcome in outcomes if outcome.verdict is AcquireVerdict.ACQUIRED]
        assert len(won) == 1
        assert won[0].lease is not None
        held = [outcome.lease for outcome in outcomes if outcome.verdict is AcquireVerdict.HELD]
        assert len(held) == 7
        assert {lease.agent_id for lease in held if lease} == {won[0].lease.agent_id}
        assert won[0].lease.epoch == 1
        assert (await backend.state(key)).leader_epoch == 1


async def test_s3_11_one_contender_takes_an_expired_slot(backend: Backend) -> None:
    other = await backend.open_another()
    slot = SlotKey(11)
    await backend.lead(slot)
    for epoch in range(2, 12):
        await backend.advance(TTL_MS)
        holders = [backend.holder(f"contender-{turn}") for turn in range(8)]
        answers = await asyncio.gather(
            *(
                (backend.store, other)[turn % 2].acquire_leases(holder, [slot], ttl_ms=TTL_MS)
                for turn, holder in enumerate(holders)
            )
        )
        won = [outcome.lease for (outcome,) in answers if outcome.verdict is AcquireVerdict.ACQUIRED]
        assert [lease.epoch for lease in won if lease] == [epoch]


async def test_r10_contenders_for_overlapping_keys_in_opposite_orders_all_end(backend: Backend) -> None:
    other = await backend.open_another()
    topic = await backend.topic("orders", partitions=20)
    keys: list[LeaseKey] = [*topic.partition_keys(), *(SlotKey(slot) for slot in range(5))]
    for turn in range(4):
        await backend.advance(TTL_MS)
        one, two = backend.holder("agent-1"), backend.holder("agent-2")
        first, second = await asyncio.gather(
            backend.store.acquire_leases(one, keys, ttl_ms=TTL_MS),
            other.acquire_leases(two, list(reversed(keys)), ttl_ms=TTL_MS),
        )
        winners = {outcome.key: 0 for outcome in first}
        for outcome in (*first, *second):
            winners[outcome.key] += outcome.verdict is AcquireVerdict.ACQUIRED
        assert set(winners.values()) == {1}
        assert {lease.epoch for lease in await backend.store.list_leases()} == {turn + 1}
