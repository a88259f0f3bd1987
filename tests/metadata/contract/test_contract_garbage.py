"""R24: garbage is what nothing names and no commit can name any more. References alone do not tell."""

from __future__ import annotations

import asyncio

from builders import START_MS, batch, leaderless_slice, leased_slice
from harness import Backend, LedPartition

from streamhouse.core.ids import AppendId
from streamhouse.metadata.contract import LeasedSlice, ObjectRef, Verdict


async def shared_blob(backend: Backend) -> tuple[LedPartition, LedPartition, ObjectRef, list[LeasedSlice], AppendId]:
    """One blob for two partitions: partition 0's share is committed, partition 1's comes too early and is not."""
    one, two = await backend.led("one"), await backend.led("two")
    blob = backend.object(size=200)
    slices = [
        leased_slice(one.key, blob, epoch=one.epoch, base=0),
        leased_slice(two.key, blob, epoch=two.epoch, base=1, byte_offset=100),
    ]
    append_id = backend.append_id()
    outcomes = await backend.store.commit_leased(append_id, slices)
    assert [each.verdict for each in outcomes] == [Verdict.COMMITTED, Verdict.NOT_YET]
    await backend.store.advance_log_start(one.key, 1)
    await backend.advance(60_000)
    return one, two, blob, slices, append_id


async def test_r24_an_object_that_may_still_be_committed_is_no_garbage(backend: Backend) -> None:
    """Its only entry is dropped, and its other partition's commit is sent again: the records are there."""
    _, two, blob, slices, append_id = await shared_blob(backend)
    assert await backend.store.list_dereferenced(grace_ms=0, limit=10) == []
    assert await backend.store.forget_objects([blob.key]) == set()
    await two.append(batch(1))
    again = await backend.store.commit_leased(append_id, slices)
    assert [each.verdict for each in again] == [Verdict.COMMITTED] * 2
    assert await backend.garbage() == []


async def test_r24_below_the_horizon_it_is_garbage_and_no_commit_brings_it_back(backend: Backend) -> None:
    """The identical commit, with its append id, before and after the object's record is forgotten."""
    _, two, blob, slices, append_id = await shared_blob(backend)
    assert await backend.garbage() == [blob.key]
    await two.append(batch(1))
    for _ in range(2):
        again = await backend.store.commit_leased(append_id, slices)
        assert [(each.verdict, each.repeated) for each in again] == [
            (Verdict.COMMITTED, True),
            (Verdict.STALE_OBJECT, False),
        ]
        assert await backend.store.forget_objects([blob.key]) in ({blob.key}, set())
    assert [entry.object_key == blob.key for entry in await backend.entries(two.key)] == [False]
    assert await backend.unreferenced(blob.key) == {blob.key}


async def test_r24_a_leaderless_blob_is_no_garbage_either_while_it_may_be_committed(backend: Backend) -> None:
    one, two = (await backend.topic(partitions=2, leaderless=True)).partition_keys()
    blob = backend.object(size=200)
    await backend.store.commit_leaderless(backend.append_id(), blob, [leaderless_slice(one)])
    await backend.store.advance_log_start(one, 1)
    await backend.advance(60_000)
    assert await backend.store.list_dereferenced(grace_ms=0, limit=10) == []
    await backend.store.commit_leaderless(backend.append_id(), blob, [leaderless_slice(two, byte_offset=100)])
    assert await backend.garbage() == []


async def test_r24_an_upload_above_the_horizon_is_no_orphan(backend: Backend) -> None:
    young, old = backend.object(), backend.object(created_at_ms=START_MS - 1)
    stamps = {young.key: young.created_at_ms, old.key: old.created_at_ms}
    assert await backend.store.find_unreferenced(stamps) == set()
    await backend.store.raise_gc_horizon(START_MS)
    assert await backend.store.find_unreferenced(stamps) == {old.key}
    await backend.advance(1)
    await backend.store.raise_gc_horizon(START_MS + 1)
    assert await backend.store.find_unreferenced(stamps) == {young.key, old.key}


async def test_r24_vacuum_racing_a_late_commit_deletes_it_or_refuses_it(backend: Backend) -> None:
    """Whatever the order: an object that a vacuum may delete is never named by an entry afterwards."""
    other = await backend.open_another()
    for turn in range(8):
        topic = await backend.topic(f"blobs-{turn}", partitions=2, leaderless=True)
        one, two = topic.partition_keys()
        blob = backend.object(size=200)
        await backend.store.commit_leaderless(backend.append_id(), blob, [leaderless_slice(one)])
        await backend.store.advance_log_start(one, 1)
        await backend.advance(10)

        async def vacuum() -> set[str]:
            await other.raise_gc_horizon(backend.now_ms)
            return {each.key for each in await other.list_dereferenced(grace_ms=0, limit=100)}

        (late,), gone = await asyncio.gather(
            backend.store.commit_leaderless(backend.append_id(), blob, [leaderless_slice(two, byte_offset=100)]),
            vacuum(),
        )
        assert (late.verdict is Verdict.COMMITTED) == (blob.key not in gone)
