"""Leases on partitions and slots (S1.11-S1.13, S3.11, S3.12), their fence (R1) and their history (R3)."""

from __future__ import annotations

import asyncio

import pytest
from builders import TTL_MS, batch, leased_slice
from harness import Backend

from streamhouse.core.errors import AgentSuperseded, LeaseHeldByOther, PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import COORDINATOR_SLOTS
from streamhouse.metadata.contract import AcquireVerdict, HeldLease, LeaseKey, SlotKey, Verdict


async def test_s3_12_a_free_lease_is_taken_with_epoch_1(backend: Backend) -> None:
    key = await backend.partition("orders")
    holder = backend.holder("agent-1")
    (outcome,) = await backend.store.acquire_leases(holder, [key], ttl_ms=TTL_MS)
    assert outcome.verdict is AcquireVerdict.ACQUIRED
    lease = outcome.lease
    assert lease is not None
    assert (lease.key, lease.topic, lease.agent_id, lease.incarnation) == (key, "orders", "agent-1", holder.incarnation)
    assert (lease.epoch, lease.high_watermark, lease.expired) == (1, 0, False)
    assert (lease.acquired_at_ms, lease.expires_at_ms) == (backend.now_ms, backend.now_ms + TTL_MS)
    assert (await backend.state(key)).leader_epoch == 1


async def test_s3_12_another_s_lease_holds_me_off(backend: Backend) -> None:
    led = await backend.led()
    (outcome,) = await backend.store.acquire_leases(backend.holder("agent-2"), [led.key], ttl_ms=TTL_MS)
    assert outcome.verdict is AcquireVerdict.HELD
    assert outcome.lease is not None
    assert (outcome.lease.agent_id, outcome.lease.epoch) == ("agent-1", 1)
    assert (await backend.state(led.key)).leader_epoch == 1


async def test_s3_12_mine_is_extended_at_the_same_epoch(backend: Backend) -> None:
    led = await backend.led()
    await backend.advance(10_000)
    (outcome,) = await backend.store.acquire_leases(led.holder, [led.key], ttl_ms=TTL_MS)
    assert outcome.verdict is AcquireVerdict.EXTENDED
    assert outcome.lease is not None
    assert outcome.lease.epoch == led.epoch
    assert outcome.lease.expires_at_ms == backend.now_ms + TTL_MS
    assert outcome.lease.acquired_at_ms == backend.now_ms - 10_000
    assert len(await backend.store.epoch_history(led.key)) == 1


async def test_s1_12_an_expired_lease_is_taken_over_with_the_next_epoch(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(7))
    await backend.advance(TTL_MS)
    (outcome,) = await backend.store.acquire_leases(backend.holder("agent-2"), [led.key], ttl_ms=TTL_MS)
    assert outcome.verdict is AcquireVerdict.ACQUIRED
    assert outcome.lease is not None
    assert (outcome.lease.agent_id, outcome.lease.epoch, outcome.lease.high_watermark) == ("agent-2", 2, 7)


async def test_s1_12_an_unexpired_lease_is_held_to_its_last_millisecond(backend: Backend) -> None:
    led = await backend.led()
    await backend.advance(TTL_MS - 1)
    other = backend.holder("agent-2")
    (outcome,) = await backend.store.acquire_leases(other, [led.key], ttl_ms=TTL_MS)
    assert outcome.verdict is AcquireVerdict.HELD


async def test_my_own_expired_lease_is_a_new_leadership(backend: Backend) -> None:
    """In between anybody may have led; "still mine" would be a guess."""
    led = await backend.led()
    await backend.advance(TTL_MS)
    lease = await backend.lead(led.key, led.holder)
    assert lease.epoch == 2
    assert [start.epoch for start in await backend.store.epoch_history(led.key)] == [1, 2]


