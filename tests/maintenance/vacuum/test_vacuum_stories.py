"""Vacuum beside writers and readers: what it must never delete, and what it must delete in the end (R6, R7, R24)."""

from __future__ import annotations

import pytest
from builders import batch, compaction_of, leased_slice
from harness import Backend
from stories import sink
from vacuum_stage import HOUR_MS, READER_GRACE_MS, SIZE_BYTES, Bucket

from streamhouse.maintenance.vacuum.candidates import GarbageCause, ObjectKind
from streamhouse.maintenance.vacuum.summary import Tally
from streamhouse.metadata.contract import EntryKind, IntentVerdict, ObjectRef, Verdict
from streamhouse.objectstore.keys import CLUSTER_ID_KEY, metadata_progress_key

PIN_MS = 20 * HOUR_MS


async def trimmed(bucket: Bucket, name: str = "orders") -> ObjectRef:
    """An object whose only entry has just been dropped; it is old enough for every writer."""
    led = await bucket.backend.led(name)
    ref = await bucket.append(led)
    await bucket.backend.advance(HOUR_MS + 1)
    await bucket.backend.store.advance_log_start(led.key, led.next_offset)
    return ref


# Uploads that were not committed.


async def test_s2_45_an_orphan_goes_after_the_writers_grace_and_what_is_committed_stays(bucket: Bucket) -> None:
    backend = bucket.backend
    led = await backend.led()
    committed = await bucket.append(led)
    orphans = [await bucket.segment(led.key, base=led.next_offset), await bucket.blob(), await bucket.blob()]
    everything = {committed.key, *(each.key for each in orphans)}
    for age_ms in (0, HOUR_MS):  # a stamp equal to the horizon is not below it
        await backend.advance(age_ms)
        assert (await bucket.run()).total.objects == 0
        assert await bucket.keys() == everything
    await backend.advance(1)
    summary = await bucket.run()
    assert await bucket.keys() == {committed.key}
    assert summary.garbage == {
        (GarbageCause.NEVER_REFERENCED, ObjectKind.SEGMENT): Tally(objects=1, size_bytes=SIZE_BYTES),
        (GarbageCause.NEVER_REFERENCED, ObjectKind.SHARED_BLOB): Tally(objects=2, size_bytes=2 * SIZE_BYTES),
    }


async def test_r24_an_orphan_of_a_failed_commit_goes_and_the_retry_s_object_stays(bucket: Bucket) -> None:
    backend = bucket.backend
    led = await backend.led()
    failed = await bucket.segment(led.key)
    piece = leased_slice(led.key, failed, epoch=led.epoch + 1, base=0)  # its lease was another's
    (outcome,) = await backend.store.commit_leased(backend.append_id(), [piece])
    assert outcome.verdict is Verdict.FENCED
    again = await bucket.append(led)
    await backend.advance(HOUR_MS + 1)
    await bucket.run()
    assert await bucket.keys() == {again.key}


async def test_r6_a_stalled_writer_is_refused_and_gets_through_with_a_second_upload(bucket: Bucket) -> None:
    backend = bucket.backend
    led = await backend.led()
    stalled = await bucket.segment(led.key)
    await backend.advance(HOUR_MS + 1)
    await bucket.run()
    assert await bucket.keys() == set()
    assert (await bucket.try_append(led, stalled)).verdict is Verdict.STALE_OBJECT
    assert await backend.entries(led.key) == ()
    again = await bucket.append(led)
    await backend.advance(10 * HOUR_MS)
    await bucket.run()
    assert await bucket.keys() == {again.key}


