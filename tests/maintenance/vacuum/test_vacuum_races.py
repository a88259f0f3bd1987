"""Vacuums beside each other and beside writers: no entry ever names an object that is gone (invariants 5 and 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import Backend, LedPartition
from node import Stage, Wrapper, acked, batch, settle, stored
from vacuum_stage import HOUR_MS, OPTIONS, Bucket

from streamhouse.core.randomness import SeededRandomness
from streamhouse.maintenance.vacuum import deletion, vacuum
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import ObjectRef, SliceOutcome, Verdict
from streamhouse.objectstore import memory


class Rounds:
    """Counts the vacuums that have come to their end."""

    def __init__(self) -> None:
        self._ended = 0
        self._changed = asyncio.Condition()

    async def end(self) -> None:
        async with self._changed:
            self._ended += 1
            self._changed.notify_all()

    async def wait_for(self, count: int) -> None:
        async with self._changed:
            enough = self._ended + count
            await self._changed.wait_for(lambda: self._ended >= enough)


class Writer:
    """Uploads and commits; now and then it stalls in between, leaves an orphan, or trims its log."""

    def __init__(self, bucket: Bucket, led: LedPartition, seed: int, rounds: Rounds) -> None:
        self.bucket = bucket
        self.led = led
        self.dice = SeededRandomness(seed)
        self.rounds = rounds
        self.stale = 0

    async def write(self) -> None:
        backend = self.bucket.backend
        ref: ObjectRef = await self.bucket.segment(self.led.key, base=self.led.next_offset)
        if self.dice.uniform(0, 1) < 0.3:
            await backend.advance(HOUR_MS + 1)
            if self.dice.uniform(0, 1) < 0.5:
                await self.rounds.wait_for(3)  # of two vacuums, one has begun after the stall
        outcome = await self.bucket.try_append(self.led, ref)
        while outcome.verdict is Verdict.STALE_OBJECT:
            self.stale += 1
            ref = await self.bucket.segment(self.led.key, base=self.led.next_offset)
            outcome = await self.bucket.try_append(self.led, ref)
        assert outcome.verdict is Verdict.COMMITTED
        self.led.next_offset = outcome.end_offset + 1
        if self.dice.uniform(0, 1) < 0.3:
            await self.bucket.blob()
        if self.dice.uniform(0, 1) < 0.3:
            await backend.store.advance_log_start(self.led.key, self.led.next_offset - 2)


async def test_s2_45_two_vacuums_at_once_beside_writers_never_delete_what_an_entry_names(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MAX_LIST_PAGE", 5)
    monkeypatch.setattr(vacuum, "OBJECTS_PER_PAGE", 3)
    monkeypatch.setattr(vacuum, "RECORDS_PER_BATCH", 2)
    monkeypatch.setattr(deletion, "KEYS_PER_REQUEST", 1)
    backend: Backend = bucket.backend
    rounds = Rounds()
    writers = [Writer(bucket, await backend.led(f"log-{number}"), seed=number, rounds=rounds) for number in range(3)]
    stores = [await backend.open_another() for _ in range(2)]
    done = False

    async def clean(store: Any) -> int:
        runs = 0
        while not done:
            summary = await bucket.vacuum(metadata=store).run()
            assert (summary.failed, summary.gave_up) == (0, False)
            runs += 1
            await rounds.end()
        return runs

    async def write() -> None:
        nonlocal done
        try:
            for _ in range(12):
                await asyncio.gather(*(writer.write() for writer in writers))
                assert await bucket.referenced() <= await bucket.keys()
        finally:
            done = True

    *runs, _ = await asyncio.gather(*(clean(store) for store in stores), write())
    assert min(runs) > 1
    assert sum(writer.stale for writer in writers) > 0, "a vacuum was faster than a stalled writer"
    await backend.advance(2 * HOUR_MS)
    await bucket.run()
    assert await bucket.keys() == await bucket.referenced()
    assert [writer.led.next_offset for writer in writers] == [12, 12, 12]


async def test_two_vacuums_in_step_forget_each_record_once(memory_bucket: Bucket) -> None:
    backend = memory_bucket.backend
    led = await backend.led()
    for _ in range(20):
        await memory_bucket.append(led)
    await backend.store.advance_log_start(led.key, led.next_offset)
    await backend.advance(HOUR_MS + 1)
    other = await backend.open_another()
    both = await asyncio.gather(memory_bucket.run(), memory_bucket.vacuum(metadata=other).run())
    assert sum(summary.total.objects for summary in both) == 20
    assert [(summary.failed, summary.records_left) for summary in both] == [(0, 0)] * 2
    assert await memory_bucket.keys() == set()


# A real leader on SQLite, with its own upload, commit and second upload.


class StallingCommits(Wrapper):
    """The given number of first commits wait until they are let go."""

    def __init__(self, inner: Any, count: int = 1) -> None:
        super().__init__(inner)
        self.left = count
        self.waiting = asyncio.Event()
        self.go = asyncio.Event()
        self.verdicts: list[Verdict] = []

    async def commit_leased(self, *arguments: Any) -> list[SliceOutcome]:
        if self.left > 0:
            self.left -= 1
            self.waiting.set()
            await self.go.wait()
            self.go.clear()
        outcomes: list[SliceOutcome] = await self.inner.commit_leased(*arguments)
        self.verdicts += [outcome.verdict for outcome in outcomes]
        return outcomes


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- what it waits for is a step of a task
            await asyncio.sleep(0)


async def test_r6_r11_a_leader_that_stalls_twice_acknowledges_each_record_once_at_its_offset(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        cluster = stage.cluster
        stalling = StallingCommits(cluster.metadata, count=2)
        node = await stage.node(metadata=stalling)
        topic = await cluster.topic()
        await node.lead(topic)
        (key,) = topic.partition_keys()
        append = node.log.append(key, batch("a", "b"), acks=-1)
        cleaner = Vacuum(metadata=cluster.metadata, objects=cluster.store, options=OPTIONS)
        for _ in range(2):
            await stalling.waiting.wait()
            stalling.waiting.clear()
            cluster.clock.advance(HOUR_MS + 1)
            assert (await cleaner.run()).total.objects == 1
            assert not append.done.done()
            stalling.go.set()
        await acked(append)
        await settle()
        assert stalling.verdicts == [Verdict.STALE_OBJECT, Verdict.STALE_OBJECT, Verdict.COMMITTED]
        assert await stored(cluster, key) == [(0, "a"), (1, "b")]
        cluster.clock.advance(10 * HOUR_MS)
        assert (await cleaner.run()).total.objects == 0
        assert await stored(cluster, key) == [(0, "a"), (1, "b")]
