"""Object references, the GC horizon, grace and pins: what vacuum may delete and when (R6, R7)."""

from __future__ import annotations

import asyncio

import pytest
from builders import START_MS, TTL_MS, batch, compaction_of, intent, intent_slice, leaderless_slice, leased_slice
from harness import Backend

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_KEYS_PER_CALL, MAX_ROWS_PER_SWEEP, MAX_TTL_MS
from streamhouse.metadata.contract import EntryKind, IntentKey, Verdict, WaitingObjects


async def trimmed(backend: Backend, name: str = "orders", *, size: int = 1000) -> str:
    """The key of an object whose only entry has just been trimmed away."""
    led = await backend.led(name)
    ref = backend.object(size=size)
    await led.append(batch(2), ref=ref)
    await backend.store.advance_log_start(led.key, 2)
    return ref.key


async def deletable(backend: Backend, grace_ms: int = 0) -> list[str]:
    return await backend.garbage(grace_ms=grace_ms)


# The horizon.


async def test_r6_the_horizon_rises_and_never_falls(backend: Backend) -> None:
    assert (await backend.store.cluster_info()).gc_horizon_ms == 0
    assert await backend.store.raise_gc_horizon(500) == 500
    assert await backend.store.raise_gc_horizon(500) == 500
    assert await backend.store.raise_gc_horizon(400) == 500
    other = await backend.open_another()
    assert await other.raise_gc_horizon(600) == 600
    assert (await backend.store.cluster_info()).gc_horizon_ms == 600


async def test_r6_the_horizon_never_passes_the_store_s_clock(backend: Backend) -> None:
    """Beyond it every object would be stale however new, and nothing could be written until then."""
    led = await backend.led()
    for asked in (backend.now_ms + 1, 2**63 - 1):
        assert await backend.store.raise_gc_horizon(asked) == backend.now_ms
    assert (await backend.store.cluster_info()).gc_horizon_ms == backend.now_ms
    assert (await backend.state(led.key)).gc_horizon_ms == backend.now_ms
    await led.append(batch(1))
    for asked in (-1, -(2**63)):
        with pytest.raises(InvalidRequest):
            await backend.store.raise_gc_horizon(asked)


async def test_r6_the_horizon_stands_in_every_partition_also_of_later_topics(backend: Backend) -> None:
    old = await backend.topic("old", partitions=2)
    await backend.store.raise_gc_horizon(777)
    new = await backend.topic("new")
    grown = await backend.store.grow_topic(old.topic_id, 3)
    states = await backend.store.get_partitions([*grown.partition_keys(), *new.partition_keys()])
    assert [state.gc_horizon_ms for state in states] == [777] * 4


async def test_r6_an_old_object_is_refused_by_a_topic_created_after_the_horizon_rose(backend: Backend) -> None:
    stale = backend.object(created_at_ms=START_MS - 1)
    await backend.store.raise_gc_horizon(START_MS)
    led = await backend.led("later")
    blobs = await backend.partition("blobs", leaderless=True)
    (leased,) = await backend.store.commit_leased(
        backend.append_id(), [leased_slice(led.key, stale, epoch=led.epoch, base=0)]
    )
    (leaderless,) = await backend.store.commit_leaderless(backend.append_id(), stale, [leaderless_slice(blobs)])
    assert {leased.verdict, leaderless.verdict} == {Verdict.STALE_OBJECT}


async def test_r6_a_writer_that_stalled_past_vacuum_cannot_commit_what_is_gone(backend: Backend) -> None:
    """Upload, stall; vacuum lists, raises the horizon, asks, deletes; then the writer comes back."""
    led = await backend.led()
    upload = backend.object()
    await backend.advance(3_600_000)
    await backend.store.raise_gc_horizon(backend.now_ms - 600_000)
    assert await backend.unreferenced(upload.key) == {upload.key}
    piece = leased_slice(led.key, upload, epoch=led.epoch, base=0)
    (late,) = await backend.store.commit_leased(backend.append_id(), [piece])
    assert late.verdict is Verdict.STALE_OBJECT
    assert await backend.entries(led.key) == ()


async def test_r6_a_writer_that_commits_before_the_horizon_rises_keeps_its_object(backend: Backend) -> None:
    led = await backend.led()
    upload = backend.object()
    await backend.advance(3_600_000)
    await led.append(batch(1), ref=upload)
    await backend.store.raise_gc_horizon(backend.now_ms)
    assert await backend.unreferenced(upload.key) == set()