async def test_s1_13_a_new_incarnation_of_the_same_agent_takes_over_at_once(backend: Backend) -> None:
    led = await backend.led(holder=backend.holder("agent-1"))
    (outcome,) = await backend.store.acquire_leases(backend.holder("agent-1"), [led.key], ttl_ms=TTL_MS)
    assert outcome.verdict is AcquireVerdict.ACQUIRED
    assert outcome.lease is not None
    assert outcome.lease.epoch == 2
    (renewed,) = await backend.store.renew_leases(led.holder, [HeldLease(key=led.key, epoch=1)], ttl_ms=TTL_MS)
    assert not renewed.renewed


async def test_a_superseded_incarnation_acquires_nothing(backend: Backend) -> None:
    key = await backend.partition()
    old, new = backend.holder("agent-1"), backend.holder("agent-1")
    await backend.register(old)
    await backend.lead(key, old)
    await backend.register(new)
    with pytest.raises(AgentSuperseded):
        await backend.store.acquire_leases(old, [key], ttl_ms=TTL_MS)
    assert (await backend.lead(key, new)).epoch == 2


async def test_an_incarnation_that_never_registered_is_not_superseded(backend: Backend) -> None:
    key = await backend.partition()
    registered = backend.holder("agent-1")
    await backend.register(registered)
    assert (await backend.lead(key, backend.holder("agent-1"))).epoch == 1
    assert (await backend.lead(key, registered)).epoch == 2


async def test_r10_keys_of_one_call_are_answered_one_by_one_in_order(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=3)
    blobs = await backend.topic("blobs", leaderless=True)
    mine, other = backend.holder("agent-1"), backend.holder("agent-2")
    await backend.lead(topic.partition_keys()[1], other)
    await backend.lead(topic.partition_keys()[2], mine)
    asked: list[LeaseKey] = [
        SlotKey(7),
        topic.partition_keys()[2],
        PartitionKey(topic.topic_id, 9),
        topic.partition_keys()[1],
        blobs.partition_keys()[0],
        topic.partition_keys()[0],
        SlotKey(COORDINATOR_SLOTS),
        SlotKey(-1),
    ]
    outcomes = await backend.store.acquire_leases(mine, asked, ttl_ms=TTL_MS)
    assert [outcome.key for outcome in outcomes] == asked
    assert [outcome.verdict for outcome in outcomes] == [
        AcquireVerdict.ACQUIRED,
        AcquireVerdict.EXTENDED,
        AcquireVerdict.GONE,
        AcquireVerdict.HELD,
        AcquireVerdict.GONE,
        AcquireVerdict.ACQUIRED,
        AcquireVerdict.GONE,
        AcquireVerdict.GONE,
    ]
    assert [outcome.lease is None for outcome in outcomes] == [
        outcome.verdict is AcquireVerdict.GONE for outcome in outcomes
    ]


async def test_asking_for_no_keys_is_fine(backend: Backend) -> None:
    holder = backend.holder()
    assert await backend.store.acquire_leases(holder, [], ttl_ms=TTL_MS) == []
    assert await backend.store.renew_leases(holder, [], ttl_ms=TTL_MS) == []
    assert await backend.store.release_leases(holder, []) == []


async def test_a_slot_is_leased_like_a_partition(backend: Backend) -> None:
    slot = SlotKey(0)
    first, second = backend.holder("agent-1"), backend.holder("agent-2")
    lease = await backend.lead(slot, first)
    assert (lease.key, lease.topic, lease.epoch, lease.high_watermark) == (slot, None, 1, -1)
    with pytest.raises(LeaseHeldByOther):
        await backend.lead(slot, second)
    await backend.advance(TTL_MS)
    assert (await backend.lead(slot, second)).epoch == 2


async def test_s1_11_one_key_raises_what_stands_in_the_way(backend: Backend) -> None:
    led = await backend.led()
    with pytest.raises(LeaseHeldByOther) as caught:
        await backend.store.acquire_partition_lease(led.key, backend.holder("agent-2"), ttl_ms=TTL_MS)
    assert caught.value.agent_id == "agent-1"
    with pytest.raises(PartitionNotFound):
        await backend.store.acquire_partition_lease(
            PartitionKey(led.key.topic_id, 5), backend.holder("agent-2"), ttl_ms=TTL_MS
        )
    with pytest.raises(PartitionNotFound):
        await backend.lead(await backend.partition("blobs", leaderless=True))


