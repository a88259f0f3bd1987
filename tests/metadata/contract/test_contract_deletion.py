"""Deletion and recreation: everything is keyed by topic id, and an epoch never goes back (R19)."""

from __future__ import annotations

import dataclasses

import pytest
from builders import batch, compaction_of, intent, intent_slice, leaderless_slice, leased_slice
from harness import Backend

from streamhouse.core.errors import (
    NotFound,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
    TransferConflict,
    TransferNotFound,
)
from streamhouse.core.ids import TopicId
from streamhouse.metadata.contract import (
    AcquireVerdict,
    HeldLease,
    IntentKey,
    NewTopic,
    OffsetCommit,
    ScanRange,
    Verdict,
    WriteMode,
)


async def test_r19_a_deleted_topic_is_gone_for_every_reader(backend: Backend) -> None:
    led = await backend.led("orders")
    await led.append(batch(3))
    topic = await backend.store.get_topic("orders")
    assert await backend.store.delete_topic(topic.topic_id) is True
    with pytest.raises(TopicNotFound):
        await backend.store.get_topic("orders")
    with pytest.raises(TopicNotFound):
        await backend.store.get_topic_by_id(topic.topic_id)
    assert await backend.store.list_topics() == []
    assert await backend.store.get_partitions(topic.partition_keys()) == []
    assert await backend.store.scan_entries([ScanRange(key=led.key, from_offset=0)], limit=10) == []
    for lookup in (
        backend.store.find_entry(led.key, 0),
        backend.store.find_entry_by_timestamp(led.key, 0),
        backend.store.find_max_timestamp_entry(led.key),
    ):
        with pytest.raises(PartitionNotFound):
            await lookup


async def test_a_repeated_delete_says_so(backend: Backend) -> None:
    topic = await backend.topic()
    assert await backend.store.delete_topic(topic.topic_id) is True
    assert await backend.store.delete_topic(topic.topic_id) is False
    assert await backend.store.delete_topic(TopicId(backend.uuid())) is False


async def test_r19_every_commit_to_a_deleted_topic_is_gone(backend: Backend) -> None:
    led = await backend.led("leased")
    blobs = await backend.partition("leaderless", leaderless=True)
    await backend.store.delete_topic(led.key.topic_id)
    await backend.store.delete_topic(blobs.topic_id)
    (leased,) = await backend.store.commit_leased(
        backend.append_id(), [leased_slice(led.key, backend.object(), epoch=led.epoch, base=0)]
    )
    (leaderless,) = await backend.store.commit_leaderless(
        backend.append_id(), backend.object(), [leaderless_slice(blobs)]
    )
    for outcome in (leased, leaderless):
        assert outcome.verdict is Verdict.GONE
        assert (outcome.base_offset, outcome.high_watermark, outcome.leader_epoch) == (-1, -1, -1)


async def test_r5_what_was_committed_before_the_deletion_answers_as_it_did(backend: Backend) -> None:
    led = await backend.led("leased")
    blobs = await backend.partition("leaderless", leaderless=True)
    piece = leased_slice(led.key, backend.object(), batch(2), epoch=led.epoch, base=0)
    blob, share = backend.object(), leaderless_slice(blobs, batch(1, producer=3), batch(2))
    one, two = backend.append_id(), backend.append_id()
    first = await backend.store.commit_leased(one, [piece])
    second = await backend.store.commit_leaderless(two, blob, [share])
    for key in (led.key, blobs):
        await backend.store.delete_topic(key.topic_id)
    again = await backend.store.commit_leased(one, [piece])
    assert again == [dataclasses.replace(outcome, repeated=True) for outcome in first]
    again = await backend.store.commit_leaderless(two, blob, [share])
    assert again == [dataclasses.replace(outcome, repeated=True) for outcome in second]


async def test_r19_a_recreated_topic_never_receives_its_predecessor_s_buffer(backend: Backend) -> None:
    old = await backend.led("orders")
    await old.append(batch(3))
    await backend.store.delete_topic(old.key.topic_id)
    fresh = await backend.led("orders")
    assert await backend.watermark(fresh.key) == 0
    (outcome,) = await backend.store.commit_leased(
        backend.append_id(), [leased_slice(old.key, backend.object(), epoch=old.epoch, base=3)]
    )
    assert outcome.verdict is Verdict.GONE
    assert await backend.entries(fresh.key) == ()


