"""Retention on a long log: the log start moves at once, the entries below it go in bounded steps."""

from __future__ import annotations

import pytest
from builders import START_MS, assert_dense, batch, compaction_of
from harness import Backend, LedPartition

from streamhouse.core.errors import CompactionConflict
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Entry, ScanRange
from streamhouse.metadata.rows import compactions
from streamhouse.metadata.rows.compactions import CompactionRows

CHUNK = 3
DAY_MS = 86_400_000


class Died(Exception):
    """What stands for the end of the process between two steps."""


def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactions, "DROP_CHUNK_ENTRIES", CHUNK)


def die_before_chunk(monkeypatch: pytest.MonkeyPatch, number: int | None = None) -> list[int]:
    """The step with that number, if any, raises. Returns where the steps are counted that came to their end."""
    genuine, steps = CompactionRows._drop_chunk, [0]

    async def step(store: CompactionRows, key: PartitionKey, after: int) -> int | None:
        if steps[0] + 1 == number:
            raise Died
        last = await genuine(store, key, after)
        steps[0] += 1
        return last

    monkeypatch.setattr(CompactionRows, "_drop_chunk", step)
    return steps


async def log_of(backend: Backend, entries: int) -> tuple[LedPartition, tuple[Entry, ...]]:
    """Two records an entry; the first entry is the newest by far, the others follow day by day."""
    led = await backend.led()
    for number in range(entries):
        await led.append(batch(2, at_ms=START_MS + (1000 if number == 0 else number) * DAY_MS))
    return led, await backend.entries(led.key)


async def dereferenced(backend: Backend) -> list[str]:
    await backend.advance(1)
    return sorted(await backend.garbage())


async def interrupted(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, led: LedPartition, offset: int, *, before_chunk: int
) -> None:
    """Retention up to ``offset`` that ends before that chunk; the steps are whole again afterwards."""
    small_chunks(monkeypatch)
    with monkeypatch.context() as patched:
        die_before_chunk(patched, before_chunk)
        with pytest.raises(Died):
            await backend.store.advance_log_start(led.key, offset)


def keys_of(entries: tuple[Entry, ...]) -> list[str]:
    return sorted(entry.object_key for entry in entries)


@pytest.mark.parametrize(("below", "steps_needed"), [(0, 1), (2, 1), (3, 2), (4, 2), (8, 3)])
async def test_the_entries_below_the_log_start_go_in_bounded_steps(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, below: int, steps_needed: int
) -> None:
    led, before = await log_of(backend, 9)
    small_chunks(monkeypatch)
    steps = die_before_chunk(monkeypatch)
    state = await backend.store.advance_log_start(led.key, 2 * below + 1)
    assert steps == [steps_needed]
    assert state == await backend.state(led.key)
    assert (state.log_start_offset, state.compaction_cursor) == (2 * below + 1, 2 * below)
    assert await dereferenced(backend) == keys_of(before[:below])
    assert await backend.entries(led.key) == before[below:]


async def test_an_interrupted_retention_has_moved_the_log_start_and_dropped_whole_chunks(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, before = await log_of(backend, 9)
    await interrupted(backend, monkeypatch, led, 16, before_chunk=2)
    state = await backend.state(led.key)
    assert (state.log_start_offset, state.high_watermark, state.compaction_cursor) == (16, 18, 16)
    assert await dereferenced(backend) == keys_of(before[:CHUNK])


@pytest.mark.parametrize("again", [0, 16, 17])
@pytest.mark.parametrize("before_chunk", [1, 2, 3])
async def test_a_repeat_finishes_what_an_interrupted_retention_left(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, before_chunk: int, again: int
) -> None:
    led, before = await log_of(backend, 9)
    await interrupted(backend, monkeypatch, led, 16, before_chunk=before_chunk)
    other = await backend.open_another()
    state = await other.advance_log_start(led.key, again)
    assert state.log_start_offset == max(16, again)
    assert await dereferenced(backend) == keys_of(before[:8])
    assert await backend.entries(led.key) == before[8:]


async def test_what_is_not_dropped_yet_is_absent_for_every_lookup(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, before = await log_of(backend, 9)
    await interrupted(backend, monkeypatch, led, 11, before_chunk=1)
    store, key, left = backend.store, led.key, before[5:]
    assert_dense(await backend.entries(key), log_start=11, watermark=18)
    assert await backend.entries(key) == left
    (page,) = await store.scan_entries([ScanRange(key=key, from_offset=3, to_offset=8)], limit=10)
    assert page.entries == ()
    (page,) = await store.scan_entries([ScanRange(key=key, from_offset=0)], limit=2)
    assert (page.entries, page.more) == (left[:2], True)
    for offset, expected in ((0, left[0]), (9, left[0]), (11, left[0]), (12, left[1]), (18, None)):
        assert (await store.find_entry(key, offset)).entry == expected
    for day, expected in ((0, left[0]), (5, left[0]), (6, left[1]), (8, left[3]), (9, None), (1000, None)):
        assert (await store.find_entry_by_timestamp(key, START_MS + day * DAY_MS)).entry == expected
    assert (await store.find_max_timestamp_entry(key)).entry == left[-1]


async def test_a_log_trimmed_to_its_end_is_empty_before_its_entries_are_dropped(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, _ = await log_of(backend, 4)
    await interrupted(backend, monkeypatch, led, 8, before_chunk=1)
    assert await backend.entries(led.key) == ()
    assert (await backend.store.find_entry(led.key, 0)).entry is None
    assert (await backend.store.find_entry_by_timestamp(led.key, 0)).entry is None
    assert (await backend.store.find_max_timestamp_entry(led.key)).entry is None
    await led.append(batch(2, at_ms=START_MS))
    (entry,) = await backend.entries(led.key)
    assert (entry.base_offset, (await backend.state(led.key)).compaction_cursor) == (8, 8)
    assert (await backend.store.find_entry_by_timestamp(led.key, 0)).entry == entry
    assert (await backend.store.find_max_timestamp_entry(led.key)).entry == entry


async def test_r17_what_is_not_dropped_yet_cannot_be_compacted(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, before = await log_of(backend, 9)
    await interrupted(backend, monkeypatch, led, 11, before_chunk=1)
    for first, stop in ((0, 2), (3, 7)):
        stale = compaction_of(led.key, before[first:stop], backend.object(), backend.ids)
        with pytest.raises(CompactionConflict):
            await backend.store.begin_compaction(stale)
    fitting = compaction_of(led.key, before[5:7], backend.object(), backend.ids)
    await backend.store.begin_compaction(fitting)
    await backend.store.advance_log_start(led.key, 11)
    assert await backend.store.get_compaction(led.key) == fitting
    await backend.store.apply_compaction(led.key, fitting.compaction_id)
    assert await backend.entries(led.key) == (fitting.target, *before[7:])


async def test_a_topic_deleted_between_two_steps_leaves_the_rest_to_the_purge(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    led, before = await log_of(backend, 9)
    small_chunks(monkeypatch)
    genuine, other, steps = CompactionRows._drop_chunk, await backend.open_another(), [0]

    async def step(store: CompactionRows, key: PartitionKey, after: int) -> int | None:
        if steps[0] == 1:
            await other.delete_topic(key.topic_id)
        last = await genuine(store, key, after)
        steps[0] += 1
        return last

    monkeypatch.setattr(CompactionRows, "_drop_chunk", step)
    assert (await backend.store.advance_log_start(led.key, 16)).log_start_offset == 16
    assert steps == [2]
    assert await backend.store.purge_deleted_topics(limit=100) == 9 - CHUNK
    assert await dereferenced(backend) == keys_of(before)
