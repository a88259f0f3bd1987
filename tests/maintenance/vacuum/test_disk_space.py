"""Dereferenced objects that go before their grace is over, on a single node (S3.2, R6, R7, R24)."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from vacuum_stage import SIZE_BYTES, Bucket

from streamhouse.core.errors import StoreUnavailable
from streamhouse.maintenance.upkeep import disk_space as disk_space_module
from streamhouse.maintenance.upkeep.disk_space import DiskSpace, surplus_of
from streamhouse.metadata.contract import DereferencedObject, ObjectRef, Verdict
from streamhouse.objectstore.keys import SharedBlobKey

PIN = UUID(int=77)


def disk_space(bucket: Bucket, *, keep: int = 0, oldest_stamp_ms: int | None = None) -> DiskSpace:
    return DiskSpace(
        metadata=bucket.backend.store,
        objects=bucket.objects,
        keep_bytes=keep * SIZE_BYTES,
        oldest_stamp_ms=lambda: oldest_stamp_ms,
    )


async def five_dereferenced(bucket: Bucket) -> list[ObjectRef]:
    """Five objects of one record each, of which retention has taken all but the last."""
    backend = bucket.backend
    led = await backend.led()
    refs = []
    for _ in range(5):
        refs.append(await bucket.append(led))
        await backend.advance(10)
    await backend.store.advance_log_start(led.key, 4)
    await backend.advance(10)
    return refs


async def test_s3_2_the_oldest_dereferenced_objects_go_until_few_enough_are_left(memory_bucket: Bucket) -> None:
    refs = await five_dereferenced(memory_bucket)
    space = disk_space(memory_bucket, keep=1)
    await space.free()
    assert await memory_bucket.keys() == {refs[3].key, refs[4].key}
    assert (space.deleted_objects, space.deleted_bytes) == (3, 3 * SIZE_BYTES)
    await space.free()
    assert space.deleted_objects == 3


@pytest.mark.parametrize(("keep", "parts"), [(0, [2, 2]), (1, [2, 1]), (3, [1])])
async def test_s3_2_a_large_surplus_is_judged_and_deleted_in_parts_so_that_writes_come_in_between(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, keep: int, parts: list[int]
) -> None:
    monkeypatch.setattr(disk_space_module, "_OBJECTS_AT_ONCE", 2)
    await five_dereferenced(memory_bucket)
    deleted: list[int] = []
    delete = memory_bucket.objects.delete

    async def noted(keys: Sequence[str]) -> None:
        deleted.append(len(keys))
        await delete(keys)

    monkeypatch.setattr(memory_bucket.objects, "delete", noted)
    await disk_space(memory_bucket, keep=keep).free()
    assert deleted == parts


async def test_r24_what_is_still_referenced_stays_however_little_room_there_is(memory_bucket: Bucket) -> None:
    refs = await five_dereferenced(memory_bucket)
    await disk_space(memory_bucket).free()
    assert await memory_bucket.keys() == {refs[4].key}


async def test_r7_what_was_dereferenced_after_the_creation_of_a_live_pin_stays(memory_bucket: Bucket) -> None:
    backend = memory_bucket.backend
    await backend.store.create_pin(PIN, owner="a reader", ttl_ms=60_000)
    await backend.advance(10)
    refs = await five_dereferenced(memory_bucket)
    space = disk_space(memory_bucket)
    await space.free()
    assert await memory_bucket.keys() == {ref.key for ref in refs}
    await backend.store.release_pins([PIN])
    await space.free()
    assert await memory_bucket.keys() == {refs[4].key}


async def test_r6_an_upload_of_the_log_that_is_not_committed_yet_is_not_refused_and_not_deleted(
    memory_bucket: Bucket,
) -> None:
    backend = memory_bucket.backend
    led = await backend.led()
    first = await memory_bucket.append(led)
    under_way = await memory_bucket.segment(led.key, base=led.next_offset)
    await backend.advance(10)
    await backend.store.advance_log_start(led.key, 1)
    await backend.advance(10)
    await disk_space(memory_bucket, oldest_stamp_ms=under_way.created_at_ms).free()
    assert under_way.key in await memory_bucket.keys()
    outcome = await memory_bucket.try_append(led, under_way)
    assert outcome.verdict is Verdict.COMMITTED
    assert first.key in await memory_bucket.keys(), "it has the same stamp as the upload, so the horizon spares it"


async def test_r6_an_upload_under_a_pin_can_be_committed_however_late(memory_bucket: Bucket) -> None:
    backend = memory_bucket.backend
    led = await backend.led()
    await backend.store.create_pin(PIN, owner="a sink", ttl_ms=60_000)
    blob = await memory_bucket.blob()
    await backend.advance(10)
    await disk_space(memory_bucket).free()
    assert (await memory_bucket.try_append(led, blob)).verdict is Verdict.COMMITTED


async def test_r6_an_upload_of_a_stranger_without_a_pin_is_refused_not_lost(memory_bucket: Bucket) -> None:
    backend = memory_bucket.backend
    led = await backend.led()
    blob = await memory_bucket.blob()
    await backend.advance(10)
    await disk_space(memory_bucket).free()
    assert (await memory_bucket.try_append(led, blob)).verdict is Verdict.STALE_OBJECT
    assert blob.key in await memory_bucket.keys(), "only a listing finds it, and a vacuum waits for its grace"


@pytest.mark.parametrize(("keep", "expected"), [(0, 3), (1, 2), (10, 2), (11, 1), (25, 1), (29, 1), (30, 0), (31, 0)])
def test_the_surplus_is_as_little_as_brings_the_rest_below_the_limit(keep: int, expected: int) -> None:
    records = [
        DereferencedObject(
            key=str(SharedBlobKey(created_ms=number, object_id=UUID(int=number))),
            size_bytes=size_bytes,
            dereferenced_at_ms=number,
        )
        for number, size_bytes in enumerate([19, 10, 1])
    ]
    assert list(surplus_of(records, keep_bytes=keep)) == records[:expected]


def test_r24_a_record_that_is_none_of_our_keys_is_left_to_a_newer_version() -> None:
    records = [DereferencedObject(key="some/file", size_bytes=10, dereferenced_at_ms=1)]
    assert list(surplus_of(records, keep_bytes=0)) == []


async def test_another_process_may_forget_the_same_records_meanwhile(memory_bucket: Bucket) -> None:
    await five_dereferenced(memory_bucket)
    first, second = disk_space(memory_bucket), disk_space(memory_bucket)
    await first.free()
    await second.free()
    assert (first.deleted_objects, second.deleted_objects) == (4, 0)


async def test_a_store_that_deletes_nothing_is_asked_about_one_part_only(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space_module, "_OBJECTS_AT_ONCE", 2)
    await five_dereferenced(memory_bucket)
    asked: list[int] = []

    async def refused(keys: Sequence[str]) -> None:
        asked.append(len(keys))
        raise StoreUnavailable("the test says so")

    monkeypatch.setattr(memory_bucket.objects, "delete", refused)
    await disk_space(memory_bucket).free()
    assert asked == [2]


async def test_s3_2_very_small_objects_are_counted_beyond_one_listing(
    memory_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space_module, "_OBJECTS_PER_LISTING", 2)
    refs = await five_dereferenced(memory_bucket)
    await disk_space(memory_bucket, keep=3).free()
    assert await memory_bucket.keys() == {refs[1].key, refs[2].key, refs[3].key, refs[4].key}