async def test_r19_deletion_bumps_the_epoch_and_it_never_goes_back(backend: Backend) -> None:
    highest = 0
    for _ in range(3):
        led = await backend.led("orders")
        assert led.epoch > highest
        highest = led.epoch
        await backend.store.delete_topic(led.key.topic_id)
        recreated = await backend.topic("orders")
        started = (await backend.state(recreated.partition_keys()[0])).leader_epoch
        assert started > highest
        highest = started
        await backend.store.delete_topic(recreated.topic_id)


async def test_r19_growth_after_recreation_does_not_take_epochs_back(backend: Backend) -> None:
    first = await backend.topic("orders", partitions=3)
    for key in first.partition_keys():
        await backend.lead(key)
        await backend.advance(60_000)
        await backend.lead(key)
    await backend.store.delete_topic(first.topic_id)
    second = await backend.topic("orders", partitions=1)
    grown = await backend.store.grow_topic(second.topic_id, 3)
    assert all(state.leader_epoch > 2 for state in await backend.store.get_partitions(grown.partition_keys()))


async def test_r19_a_recreated_topic_may_have_the_other_write_mode(backend: Backend) -> None:
    led = await backend.led("orders")
    await led.append(batch(3))
    await backend.store.delete_topic(led.key.topic_id)
    topic = await backend.topic("orders", leaderless=True)
    assert topic.write_mode is WriteMode.LEADERLESS
    (outcome,) = await backend.store.commit_leaderless(
        backend.append_id(), backend.object(), [leaderless_slice(topic.partition_keys()[0], batch(2))]
    )
    assert (outcome.verdict, outcome.base_offset, outcome.end_offset) == (Verdict.COMMITTED, 0, 1)


async def test_deletion_ends_its_leases(backend: Backend) -> None:
    led = await backend.led("orders")
    kept = await backend.led("kept")
    await backend.store.delete_topic(led.key.topic_id)
    assert [lease.key for lease in await backend.store.list_leases()] == [kept.key]
    (outcome,) = await backend.store.acquire_leases(led.holder, [led.key], ttl_ms=1000)
    assert outcome.verdict is AcquireVerdict.GONE
    (renewed,) = await backend.store.renew_leases(led.holder, [HeldLease(key=led.key, epoch=led.epoch)], ttl_ms=1000)
    assert (renewed.renewed, renewed.lease) == (False, None)


async def test_deletion_does_not_hold_off_the_recreated_topic_s_leaders(backend: Backend) -> None:
    led = await backend.led("orders")
    await backend.store.delete_topic(led.key.topic_id)
    other = backend.holder("agent-2")
    key = await backend.partition("orders")
    (outcome,) = await backend.store.acquire_leases(other, [key], ttl_ms=1000)
    assert outcome.verdict is AcquireVerdict.ACQUIRED


async def test_deletion_takes_offsets_producers_and_flush_requests_with_it(backend: Backend) -> None:
    led = await backend.led("orders")
    kept = await backend.led("kept")
    for one in (led, kept):
        await one.append(batch(1, producer=7))
    commits = [OffsetCommit(key=one.key, offset=1) for one in (led, kept)]
    assert await backend.store.commit_offsets_simple("group", commits) == []
    request = backend.uuid()
    await backend.store.request_flush(request, [led.key, kept.key], ttl_ms=10_000)
    await backend.store.delete_topic(led.key.topic_id)
    assert set(await backend.store.fetch_offsets("group")) == {kept.key}
    windows = await backend.store.load_producers([led.key, kept.key])
    assert (len(windows[led.key]), len(windows[kept.key])) == (0, 1)
    assert await backend.store.pending_flush(request) == [kept.key]
    assert [one.key for one in await backend.store.list_flush_requests()] == [kept.key]


async def test_deletion_ends_open_transfers(backend: Backend) -> None:
    led = await backend.led("orders")
    target = backend.holder("agent-2")
    await backend.register(target)
    transfer = backend.uuid()
    await backend.store.initiate_transfer(
        transfer, HeldLease(key=led.key, epoch=led.epoch), holder=led.holder, to_agent="agent-2", timeout_ms=5000
    )
    await backend.store.delete_topic(led.key.topic_id)
    assert await backend.store.list_transfers() == []
    with pytest.raises((TransferNotFound, TransferConflict)):
        await backend.store.accept_transfer(transfer, target=target)


