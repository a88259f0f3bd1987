"""Leases on partitions and slots (S1.11-S1.13, S3.11, S3.12), their fence (R1) and their history (R3)."""

from __future__ import annotations

import pytest
from builders import TTL_MS, batch
from harness import Backend

from streamhouse.core.errors import AgentSuperseded, LeaseHeldByOther, PartitionNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import COORDINATOR_SLOTS
from streamhouse.metadata.contract import AcquireVerdict, HeldLease, LeaseKey, SlotKey


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
    """Another agent may have led in between; "still mine" would be a guess."""
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