# Renewal.


async def test_s1_13_a_renewal_extends_and_never_bumps_the_epoch(backend: Backend) -> None:
    led = await backend.led()
    for _ in range(20):
        await backend.advance(TTL_MS - 1)
        (outcome,) = await backend.store.renew_leases(
            led.holder, [HeldLease(key=led.key, epoch=led.epoch)], ttl_ms=TTL_MS
        )
        assert outcome.renewed
        assert outcome.lease is not None
        assert (outcome.lease.epoch, outcome.lease.expires_at_ms) == (led.epoch, backend.now_ms + TTL_MS)
    assert (await backend.state(led.key)).leader_epoch == led.epoch
    assert len(await backend.store.epoch_history(led.key)) == 1


async def test_s1_13_a_renewal_needs_me_my_incarnation_my_epoch_and_time_left(backend: Backend) -> None:
    led = await backend.led()
    held = HeldLease(key=led.key, epoch=led.epoch)
    strangers = [
        (backend.holder("agent-2"), held),
        (backend.holder("agent-1"), held),
        (led.holder, HeldLease(key=led.key, epoch=led.epoch + 1)),
        (led.holder, HeldLease(key=led.key, epoch=led.epoch - 1)),
    ]
    for holder, claim in strangers:
        (outcome,) = await backend.store.renew_leases(holder, [claim], ttl_ms=TTL_MS * 2)
        assert not outcome.renewed
        assert outcome.lease is not None
        assert (outcome.lease.agent_id, outcome.lease.epoch) == ("agent-1", led.epoch)
        assert outcome.lease.expires_at_ms == backend.now_ms + TTL_MS
    await backend.advance(TTL_MS)
    (outcome,) = await backend.store.renew_leases(led.holder, [held], ttl_ms=TTL_MS)
    assert not outcome.renewed
    assert outcome.lease is not None
    assert outcome.lease.expired


async def test_an_expiry_never_moves_back(backend: Backend) -> None:
    led = await backend.led()
    (outcome,) = await backend.store.renew_leases(led.holder, [HeldLease(key=led.key, epoch=led.epoch)], ttl_ms=1000)
    assert outcome.renewed
    assert outcome.lease is not None
    assert outcome.lease.expires_at_ms == backend.now_ms + TTL_MS


async def test_r10_one_lost_lease_does_not_fail_the_other_renewals(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=3)
    mine, other = backend.holder("agent-1"), backend.holder("agent-2")
    await backend.store.acquire_leases(mine, [*topic.partition_keys(), SlotKey(3)], ttl_ms=TTL_MS)
    await backend.store.release_leases(mine, [HeldLease(key=topic.partition_keys()[1], epoch=1)])
    await backend.lead(topic.partition_keys()[1], other)
    keys: list[LeaseKey] = [SlotKey(3), *reversed(topic.partition_keys())]
    held = [HeldLease(key=key, epoch=1) for key in keys]
    missing = HeldLease(key=PartitionKey(topic.topic_id, 9), epoch=1)
    outcomes = await backend.store.renew_leases(mine, [*held, missing], ttl_ms=TTL_MS)
    assert [outcome.key for outcome in outcomes] == [one.key for one in (*held, missing)]
    assert [outcome.renewed for outcome in outcomes] == [True, True, False, True, False]
    assert outcomes[2].lease is not None
    assert outcomes[2].lease.agent_id == "agent-2"
    assert outcomes[4].lease is None


# Release.


async def test_s1_13_release_means_expires_now_and_the_row_stays(backend: Backend) -> None:
    led = await backend.led()
    held = HeldLease(key=led.key, epoch=led.epoch)
    assert await backend.store.release_leases(led.holder, [held]) == [led.key]
    (lease,) = await backend.store.list_leases()
    assert (lease.epoch, lease.expired, lease.expires_at_ms) == (led.epoch, True, backend.now_ms)
    assert await backend.store.release_leases(led.holder, [held]) == [led.key]
    assert (await backend.lead(led.key, backend.holder("agent-2"))).epoch == 2
    assert await backend.store.release_leases(led.holder, [held]) == []