async def test_deletion_takes_intents_with_it(backend: Backend) -> None:
    led = await backend.led("orders")
    ref = backend.object()
    key = IntentKey(query_id="query", topic_id=led.key.topic_id, batch_id=0)
    await backend.store.register_intent(intent(key, intent_slice(0, ref)))
    await backend.store.delete_topic(led.key.topic_id)
    assert await backend.store.get_intent(key) is None
    assert await backend.store.list_unadopted([led.key]) == []
    with pytest.raises(NotFound):
        await backend.store.adopt_intent(key, 0, epoch=led.epoch, base_offset=0)
    await backend.advance(1)
    assert await backend.garbage() == [ref.key]


async def test_r7_entries_of_a_deleted_topic_hold_their_objects_until_purged(backend: Backend) -> None:
    led = await backend.led("orders")
    refs = [backend.object() for _ in range(5)]
    for ref in refs:
        await led.append(batch(2), ref=ref)
    await backend.store.delete_topic(led.key.topic_id)
    await backend.advance(10)
    assert await backend.garbage() == []
    assert await backend.unreferenced(*[ref.key for ref in refs]) == set()
    purged = [await backend.store.purge_deleted_topics(limit=2) for _ in range(4)]
    assert purged == [2, 2, 1, 0]
    await backend.advance(1)
    await backend.raise_horizon()
    found = await backend.store.list_dereferenced(grace_ms=0, limit=10)
    assert {one.key for one in found} == {ref.key for ref in refs}
    assert all(one.dereferenced_at_ms == backend.now_ms - 1 for one in found)


async def test_r19_a_deleted_topic_s_id_is_refused_while_its_entries_are_left(backend: Backend) -> None:
    """A creation sent again late must not revive the topic at offset 0 beside what its first life wrote."""
    new = NewTopic(topic_id=TopicId(backend.uuid()), name="orders", partition_count=1, configs={})
    (key,) = (await backend.store.create_topic(new)).partition_keys()
    lease = await backend.lead(key)
    piece = leased_slice(key, backend.object(), batch(3), epoch=lease.epoch, base=0)
    await backend.store.commit_leased(backend.append_id(), [piece])
    await backend.store.delete_topic(new.topic_id)
    for name in ("orders", "renamed"):
        with pytest.raises(TopicExists, match="deleted"):
            await backend.store.create_topic(dataclasses.replace(new, name=name))
    assert await backend.store.list_topics() == []
    assert await backend.store.purge_deleted_topics(limit=10) == 1
    await backend.store.create_topic(new)
    state = await backend.state(key)
    assert (state.high_watermark, await backend.entries(key)) == (0, ())
    assert state.leader_epoch > lease.epoch


async def test_purging_leaves_living_topics_alone(backend: Backend) -> None:
    led = await backend.led("orders")
    kept = await backend.led("kept")
    shared = backend.object()
    await led.append(batch(2), ref=shared)
    await kept.append(batch(2), ref=shared)
    await backend.store.delete_topic(led.key.topic_id)
    assert await backend.store.purge_deleted_topics(limit=100) == 1
    assert await backend.store.purge_deleted_topics(limit=100) == 0
    assert len(await backend.entries(kept.key)) == 1
    await backend.advance(1)
    assert await backend.garbage() == []


async def test_purging_a_recreated_name_takes_only_the_old_topic_s_entries(backend: Backend) -> None:
    old = await backend.led("orders")
    await old.append(batch(2))
    await backend.store.delete_topic(old.key.topic_id)
    fresh = await backend.led("orders")
    await fresh.append(batch(4))
    assert await backend.store.purge_deleted_topics(limit=100) == 1
    (entry,) = await backend.entries(fresh.key)
    assert entry.end_offset == 3


async def test_r7_deletion_lets_go_of_a_pending_compaction(backend: Backend) -> None:
    led = await backend.led("orders")
    await led.append(batch(2))
    await led.append(batch(2))
    target = backend.object()
    await backend.store.begin_compaction(compaction_of(led.key, await backend.entries(led.key), target, backend.ids))
    await backend.store.delete_topic(led.key.topic_id)
    assert await backend.store.list_compactions() == []
    while await backend.store.purge_deleted_topics(limit=100):
        pass
    await backend.advance(1)
    await backend.raise_horizon()
    found = await backend.store.list_dereferenced(grace_ms=0, limit=10)
    assert target.key in {one.key for one in found}
    assert len(found) == 3
