"""One item becomes one object: what is fetched ahead, how much is in memory, what an error leaves behind."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from compaction_faults import SteppedStore
from compaction_ground import Ground, WrittenLog, an_item, damage, small_log, some_batch

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import DamagedObject, StoreUnavailable
from streamhouse.core.randomness import SystemRandomness
from streamhouse.formats.segment_v1_reader import verify_segment
from streamhouse.log.offload import InlineOffload, ThreadOffload
from streamhouse.maintenance.compaction import rewrite
from streamhouse.maintenance.compaction.rewrite import RewrittenItem, rewrite_item
from streamhouse.metadata.contract import EntryKind
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.local import LocalStore
from streamhouse.wire.records import Record

MIB = 1 << 20


class Watching(SteppedStore):
    """Counts the bytes that were fetched and not copied yet, and fails on demand."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.fetched = 0
        self.copied = 0
        self.most_ahead = 0
        self.gets = 0
        self.fail_at: str | None = None

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if name == self.fail_at:
            raise StoreUnavailable("away")
        answer = await call()
        if name == "get_range":
            self.gets += 1
            self.fetched += len(answer)
            self.most_ahead = max(self.most_ahead, self.fetched - self.copied)
        return answer

    async def heard(self, size_bytes: int) -> None:
        self.copied += size_bytes


async def rewritten(log: WrittenLog, store: Watching, offload: Any = None) -> RewrittenItem:
    return await rewrite_item(
        an_item(log.key, await log.entries()),
        store=store,
        offload=offload or InlineOffload(),
        created_ms=log.ground.backend.now_ms,
        object_id=log.ground.backend.uuid(),
        copied=store.heard,
    )


async def log_of_large(ground: Ground, kind: EntryKind, entries: int) -> WrittenLog:
    rng, log = random.Random(1), await ground.log()
    for _ in range(entries):
        await log.write(*[{"records": [Record(value=rng.randbytes(MIB - 200))]}] * 9, kind=kind)
    return log


@pytest.mark.parametrize("kind", [EntryKind.WAL, EntryKind.SEGMENT])
async def test_what_is_fetched_ahead_is_bounded_whatever_the_size_of_the_entries(
    sqlite_ground: Ground, kind: EntryKind
) -> None:
    log = await log_of_large(sqlite_ground, kind, 3)
    store = Watching(sqlite_ground.memory)
    made = await rewritten(log, store)
    # The read that is being copied is still counted, beside those that are ahead of it.
    assert store.most_ahead <= rewrite.READ_AHEAD_BYTES + 4 * MIB
    assert verify_segment(await sqlite_ground.memory.get(made.object.key)).footer.end_offset == log.next_offset - 1


async def test_small_sources_are_fetched_side_by_side(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground, 20)
    store = Watching(sqlite_ground.memory)
    most = 0

    class Slow(Watching):
        waiting = 0

        async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            nonlocal most
            if name == "get_range":
                self.waiting += 1
                most = max(most, self.waiting)
            answer = await super().step(name, call)
            self.waiting -= name == "get_range"
            return answer

    store = Slow(sqlite_ground.memory)
    await rewritten(log, store)
    assert (store.gets, most) == (20, 16)


async def test_the_target_says_what_the_object_holds(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground, 5)
    entries = await log.entries()
    made = await rewritten(log, Watching(sqlite_ground.memory))
    segment = verify_segment(await sqlite_ground.memory.get(made.object.key))
    target, footer = made.target, segment.footer
    assert b"".join(segment.runs()) == log.bytes
    assert (target.base_offset, target.end_offset, target.record_count) == (
        footer.base_offset,
        footer.end_offset,
        footer.record_count,
    )
    assert (target.min_timestamp_ms, target.max_timestamp_ms) == (footer.min_timestamp_ms, footer.max_timestamp_ms)
    assert (target.byte_offset, target.byte_length, made.object.size_bytes) == (0, len(segment.data), len(segment.data))
    assert (target.object_key, target.created_at_ms) == (made.object.key, made.object.created_at_ms)
    assert target.epoch == entries[-1].epoch


@pytest.mark.parametrize("step", ["open_upload", "get_range", "write", "complete"])
async def test_r7_an_error_leaves_no_object(sqlite_ground: Ground, step: str) -> None:
    log = await small_log(sqlite_ground)
    store = Watching(sqlite_ground.memory)
    before = [info.key async for info in sqlite_ground.memory.list()]
    store.fail_at = step
    with pytest.raises(StoreUnavailable):
        await rewritten(log, store)
    assert [info.key async for info in sqlite_ground.memory.list()] == before


@pytest.mark.parametrize("kind", [EntryKind.WAL, EntryKind.SEGMENT])
@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "index"])
async def test_invariant_5_a_damaged_large_source_is_found(sqlite_ground: Ground, kind: EntryKind, how: str) -> None:
    ground = sqlite_ground
    log = await log_of_large(ground, kind, 2)
    before = len([info.key async for info in ground.memory.list()])
    entry = (await log.entries())[1]
    if how == "missing":
        await ground.memory.delete([entry.object_key])
        before -= 1
    elif how == "cut":
        data = bytes(await ground.memory.get(entry.object_key))
        await ground.memory.delete([entry.object_key])
        await ground.memory.put(entry.object_key, data[: len(data) // 2])
    else:
        end = entry.byte_offset + entry.byte_length
        await damage(ground, entry, at=end - 120 if how == "index" else None)
    with pytest.raises(DamagedObject) as error:
        await rewritten(log, Watching(ground.memory))
    assert (error.value.object_key, error.value.base_offset) == (entry.object_key, entry.base_offset)
    assert error.value.missing == (how == "missing")
    assert len([info.key async for info in ground.memory.list()]) == before


async def test_on_threads_and_a_real_directory(sqlite_ground: Ground, tmp_path: Path) -> None:
    """The same code on what an agent has: files, a pool of threads, direct IO where the file system can do it."""
    rng, log = random.Random(3), await sqlite_ground.log()
    for kind in (EntryKind.WAL, EntryKind.SEGMENT) * 3:
        await log.write(*[some_batch(rng) for _ in range(200)], kind=kind)
    offload = ThreadOffload(2)
    async with await LocalStore.open(tmp_path / "store", clock=SystemClock(), randomness=SystemRandomness()) as local:
        for info in [info async for info in sqlite_ground.memory.list()]:
            await local.put(info.key, await sqlite_ground.memory.get(info.key))
        made = await rewritten(log, Watching(local), offload)
        assert b"".join(verify_segment(await local.get(made.object.key)).runs()) == log.bytes
    await offload.close()