async def test_r6_vacuum_racing_a_commit_never_deletes_what_was_committed(backend: Backend) -> None:
    other = await backend.open_another()
    led = await backend.led()
    for turn in range(12):
        upload = backend.object(created_at_ms=START_MS + turn)
        piece = leased_slice(led.key, upload, epoch=led.epoch, base=led.next_offset)
        await backend.advance(1)

        async def vacuum(key: str = upload.key, horizon: int = START_MS + turn + 1) -> set[str]:
            await other.raise_gc_horizon(horizon)
            return await other.find_unreferenced({key: horizon - 1})

        committing, gone = await asyncio.gather(backend.store.commit_leased(backend.append_id(), [piece]), vacuum())
        (outcome,) = committing
        if outcome.verdict is Verdict.COMMITTED:
            led.next_offset += 1
            assert gone == set()
        else:
            assert outcome.verdict is Verdict.STALE_OBJECT
            assert gone == {upload.key}


# References.


async def test_r7_whatever_refers_to_an_object_is_found(backend: Backend) -> None:
    led = await backend.led("leased")
    blobs = await backend.partition("blobs", leaderless=True)
    entry, blob, target, adopted, orphan = (backend.object() for _ in range(5))
    await led.append(batch(1), ref=entry)
    await backend.store.commit_leaderless(backend.append_id(), blob, [leaderless_slice(blobs)])
    await backend.store.begin_compaction(compaction_of(led.key, await backend.entries(led.key), target, backend.ids))
    await backend.store.register_intent(
        intent(IntentKey(query_id="q", topic_id=led.key.topic_id, batch_id=0), intent_slice(0, adopted))
    )
    keys = [one.key for one in (entry, blob, target, adopted, orphan)]
    assert await backend.unreferenced(*keys, "objects/never-seen") == {orphan.key, "objects/never-seen"}
    assert await backend.store.find_unreferenced({}) == set()


async def test_r7_a_shared_blob_stays_until_its_last_entry_goes(backend: Backend) -> None:
    topic = await backend.topic(partitions=3, leaderless=True)
    blob = backend.object(size=300)
    slices = [leaderless_slice(key, byte_offset=turn * 100) for turn, key in enumerate(topic.partition_keys())]
    await backend.store.commit_leaderless(backend.append_id(), blob, slices)
    for key in topic.partition_keys():
        await backend.advance(10)
        assert await deletable(backend) == []
        await backend.store.advance_log_start(key, 1)
    await backend.advance(1)
    await backend.raise_horizon()
    (gone,) = await backend.store.list_dereferenced(grace_ms=0, limit=10)
    assert (gone.key, gone.size_bytes, gone.dereferenced_at_ms) == (blob.key, 300, backend.now_ms - 1)


async def test_r14_a_blob_split_into_runs_stays_until_the_last_run_goes(backend: Backend) -> None:
    key = await backend.partition(leaderless=True)
    blob = backend.object()
    one = batch(1, producer=1, sequence=0)
    await backend.store.commit_leaderless(
        backend.append_id(), blob, [leaderless_slice(key, one, one, batch(1, producer=1, sequence=1))]
    )
    assert len(await backend.entries(key)) == 2
    await backend.store.advance_log_start(key, 1)
    await backend.advance(1)
    assert await deletable(backend) == []
    await backend.store.advance_log_start(key, 2)
    await backend.advance(1)
    assert await deletable(backend) == [blob.key]


async def test_r7_an_object_referred_to_again_is_no_longer_deletable(backend: Backend) -> None:
    led = await backend.led()
    ref = backend.object()
    await led.append(batch(2), ref=ref)
    await backend.store.advance_log_start(led.key, 2)
    await backend.advance(100)
    await led.append(batch(2), ref=ref, kind=EntryKind.WAL)
    assert await deletable(backend) == []
    assert await backend.store.forget_objects([ref.key]) == set()
    await backend.store.advance_log_start(led.key, 4)
    await backend.advance(50)
    assert await deletable(backend, grace_ms=60) == []
    assert await deletable(backend, grace_ms=40) == [ref.key]


async def test_r7_what_was_dereferenced_belongs_to_the_grace_list_only(backend: Backend) -> None:
    key = await trimmed(backend)
    assert await backend.unreferenced(key) == set()


# Grace.


async def test_r7_grace_counts_from_dereferencing_not_from_the_object_s_age(backend: Backend) -> None:
    led = await backend.led()
    ref = backend.object(created_at_ms=1)
    await led.append(batch(2), ref=ref)
    await backend.advance(10_000_000)
    await backend.store.advance_log_start(led.key, 2)
    assert await deletable(backend) == []
    await backend.advance(999)
    assert await deletable(backend, grace_ms=1000) == []
    await backend.advance(2)
    assert await deletable(backend, grace_ms=1000) == [ref.key]


