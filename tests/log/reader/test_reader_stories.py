"""Whole stories from seeds: a log that grows, is compacted and trimmed on a store that fails, under readers who check.

And the same reader on the stores and threads that a real process has.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from reading import START_MS, Library, Shelf, StillClock, batches, records_in, settle

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import CorruptData, OffsetOutOfRange, StreamHouseError, UnsupportedVersion
from streamhouse.core.limits import KIB, MIB
from streamhouse.core.randomness import SeededRandomness, SystemRandomness
from streamhouse.log.offload import ThreadOffload
from streamhouse.log.reader.cursor import ReadRequest
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.faults import FaultTimes, FaultyStore, SeededFaults, StoreFault
from streamhouse.objectstore.local import LocalStore
from virtual_time import VirtualTimeLoop

RATES = {
    StoreFault.UNAVAILABLE: 0.05,
    StoreFault.CORRUPTED: 0.05,
    StoreFault.TRUNCATED: 0.05,
    StoreFault.LATENCY: 0.2,
    StoreFault.TIMEOUT_BEFORE: 0.01,
}
BATCHES = 60


class Story:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log_start = 0
        self.written = False

    async def run(self) -> list[tuple[str, int, int]]:
        """What was asked of the store."""
        async with Library() as library:
            shelf = await library.shelf()
            faulty = FaultyStore(
                library.store,
                plan=SeededFaults(SeededRandomness(self.rng.randrange(1000)), RATES),
                randomness=SeededRandomness(self.rng.randrange(1000)),
                times=FaultTimes(silence_ms=3_000),
            )
            reader = library.reader(
                store=faulty,  # writers have retries of their own: here only readers meet the faults
                block_cache_bytes=self.rng.choice([0, 4 * KIB, MIB]),
                read_ahead_bytes=self.rng.choice([0, 4 * KIB, MIB]),
                max_cached_entries=self.rng.choice([1, 10, 1000]),
                index_cache_bytes=self.rng.choice([0, 10 * KIB]),
                max_downloads=self.rng.choice([1, 4]),
            )
            async with asyncio.timeout(100_000):
                await asyncio.gather(self.write(shelf), *(self.read(shelf, reader) for _ in range(3)))
            await settle()
            assert reader._objects._gate.calls_under_way == 0
            return library.store.gets

    async def write(self, shelf: Shelf) -> None:
        while shelf.next_offset < BATCHES * 2:
            await asyncio.sleep(self.rng.uniform(0, 0.3))
            what = self.rng.random()
            if what < 0.7:
                kind = self.rng.choice(["segment", "blob"])
                how = {"compression": self.rng.choice(["none", "lz4"])} if kind == "segment" else {}
                await shelf.add(self.rng.randint(1, 8), kind=kind, size=self.rng.randint(5, 200), **how)  # type: ignore[arg-type]
            elif what < 0.9:
                await self.compact(shelf)
            else:
                await self.trim(shelf)
        self.written = True

    async def compact(self, shelf: Shelf) -> None:
        entries = await shelf.entries()
        if len(entries) < 3:
            return
        first = self.rng.randrange(len(entries) - 2)
        chosen = entries[first : first + self.rng.randint(2, 4)]
        base, end = chosen[0].base_offset, chosen[-1].end_offset
        made = batches((end - base + 1) // 2, at=base, epoch=shelf.epoch)
        await shelf.compact(chosen, made, compression=self.rng.choice(["none", "lz4"]))
        await shelf.library.store.delete([each.object_key for each in chosen])  # without any grace, to be unkind

    async def trim(self, shelf: Shelf) -> None:
        entries = await shelf.entries()
        self.log_start = max(
            self.log_start, self.rng.randint(self.log_start, max(self.log_start, shelf.next_offset // 2))
        )
        await shelf.library.metadata.advance_log_start(shelf.key, self.log_start)
        await shelf.library.store.delete([each.object_key for each in entries if each.end_offset < self.log_start])

    async def read(self, shelf: Shelf, reader: LogReader) -> None:
        """Every record once, in order; a jump only where the log was trimmed."""
        rng = random.Random(self.rng.random())
        offset = 0
        while not (self.written and offset >= shelf.next_offset):
            request = ReadRequest(key=shelf.key, offset=offset, max_bytes=1 << 20)
            (outcome,) = await reader.read_many(
                [request], max_bytes=rng.choice([1, 500, 1 << 20]), max_wait_ms=rng.choice([0, 200])
            )
            if isinstance(outcome, OffsetOutOfRange):
                assert offset < outcome.log_start_offset <= self.log_start
                offset = outcome.log_start_offset
            elif isinstance(outcome, StreamHouseError):
                assert outcome.retriable or isinstance(outcome, CorruptData | UnsupportedVersion), outcome
            else:
                for found, value in records_in(outcome):
                    if found >= offset:
                        assert (found, value) == (offset, str(offset))
                        offset += 1
                assert offset == outcome.next_offset
            await asyncio.sleep(rng.uniform(0, 0.1))


@pytest.mark.parametrize("seed", range(20))
def test_readers_see_every_record_once_and_in_order_whatever_happens(seed: int) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(Story(seed).run())


def test_the_same_seed_tells_the_same_story() -> None:
    def told() -> tuple[float, list[tuple[str, int, int]]]:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            gets = runner.run(Story(99).run())
            return runner.get_loop().time(), gets

    assert told() == told()


async def test_s3_18_on_a_directory_with_threads_and_a_database_file(tmp_path: Path) -> None:
    clock, randomness = SystemClock(), SystemRandomness()
    store = await LocalStore.open(tmp_path / "objects", clock=clock, randomness=randomness)
    metadata = SqliteMetadata(tmp_path / "metadata.db", clock=StillClock(), randomness=randomness)
    offload = ThreadOffload(2)
    async with Library(store=store, metadata=metadata) as library:
        shelf = await library.shelf()
        await shelf.add(30, size=2 * KIB, compression="lz4", target_block_bytes=16 * KIB)
        for kind in ("segment", "blob"):
            await shelf.add(30, kind=kind, size=2 * KIB)  # type: ignore[arg-type]
        reader = LogReader(
            metadata=metadata,
            store=store,
            tail=TailCache(0),
            leading=None,
            clock=clock,
            options=ReaderOptions(),
            offload=offload,
        )
        async with asyncio.timeout(30):
            scans = [shelf.read_all(reader, max_bytes=size) for size in (1, 30 * KIB, MIB)]
            for found in await asyncio.gather(*scans):
                assert found == shelf.expected()
            assert await reader.offset_for_timestamp(shelf.key, START_MS + 70) == (70, START_MS + 70)
            waiting = asyncio.create_task(reader.read(shelf.key, 180, max_bytes=MIB, max_wait_ms=30_000))
            await asyncio.sleep(0)
            await shelf.add(1)
            assert [offset for offset, _ in records_in(await waiting)] == [180, 181]
        await reader.close()
    await offload.close()
    await store.close()
