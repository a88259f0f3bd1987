"""Passes beside writers and other passes, and passes that are cut short anywhere."""

from __future__ import annotations

import asyncio

import pytest
from builders import assert_dense, batch
from harness import Backend
from retention_stores import DAY_MS, led, starts, watched, write

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.metadata.contract import ScanRange
from streamhouse.metadata.rows import compactions
from streamhouse.metadata.rows.compactions import CompactionRows


class Killed(Exception):
    """What stands for the end of the process."""


async def test_two_passes_and_a_writer_at_the_same_time_leave_what_is_young_and_no_gap(backend: Backend) -> None:
    logs = [await led(backend, f"topic-{number}") for number in range(6)]
    for log in logs:
        await write(log, *[100] * 7, age_ms=2 * DAY_MS)
        await write(log, 100)
    other = await backend.open_another()

    async def write_on() -> None:
        for _ in range(5):
            for log in logs:
                await write(log, 100)

    one, two, _ = await asyncio.gather(
        Retention(metadata=backend.store).run(), Retention(metadata=other).run(), write_on()
    )
    assert one.failures == two.failures == []
    for log in logs:
        log_start, watermark = await starts(backend, log.key)
        assert (log_start, watermark) == (7, 13)
        assert_dense(await backend.entries(log.key), log_start=7, watermark=13)
    again = await Retention(metadata=other).run()
    assert (again.moved, again.failed) == (0, 0)


async def test_a_log_cut_by_size_under_a_writer_never_keeps_less_than_its_limit(backend: Backend) -> None:
    log = await led(backend, retention_bytes="500", retention_ms="-1")
    other = await backend.open_another()

    async def write_on() -> None:
        for _ in range(30):
            await write(log, 100)

    async def delete_on(retention: Retention) -> None:
        while writing.done() is False:
            assert (await retention.run()).failures == []
            (state,) = await backend.store.get_partitions([log.key])
            assert state.high_watermark - state.log_start_offset >= min(5, state.high_watermark)

    writing = asyncio.create_task(write_on())
    await asyncio.gather(writing, delete_on(Retention(metadata=backend.store)), delete_on(Retention(metadata=other)))
    await Retention(metadata=backend.store).run()
    assert await starts(backend, log.key) == (25, 30)


async def test_records_committed_between_plan_and_move_stay(backend: Backend) -> None:
    log = await led(backend, retention_ms="0")
    await write(log, 100, 100, age_ms=DAY_MS)
    store = watched(backend.store)

    async def commit(_: object) -> None:
        await write(log, 100, age_ms=DAY_MS)

    store.before_move = commit
    assert (await Retention(metadata=store).run()).freed.entries == 2
    assert await starts(backend, log.key) == (2, 3)


async def test_a_plan_that_another_pass_has_overtaken_does_not_lower_the_log_start(backend: Backend) -> None:
    log = await led(backend)
    await write(log, 100, 100, 100, age_ms=2 * DAY_MS)
    retention = Retention(metadata=backend.store)
    (step,) = [one async for one in retention.steps(plan_only=True)]
    await write(log, 100)
    await backend.store.advance_log_start(log.key, 4)
    assert step.item is not None
    assert await retention.apply(step.item)
    assert await starts(backend, log.key) == (4, 4)


@pytest.mark.parametrize("before_chunk", [1, 2, 3])
async def test_the_next_process_finishes_what_a_killed_pass_has_left(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, before_chunk: int
) -> None:
    """The log start had moved, and some entries below it were still there. Nothing else is due in the log."""
    log = await led(backend)
    await write(log, *[100] * 8, age_ms=2 * DAY_MS)
    gone = sorted(entry.object_key for entry in await backend.entries(log.key))
    await write(log, 100)
    monkeypatch.setattr(compactions, "DROP_CHUNK_ENTRIES", 3)
    with monkeypatch.context() as patched:
        kill_before_chunk(patched, before_chunk)
        assert (await Retention(metadata=backend.store).run()).failed == 1
    assert (await starts(backend, log.key))[0] == 8
    store = watched(await backend.open_another())
    retention = Retention(metadata=store)
    summary = await retention.run()
    assert (summary.moved, summary.failed) == (0, 0)
    await backend.advance(1)
    assert sorted(await backend.garbage()) == gone
    await retention.run()
    assert store.calls["advance_log_start"] == 1, "it asks once a day"
    await backend.advance(DAY_MS - 1)
    await write(log, 100)
    await backend.store.advance_log_start(log.key, 9)
    await retention.run()
    assert store.calls["advance_log_start"] == 1
    await backend.advance(2)
    await retention.run()
    assert store.calls["advance_log_start"] == 2


def kill_before_chunk(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The store fails before it drops that chunk of entries."""
    genuine, chunks = CompactionRows._drop_chunk, [0]

    async def drop(store: CompactionRows, key: PartitionKey, after: int) -> int | None:
        chunks[0] += 1
        if chunks[0] == number:
            raise Killed
        return await genuine(store, key, after)

    monkeypatch.setattr(CompactionRows, "_drop_chunk", drop)


async def test_the_same_pass_object_finishes_what_failed_in_it(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await led(backend)
    await write(log, 100, 100, age_ms=2 * DAY_MS)
    gone = sorted(entry.object_key for entry in await backend.entries(log.key))
    retention = Retention(metadata=backend.store)
    with monkeypatch.context() as patched:
        kill_before_chunk(patched, 1)
        assert (await retention.run()).failed == 1
    assert await backend.garbage() == []
    assert (await retention.run()).failed == 0
    await backend.advance(1)
    assert sorted(await backend.garbage()) == gone


@pytest.mark.parametrize("at_call", range(1, 13))
async def test_a_pass_cancelled_at_any_call_leaves_a_log_that_the_next_pass_completes(
    backend: Backend, at_call: int
) -> None:
    logs = [await led(backend, f"topic-{number}", retention_bytes="200") for number in range(2)]
    for log in logs:
        await write(log, 100, 100, age_ms=2 * DAY_MS)
        await write(log, 100, 100, 100)
    store = CancelsAt(backend.store, at_call)
    retention = Retention(metadata=store)  # type: ignore[arg-type]
    store.task = asyncio.create_task(retention.run())
    await asyncio.wait([store.task])
    assert store.task.cancelled() == (store.calls >= at_call)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("retention-")]
    for log in logs:
        # In one read: what was cancelled may still be at work in the store.
        (page,) = await backend.store.scan_entries([ScanRange(key=log.key, from_offset=0)], limit=10)
        log_start = page.partition.log_start_offset
        assert log_start in (0, 3)
        assert_dense(page.entries, log_start=log_start, watermark=page.partition.high_watermark)
    assert (await retention.run()).failed == 0
    for log in logs:
        assert await starts(backend, log.key) == (3, 5)
        await log.append(batch(1))


class CancelsAt:
    """A store that cancels the pass when the call with that number has been made; the call goes on to its end."""

    def __init__(self, inner: object, at_call: int) -> None:
        self.task: asyncio.Task[object] | None = None
        self.calls = 0
        self._inner = inner
        self._at_call = at_call

    def __getattr__(self, name: str) -> object:
        call = getattr(self._inner, name)

        async def counted(*args: object, **options: object) -> object:
            self.calls += 1
            if self.calls == self._at_call and self.task is not None:
                self.task.cancel()
            return await call(*args, **options)

        return counted