async def test_a_repeated_release_does_not_touch_the_next_leader(backend: Backend) -> None:
    led = await backend.led()
    held = HeldLease(key=led.key, epoch=led.epoch)
    await backend.store.release_leases(led.holder, [held])
    again = await backend.lead(led.key, led.holder)
    assert again.epoch == 2
    assert await backend.store.release_leases(led.holder, [held]) == []
    (lease,) = await backend.store.list_leases()
    assert not lease.expired


async def test_only_mine_at_that_epoch_are_released(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=3)
    mine, other = backend.holder("agent-1"), backend.holder("agent-2")
    await backend.store.acquire_leases(
        mine, [topic.partition_keys()[0], topic.partition_keys()[1], SlotKey(1)], ttl_ms=TTL_MS
    )
    await backend.lead(topic.partition_keys()[2], other)
    released = await backend.store.release_leases(
        mine,
        [
            HeldLease(key=SlotKey(1), epoch=1),
            HeldLease(key=topic.partition_keys()[0], epoch=1),
            HeldLease(key=topic.partition_keys()[1], epoch=2),
            HeldLease(key=topic.partition_keys()[2], epoch=1),
        ],
    )
    assert set(released) == {SlotKey(1), topic.partition_keys()[0]}
    live = [lease.key for lease in await backend.store.list_leases() if not lease.expired]
    assert live == [topic.partition_keys()[1], topic.partition_keys()[2]]


async def test_a_released_lease_cannot_be_renewed(backend: Backend) -> None:
    led = await backend.led()
    held = HeldLease(key=led.key, epoch=led.epoch)
    await backend.store.release_leases(led.holder, [held])
    (outcome,) = await backend.store.renew_leases(led.holder, [held], ttl_ms=TTL_MS)
    assert not outcome.renewed


# Listing.


async def test_leases_are_listed_partitions_first_in_key_order_with_filters(backend: Backend) -> None:
    one, two = await backend.topic("one", partitions=2), await backend.topic("two", partitions=2)
    mine, other = backend.holder("agent-1"), backend.holder("agent-2")
    await backend.store.acquire_leases(
        mine, [SlotKey(9), two.partition_keys()[1], one.partition_keys()[0]], ttl_ms=TTL_MS
    )
    await backend.store.acquire_leases(other, [SlotKey(2), two.partition_keys()[0]], ttl_ms=TTL_MS)
    ordered = sorted([one.partition_keys()[0], *two.partition_keys()])
    everything = await backend.store.list_leases()
    assert [lease.key for lease in everything] == [*ordered, SlotKey(2), SlotKey(9)]
    named = await backend.store.list_leases(agent_id="agent-2")
    assert [lease.key for lease in named] == [two.partition_keys()[0], SlotKey(2)]
    asked = await backend.store.list_leases(
        keys=[SlotKey(9), two.partition_keys()[1], one.partition_keys()[1], SlotKey(30)]
    )
    assert [lease.key for lease in asked] == [two.partition_keys()[1], SlotKey(9)]
    both = await backend.store.list_leases(agent_id="agent-2", keys=[SlotKey(9), two.partition_keys()[0]])
    assert [lease.key for lease in both] == [two.partition_keys()[0]]
    assert await backend.store.list_leases(keys=[]) == []


async def test_a_listed_lease_shows_expiry_and_watermark_as_they_are(backend: Backend) -> None:
    led = await backend.led("orders")
    await led.append(batch(4))
    other = await backend.open_another()
    (lease,) = await other.list_leases()
    assert (lease.topic, lease.high_watermark, lease.expired) == ("orders", 4, False)
    await backend.advance(TTL_MS)
    (lease,) = await other.list_leases()
    assert lease.expired


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