async def test_r6_vacuums_without_a_pause_never_stop_a_writer_that_needs_almost_the_whole_grace(bucket: Bucket) -> None:
    backend = bucket.backend
    led = await backend.led()
    for _ in range(3):
        slow = await bucket.segment(led.key, base=led.next_offset)
        for _ in range(10):
            await backend.advance(HOUR_MS // 10)
            await bucket.run()
        await bucket.append(led, slow)
    assert await bucket.keys() == await bucket.referenced()
    assert len(await bucket.keys()) == 3


async def test_a_stamp_in_the_future_stays_however_far_it_is(bucket: Bucket) -> None:
    await bucket.blob(created_ms=bucket.backend.now_ms + 1000 * HOUR_MS)
    await bucket.backend.advance(999 * HOUR_MS)
    await bucket.run()
    assert len(await bucket.keys()) == 1


# Objects that lost their last entry.


async def test_r7_grace_counts_from_the_last_reference_and_not_from_the_object_s_age(bucket: Bucket) -> None:
    ref = await trimmed(bucket)
    for wait_ms in (0, READER_GRACE_MS):
        await bucket.backend.advance(wait_ms)
        await bucket.run()
        assert await bucket.keys() == {ref.key}
    await bucket.backend.advance(1)
    summary = await bucket.run()
    assert await bucket.keys() == set()
    assert summary.garbage == {(GarbageCause.DEREFERENCED, ObjectKind.SEGMENT): Tally(objects=1, size_bytes=SIZE_BYTES)}
    assert await bucket.backend.garbage() == [], "its record is forgotten too"
    assert (await bucket.run()).total.objects == 0


async def test_r7_a_live_pin_keeps_what_was_dereferenced_after_it_until_it_is_released(bucket: Bucket) -> None:
    backend = bucket.backend
    before = await trimmed(bucket, "before")
    await backend.advance(1)
    pin_id = backend.uuid()
    await backend.store.create_pin(pin_id, owner="query", ttl_ms=PIN_MS)
    after = await trimmed(bucket, "after")
    await backend.advance(READER_GRACE_MS + 1)
    await bucket.run()
    assert await bucket.keys() == {after.key}, f"{before.key} was dereferenced before the pin"
    await backend.store.release_pins([pin_id])
    await bucket.run()
    assert await bucket.keys() == set()


async def test_r7_a_pin_that_expired_keeps_nothing(bucket: Bucket) -> None:
    backend = bucket.backend
    await backend.store.create_pin(backend.uuid(), owner="a killed query", ttl_ms=PIN_MS)
    ref = await trimmed(bucket)
    await backend.advance(PIN_MS - HOUR_MS - 2)
    await bucket.run()
    assert await bucket.keys() == {ref.key}
    await backend.advance(2)
    await bucket.run()
    assert await bucket.keys() == set()


async def test_s2_45_a_shared_blob_stays_until_the_last_partition_has_let_go_of_it(bucket: Bucket) -> None:
    backend = bucket.backend
    one, two = await backend.led("one"), await backend.led("two")
    blob = await bucket.blob()
    slices = [
        leased_slice(led.key, blob, epoch=led.epoch, base=0, kind=EntryKind.WAL, byte_offset=100 * number)
        for number, led in enumerate((one, two))
    ]
    await backend.store.commit_leased(backend.append_id(), slices)
    await backend.store.advance_log_start(one.key, 1)
    await backend.advance(10 * HOUR_MS)
    await bucket.run()
    assert await bucket.keys() == {blob.key}
    await backend.store.advance_log_start(two.key, 1)
    await bucket.run()
    assert await bucket.keys() == {blob.key}, "the grace of its last reader has begun now"
    await backend.advance(READER_GRACE_MS + 1)
    await bucket.run()
    assert await bucket.keys() == set()


async def test_r24_a_shared_blob_waits_for_the_partition_whose_commit_is_still_to_come(bucket: Bucket) -> None:
    """One partition has committed it and dropped it again, long before the other one commits."""
    backend = bucket.backend
    one, two = await backend.led("one"), await backend.led("two")
    blob = await bucket.blob()
    first = leased_slice(one.key, blob, epoch=one.epoch, base=0, kind=EntryKind.WAL)
    late = leased_slice(two.key, blob, epoch=two.epoch, base=1, kind=EntryKind.WAL, byte_offset=100)
    append_id = backend.append_id()
    outcomes = await backend.store.commit_leased(append_id, [first, late])
    assert [each.verdict for each in outcomes] == [Verdict.COMMITTED, Verdict.NOT_YET]
    await backend.store.advance_log_start(one.key, 1)
    await backend.advance(READER_GRACE_MS + 1)
    await bucket.run()
    assert await bucket.keys() == {blob.key}
    await bucket.append(two)
    assert (await backend.store.commit_leased(append_id, [first, late]))[1].verdict is Verdict.COMMITTED
    await backend.advance(10 * HOUR_MS)
    await bucket.run()
    assert await bucket.keys() == await bucket.referenced() >= {blob.key}


# What compactions and sinks hold.


async def test_r7_a_pending_compaction_holds_its_object_and_its_sources(bucket: Bucket) -> None:
    backend = bucket.backend
    led = await backend.led()
    sources = {(await bucket.append(led)).key for _ in range(2)}
    target = await bucket.compacted(led.key, base=0, end=1)
    compaction = compaction_of(led.key, await backend.entries(led.key), target, backend.ids)
    await backend.store.begin_compaction(compaction)
    await backend.advance(10 * HOUR_MS)
    await bucket.run()
    assert await bucket.keys() == {target.key, *sources}
    await backend.store.apply_compaction(led.key, compaction.compaction_id)
    await bucket.run()
    assert await bucket.keys() == {target.key, *sources}
    await backend.advance(READER_GRACE_MS + 1)
    await bucket.run()
    assert await bucket.keys() == {target.key}


async def test_the_object_of_an_aborted_compaction_goes(bucket: Bucket) -> None:
    backend = bucket.backend
    led = await backend.led()
    source = await bucket.append(led)
    target = await bucket.compacted(led.key, base=0, end=0)
    compaction = compaction_of(led.key, await backend.entries(led.key), target, backend.ids)
    await backend.store.begin_compaction(compaction)
    await backend.store.abort_compaction(led.key, compaction.compaction_id)
    await backend.advance(10 * HOUR_MS)
    await bucket.run()
    assert await bucket.keys() == {source.key}


async def test_r8_a_sink_s_intent_holds_its_uploads_and_those_of_the_loser_go(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = bucket.backend
    query = await sink(backend)
    uploads = iter([await bucket.blob() for _ in range(4)])
    monkeypatch.setattr(backend, "object", lambda: next(uploads))
    winner, loser = query.manifest(0), query.manifest(0)
    assert await query.register(winner) is IntentVerdict.REGISTERED
    assert await query.register(loser) is IntentVerdict.PENDING
    await backend.advance(10 * HOUR_MS)
    await bucket.run()
    held = {piece.object.key for piece in winner.slices}
    assert await bucket.keys() == held, "no leader has adopted it yet"
    await query.adopt_all()
    await backend.advance(10 * HOUR_MS)
    await bucket.run()
    assert await bucket.keys() == held == await bucket.referenced()


async def test_r6_an_intent_of_uploads_that_vacuum_has_deleted_is_refused(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = bucket.backend
    query = await sink(backend)
    uploads = iter([await bucket.blob() for _ in range(2)])
    monkeypatch.setattr(backend, "object", lambda: next(uploads))
    late = query.manifest(0)
    await backend.advance(HOUR_MS + 1)
    await bucket.run()
    assert await bucket.keys() == set()
    assert await query.register(late) is IntentVerdict.STALE_OBJECT


# Deleted topics, and what is not data.


async def test_s2_45_the_objects_of_a_deleted_topic_go_and_a_blob_that_it_shared_stays(bucket: Bucket) -> None:
    backend = bucket.backend
    kept, dropped = await backend.led("kept"), await backend.led("dropped")
    for _ in range(5):
        await bucket.append(dropped)
    shared = await bucket.blob()
    for led in (kept, dropped):
        await led.append(batch(1), ref=shared, kind=EntryKind.WAL)
    await backend.store.delete_topic(dropped.key.topic_id)
    await backend.advance(10 * HOUR_MS)
    first = await bucket.run()
    assert (first.entries_purged, first.total.objects) == (6, 0)
    assert len(await bucket.keys()) == 6, "readers of the topic have a grace that begins now"
    await backend.advance(READER_GRACE_MS + 1)
    second = await bucket.run()
    assert (second.entries_purged, second.total.objects) == (0, 5)
    assert await bucket.keys() == {shared.key}


async def test_r19_uploads_to_a_deleted_topic_are_orphans(bucket: Bucket) -> None:
    backend = bucket.backend
    led = await backend.led()
    late = await bucket.segment(led.key)
    await backend.store.delete_topic(led.key.topic_id)
    assert (await bucket.try_append(led, late)).verdict is Verdict.GONE
    await backend.advance(HOUR_MS + 1)
    await bucket.run()
    assert await bucket.keys() == set()


async def test_foreign_objects_and_marks_are_never_touched(bucket: Bucket) -> None:
    keys = {
        CLUSTER_ID_KEY,
        metadata_progress_key(1),
        metadata_progress_key(2),
        "backup/metadata.db",
        "wal-shared/0-notes",
        "wal-shared/README.txt",
        "topics/notes",
        "upload-staging/mine",
        "store-probe/mine",
    }
    for key in keys:
        await bucket.put(key)
    await bucket.backend.advance(10_000 * HOUR_MS)
    summary = await bucket.run()
    assert await bucket.keys() == keys
    assert (summary.total.objects, summary.foreign) == (0, 2), "the others are not even listed"


async def test_what_dead_processes_left_of_uploads_and_checks_goes(bucket: Bucket) -> None:
    await bucket.staging()
    await bucket.probe()
    await bucket.backend.advance(HOUR_MS)
    await bucket.run()
    assert len(await bucket.keys()) == 2
    await bucket.backend.advance(1)
    summary = await bucket.run()
    assert await bucket.keys() == set()
    assert {place: tally.objects for place, tally in summary.garbage.items()} == {
        (GarbageCause.LEFT_BEHIND, ObjectKind.STAGING): 1,
        (GarbageCause.LEFT_BEHIND, ObjectKind.PROBE): 1,
    }


async def test_an_upload_of_a_machine_whose_clock_is_slow_stays(memory_bucket: Bucket) -> None:
    key = await memory_bucket.staging(created_ms=memory_bucket.backend.now_ms - 100 * HOUR_MS)
    await memory_bucket.run()
    assert await memory_bucket.keys() == {key}


async def test_r24_records_that_name_no_key_of_ours_are_left_to_a_newer_version(memory_bucket: Bucket) -> None:
    backend: Backend = memory_bucket.backend
    led = await backend.led()
    await led.append(batch(1))  # under a key that no builder here makes
    other = await memory_bucket.append(led)
    await backend.store.advance_log_start(led.key, 2)
    await backend.advance(10 * HOUR_MS)
    summary = await memory_bucket.run()
    assert other.key not in await memory_bucket.keys()
    assert (summary.total.objects, summary.records_left, summary.failed) == (1, 1, 0)
    assert len(await backend.garbage()) == 1
