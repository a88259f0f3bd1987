"""Reading: the tail cache, cold scans from memory and disk, single records, read-ahead, and polls that find nothing.

Metadata is SQLite; batches are 16 KiB of half-random records unless a row says otherwise. "store 20 ms away" is the
memory store with a pause before each answer: what read-ahead is for.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from report import heading, measure, row
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.core.limits import KIB, MIB
from streamhouse.core.randomness import SystemRandomness
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.offload import ThreadOffload
from streamhouse.log.reader.cursor import ReadRequest
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.protocols import BufferedBatch, LedPartition
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    BatchRun,
    EntryKind,
    Holder,
    LeasedSlice,
    MetadataStore,
    NewTopic,
    ObjectRef,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import SegmentKey, SharedBlobKey
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Fetched
from streamhouse.wire.batch import read_header
from streamhouse.wire.records import Record, build_batch

CLOCK, RANDOMNESS = SystemClock(), SystemRandomness()
BATCH_BYTES = 16 * KIB
READ_BYTES = 256 * KIB
LOG_BYTES = 64 * MIB


Write = Callable[["_Place", str], Awaitable[PartitionKey]]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        heading("Reader: the tail cache")
        _tail(runner)
        heading("Reader: cold scans (no block cached), whole path to the batches")
        runner.run(_scans(Path(directory)))
        heading("Reader: single records at random")
        runner.run(_random_reads())
        heading("Reader: read-ahead, store 20 ms away")
        runner.run(_read_ahead())
        heading("Reader: polls that find nothing")
        runner.run(_idle_polls())


def _tail(runner: asyncio.Runner) -> None:
    key = PartitionKey(TopicId(RANDOMNESS.uuid()), 0)
    tail = TailCache(512 * MIB)
    made = _batches(BATCH_BYTES, LOG_BYTES)
    published_s = measure(lambda: (tail.drop(key), tail.publish(key, 0, made))).cpu_s
    row("publish 16 KiB batches", f"{len(made) / published_s / 1e6:,.2f} M batches/s")
    end = tail.end_offset(key) or 0

    def scan() -> None:
        offset = 0
        while offset < end:
            found = tail.read(key, offset, READ_BYTES)
            assert found is not None
            offset = found.next_offset

    row("TailCache.read, 256 KiB of 16 KiB batches", _rate(measure(scan).cpu_s), target="≥ 1 GB/s")
    runner.run(_tail_through_the_reader())


async def _tail_through_the_reader() -> None:
    async with _place(MemoryStore(clock=CLOCK)) as place:
        for batch_bytes, target in ((BATCH_BYTES, "≥ 1 GB/s"), (KIB, "")):
            key = await place.topic(f"tail-{batch_bytes}")
            tail = TailCache(512 * MIB)
            tail.publish(key, 0, _batches(batch_bytes, LOG_BYTES))
            end = tail.end_offset(key) or 0
            reader = place.reader(tail=tail, leading=_Leads(end))

            async def scan(reader: LogReader = reader, key: PartitionKey = key, end: int = end) -> None:
                offset = 0
                while offset < end:
                    offset = (await reader.read(key, offset, max_bytes=READ_BYTES)).next_offset

            name = f"LogReader.read, 256 KiB of {batch_bytes // KIB} KiB batches"
            row(name, _rate(await _median(scan)), target=target)
            await reader.close()


async def _scans(directory: Path) -> None:
    logs: dict[str, Write] = {
        "1 MiB segments": _segments(1 * MIB),
        "32 MiB segments": _segments(32 * MIB),
        "32 MiB segments, LZ4": _segments(32 * MIB, compression="lz4"),
        "256 KiB slices of shared blobs": _slices(256 * KIB),
        "1 MiB segments of 1 KiB batches": _segments(1 * MIB, batch_bytes=KIB),
    }
    local = await LocalStore.open(directory / "objects", clock=CLOCK, randomness=RANDOMNESS)
    stores: dict[str, ObjectStore] = {"memory": MemoryStore(clock=CLOCK), "local directory": local}
    for store_name, store in stores.items():
        async with _place(store) as place:
            for number, (log_name, write) in enumerate(logs.items()):
                key = await write(place, f"log-{number}")
                row(f"{store_name}: {log_name}", _rate(await _median(lambda key=key: _cold_scan(place, key))))
    await local.close()


async def _random_reads() -> None:
    async with _place(MemoryStore(clock=CLOCK)) as place:
        key = await _segments(32 * MIB, batch_bytes=KIB)(place, "random")
        (state,) = await place.metadata.get_partitions([key])
        rng = random.Random(1)
        for name, cache_bytes, count in (("block cached", 512 * MIB, 2000), ("only the index cached", 0, 300)):
            reader = place.reader(block_cache_bytes=cache_bytes)
            offsets = [rng.randrange(state.high_watermark) for _ in range(count)]

            async def reads(reader: LogReader = reader, offsets: Sequence[int] = offsets) -> None:
                for offset in offsets:
                    await reader.read(key, offset, max_bytes=1)

            await reads()
            row(f"one 1 KiB batch, {name}", f"{await _median(reads) / count * 1e6:,.0f} µs")
            await reader.close()


async def _read_ahead() -> None:
    logs: dict[str, Write] = {"32 MiB segments": _segments(32 * MIB), "256 KiB slices": _slices(256 * KIB)}
    async with _place(_FarStore(clock=CLOCK)) as place:
        for number, (name, write) in enumerate(logs.items()):
            key = await write(place, f"log-{number}")
            off_s = await _median(lambda key=key: _cold_scan(place, key, read_ahead_bytes=0), rounds=1)
            on_s = await _median(lambda key=key: _cold_scan(place, key), rounds=3)
            row(f"{name}: off", _rate(off_s))
            row(f"{name}: on", _rate(on_s), ratio=f"{off_s / on_s:.1f} × off")


async def _idle_polls() -> None:
    async with _place(MemoryStore(clock=CLOCK)) as place:
        keys = await place.partitions("idle", 100)
        requests = [ReadRequest(key=key, offset=0, max_bytes=MIB) for key in keys]
        for name, leading in (("led here", _Leads(0)), ("led elsewhere", None)):
            reader = place.reader(leading=leading)

            async def crowd(reader: LogReader = reader) -> None:
                polls = (reader.read_many(requests, max_bytes=MIB, max_wait_ms=100) for _ in range(1000))
                await asyncio.gather(*polls)

            await crowd()
            cpu_s = await _median(crowd, rounds=3, now=time.process_time)
            row(f"1,000 polls of 100 partitions, {name}: CPU a poll", f"{cpu_s / 1000 * 1e3:.2f} ms")
            await reader.close()


# Logs to read.


class _Leads:
    """Leads every partition up to an offset."""

    def __init__(self, end: int) -> None:
        self.visible_end = end
        self.high_watermark = end

    def partition(self, key: PartitionKey) -> LedPartition | None:
        return self

    def buffered_from(self, offset: int) -> Iterable[BufferedBatch]:
        return ()

    async def wait_visible(self, key: PartitionKey, beyond_offset: int) -> None:
        await asyncio.Event().wait()


class _FarStore(MemoryStore):
    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        await asyncio.sleep(0.02)
        return await super()._get_range(key, offset, length)


class _Place:
    def __init__(self, metadata: MetadataStore, store: ObjectStore, offload: ThreadOffload) -> None:
        self.metadata = metadata
        self.store = store
        self._offload = offload

    def reader(self, *, tail: TailCache | None = None, leading: _Leads | None = None, **options: int) -> LogReader:
        return LogReader(
            metadata=self.metadata,
            store=self.store,
            tail=tail or TailCache(0),
            leading=leading,
            clock=CLOCK,
            options=ReaderOptions(**options),  # type: ignore[arg-type]  # only numbers are set here
            offload=self._offload,
        )

    async def partitions(self, name: str, count: int) -> list[PartitionKey]:
        new = NewTopic(topic_id=TopicId(RANDOMNESS.uuid()), name=name, partition_count=count, configs={})
        return (await self.metadata.create_topic(new)).partition_keys()

    async def topic(self, name: str) -> PartitionKey:
        return (await self.partitions(name, 1))[0]

    async def lead(self, key: PartitionKey) -> int:
        holder = Holder(agent_id="bench", incarnation=RANDOMNESS.uuid(), wal_id=RANDOMNESS.uuid())
        return (await self.metadata.acquire_partition_lease(key, holder, ttl_ms=600_000)).epoch

    async def commit(
        self,
        key: PartitionKey,
        epoch: int,
        part: Sequence[bytes],
        ref: ObjectRef,
        kind: EntryKind,
        byte_offset: int,
        byte_length: int,
    ) -> None:
        headers = [read_header(each) for each in part]
        run = BatchRun(
            record_count=sum(header.record_count for header in headers),
            byte_length=sum(map(len, part)),
            min_timestamp_ms=headers[0].base_timestamp,
            max_timestamp_ms=headers[-1].max_timestamp,
        )
        piece = LeasedSlice(
            key=key,
            epoch=epoch,
            base_offset=headers[0].base_offset,
            kind=kind,
            object=ref,
            byte_offset=byte_offset,
            byte_length=byte_length,
            encoding=SEGMENT_V1 if kind is EntryKind.SEGMENT else KAFKA_BATCHES,
            batches=(run,),
        )
        await self.metadata.commit_leased(AppendId(RANDOMNESS.uuid()), [piece])


@asynccontextmanager
async def _place(store: ObjectStore) -> AsyncIterator[_Place]:
    offload = ThreadOffload(2)
    async with SqliteMetadata(":memory:", clock=CLOCK, randomness=RANDOMNESS) as metadata:
        yield _Place(metadata, store, offload)
    await offload.close()


def _segments(
    segment_bytes: int, *, compression: Literal["none", "lz4"] = "none", batch_bytes: int = BATCH_BYTES
) -> Write:
    async def write(place: _Place, topic: str) -> PartitionKey:
        key = await place.topic(topic)
        epoch = await place.lead(key)
        for part in _parts(_batches(batch_bytes, LOG_BYTES), segment_bytes):
            headers = [read_header(each) for each in part]
            segment = write_segment(zip(part, headers, strict=True), key=key, compression=compression)
            stamp, base = CLOCK.wall_ms(), headers[0].base_offset
            name = SegmentKey(log=key, base_offset=base, epoch=epoch, created_ms=stamp, object_id=RANDOMNESS.uuid())
            ref = ObjectRef(key=str(name), size_bytes=segment.size, created_at_ms=stamp)
            await place.store.put(ref.key, segment.buffers)
            await place.commit(key, epoch, part, ref, EntryKind.SEGMENT, 0, segment.size)
        return key

    return write


def _slices(slice_bytes: int) -> Write:
    async def write(place: _Place, topic: str) -> PartitionKey:
        key = await place.topic(topic)
        epoch = await place.lead(key)
        for part in _parts(_batches(BATCH_BYTES, LOG_BYTES), slice_bytes):
            stamp = CLOCK.wall_ms()
            writer = BlobWriter(created_at_ms=stamp)
            body = writer.add(topic, key)
            for each in part:
                body.append(each, read_header(each))
            blob = writer.finish()
            name = SharedBlobKey(created_ms=stamp, object_id=RANDOMNESS.uuid())
            ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=stamp)
            await place.store.put(ref.key, blob.buffers)
            (only,) = blob.slices
            await place.commit(key, epoch, part, ref, EntryKind.WAL, only.byte_offset, only.byte_length)
        return key

    return write


def _batches(batch_bytes: int, total: int) -> list[bytes]:
    """Records of 1 KiB, half noise and half repetition."""
    rng = random.Random(7)
    made: list[bytes] = []
    offset = 0
    values = [rng.randbytes(450) + b"." * 450 for _ in range(64)]
    count = max(1, batch_bytes // KIB)
    while len(made) * batch_bytes < total:
        records = [
            Record(value=values[(offset + number) % 64], timestamp_ms=offset + number) for number in range(count)
        ]
        made.append(build_batch(records, base_offset=offset))
        offset += count
    return made


def _parts(made: Sequence[bytes], size: int) -> list[list[bytes]]:
    per_part = max(1, size // len(made[0]))
    return [list(made[at : at + per_part]) for at in range(0, len(made), per_part)]


async def _cold_scan(place: _Place, key: PartitionKey, **options: int) -> None:
    reader = place.reader(**options)
    offset = 0
    while (result := await reader.read(key, offset, max_bytes=MIB)).batches:
        offset = result.next_offset
    await reader.close()


async def _median(
    call: Callable[[], Awaitable[None]], *, rounds: int = 5, now: Callable[[], float] = time.perf_counter
) -> float:
    taken = []
    for _ in range(rounds):
        before = now()
        await call()
        taken.append(now() - before)
    return sorted(taken)[len(taken) // 2]


def _rate(seconds: float) -> str:
    return f"{LOG_BYTES / seconds / 1e6:,.0f} MB/s"