async def test_dereferenced_objects_are_listed_oldest_first_up_to_a_limit(backend: Backend) -> None:
    keys = []
    for turn in range(4):
        keys.append(await trimmed(backend, f"topic-{turn}"))
        await backend.advance(10)
    assert await deletable(backend) == keys
    found = await backend.store.list_dereferenced(grace_ms=0, limit=2)
    assert [one.key for one in found] == keys[:2]


async def test_forgetting_drops_the_records_of_deleted_objects(backend: Backend) -> None:
    led = await backend.led("kept")
    kept = backend.object()
    await led.append(batch(1), ref=kept)
    gone = await trimmed(backend)
    await backend.advance(10)
    await backend.raise_horizon()
    assert await backend.store.forget_objects([gone, kept.key, "objects/never-seen"]) == {gone}
    assert await backend.store.forget_objects([gone]) == set()
    assert await deletable(backend) == []
    assert await backend.unreferenced(gone, kept.key) == {gone}


# Pins.


async def test_r7_a_live_pin_keeps_what_was_dereferenced_after_its_creation(backend: Backend) -> None:
    before = await trimmed(backend, "before")
    await backend.advance(10)
    pin = await backend.store.create_pin(backend.uuid(), owner="reader", ttl_ms=5000)
    assert (pin.created_at_ms, pin.expires_at_ms) == (backend.now_ms, backend.now_ms + 5000)
    await backend.advance(10)
    after = await trimmed(backend, "after")
    await backend.advance(1000)
    assert await deletable(backend, grace_ms=100) == [before]
    assert await backend.store.release_pins([pin.pin_id]) == 1
    assert await deletable(backend, grace_ms=100) == [before, after]


async def test_r7_an_object_dereferenced_in_the_very_millisecond_of_a_pin_stays(backend: Backend) -> None:
    await trimmed(backend)
    await backend.store.create_pin(backend.uuid(), owner="reader", ttl_ms=5000)
    await backend.advance(100)
    assert await deletable(backend) == []


async def test_s2_45_what_has_to_stay_for_now_is_added_up(backend: Backend) -> None:
    async def waiting(grace_ms: int = 0, *, limit: int = 10) -> WaitingObjects:
        return await backend.store.sum_waiting_objects(writer_grace_ms=grace_ms, reader_grace_ms=grace_ms, limit=limit)

    assert await waiting() == WaitingObjects()
    await trimmed(backend, "before")
    before_ms = backend.now_ms
    await backend.advance(10)
    assert await waiting() == WaitingObjects(), "no grace and no pin: a vacuum may take it"
    young = await waiting(1000)
    assert (young.objects, young.pinned_objects, young.last_dereferenced_ms) == (1, 0, before_ms)
    assert young.size_bytes > 0
    await backend.advance(2000)
    assert await waiting(1000) == WaitingObjects()

    pin = await backend.store.create_pin(backend.uuid(), owner="reader", ttl_ms=60_000)
    await backend.advance(10)
    await trimmed(backend, "after")
    after_ms = backend.now_ms
    await backend.advance(2000)
    pinned = await waiting(1000)
    assert (pinned.objects, pinned.pinned_objects, pinned.last_dereferenced_ms) == (1, 1, after_ms)
    assert pinned.pinned_bytes == pinned.size_bytes == young.size_bytes
    assert 0 < pinned.last_created_ms <= after_ms
    both = await waiting(10_000)
    assert (both.objects, both.pinned_objects, both.last_dereferenced_ms) == (2, 1, after_ms)
    assert (await waiting(10_000, limit=1)).last_dereferenced_ms == before_ms
    await backend.store.release_pins([pin.pin_id])
    assert await waiting(1000) == WaitingObjects()


async def test_r7_the_oldest_live_pin_decides(backend: Backend) -> None:
    first = await backend.store.create_pin(backend.uuid(), owner="long", ttl_ms=10_000)
    await backend.advance(10)
    key = await trimmed(backend)
    await backend.advance(10)
    await backend.store.create_pin(backend.uuid(), owner="short", ttl_ms=10_000)
    await backend.advance(1000)
    assert await deletable(backend) == []
    await backend.store.release_pins([first.pin_id])
    assert await deletable(backend) == [key]


async def test_r7_an_expired_pin_keeps_nothing_and_cannot_come_back(backend: Backend) -> None:
    pin = await backend.store.create_pin(backend.uuid(), owner="reader", ttl_ms=1000)
    await backend.advance(10)
    key = await trimmed(backend)
    await backend.advance(989)
    assert await deletable(backend) == []
    await backend.advance(1)
    assert await deletable(backend) == [key]
    assert await backend.store.renew_pins([pin.pin_id], ttl_ms=1000) == set()
    assert await backend.store.list_pins() == []
    assert await deletable(backend) == [key]


async def test_a_pin_is_created_once_and_keeps_its_creation_time(backend: Backend) -> None:
    pin_id = backend.uuid()
    first = await backend.store.create_pin(pin_id, owner="reader", ttl_ms=1000)
    await backend.advance(500)
    again = await backend.store.create_pin(pin_id, owner="reader", ttl_ms=1000)
    assert again.created_at_ms == first.created_at_ms
    assert again.expires_at_ms >= first.expires_at_ms
    assert len(await backend.store.list_pins()) == 1


async def test_r7_a_pin_under_an_expired_one_s_id_is_a_new_one(backend: Backend) -> None:
    """Its owner was unprotected in between: the old creation time would promise what cannot be kept."""
    pin_id = backend.uuid()
    await backend.store.create_pin(pin_id, owner="reader", ttl_ms=1000)
    await backend.advance(10)
    gone = await trimmed(backend)
    await backend.advance(2000)
    again = await backend.store.create_pin(pin_id, owner="reader", ttl_ms=1000)
    assert (again.created_at_ms, again.expires_at_ms) == (backend.now_ms, backend.now_ms + 1000)
    assert await deletable(backend) == [gone]


async def test_pins_are_renewed_listed_and_released(backend: Backend) -> None:
    pins = []
    for turn in range(3):
        pins.append(await backend.store.create_pin(backend.uuid(), owner=f"reader-{turn}", ttl_ms=1000))
        await backend.advance(1)
    ids = [pin.pin_id for pin in pins]
    assert await backend.store.list_pins() == pins
    unknown = backend.uuid()
    assert await backend.store.renew_pins([*ids[:2], unknown], ttl_ms=5000) == set(ids[:2])
    await backend.advance(2000)
    live = await backend.store.list_pins()
    assert [pin.pin_id for pin in live] == ids[:2]
    assert [pin.created_at_ms for pin in live] == [pin.created_at_ms for pin in pins[:2]]
    assert await backend.store.release_pins([ids[0], unknown]) == 1
    assert await backend.store.release_pins([ids[0], unknown]) == 0
    assert [pin.pin_id for pin in await backend.store.list_pins()] == [ids[1]]


# Malformed.


async def test_what_makes_no_sense_is_refused(backend: Backend) -> None:
    for limit in (0, -1):
        with pytest.raises(InvalidRequest):
            await backend.store.list_dereferenced(grace_ms=0, limit=limit)
        with pytest.raises(InvalidRequest):
            await backend.store.purge_deleted_topics(limit=limit)
        with pytest.raises(InvalidRequest):
            await backend.store.expire_producers(idle_ms=0, limit=limit)
        with pytest.raises(InvalidRequest):
            await backend.store.expire_commits(keep_ms=0, limit=limit)
        with pytest.raises(InvalidRequest):
            await backend.store.expire_groups(empty_for_ms=0, limit=limit)
    with pytest.raises(LimitExceeded):
        await backend.store.purge_deleted_topics(limit=MAX_ROWS_PER_SWEEP + 1)
    with pytest.raises(InvalidRequest):
        await backend.store.list_dereferenced(grace_ms=-1, limit=1)
    for ttl_ms in (0, -1, MAX_TTL_MS + 1):
        with pytest.raises(InvalidRequest):
            await backend.store.create_pin(backend.uuid(), owner="reader", ttl_ms=ttl_ms)
        with pytest.raises(InvalidRequest):
            await backend.store.renew_pins([backend.uuid()], ttl_ms=ttl_ms)
    for owner in ("", "a\0b"):
        with pytest.raises(InvalidRequest):
            await backend.store.create_pin(backend.uuid(), owner=owner, ttl_ms=TTL_MS)
    for stamp_ms in (-1, 2**63):
        with pytest.raises(InvalidRequest):
            await backend.store.find_unreferenced({"objects/x": stamp_ms})
    many = ["x"] * (MAX_KEYS_PER_CALL + 1)
    with pytest.raises(LimitExceeded):
        await backend.store.find_unreferenced({f"objects/{n}": 0 for n in range(MAX_KEYS_PER_CALL + 1)})
    with pytest.raises(LimitExceeded):
        await backend.store.forget_objects(many)
