"""What the benchmarks of maintenance share: logs of real commits to work on, and how work is measured.

Values are half random, half text, as facts about compression would have it. CPU counts every thread of the process.
Memory is measured in a process of its own, which did not make the log: what the making left behind would hide growth.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.core.randomness import SystemRandomness
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.offload import ThreadOffload
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
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
    Verdict,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import SegmentKey, SharedBlobKey
from streamhouse.wire.batch import patch, read_header
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch
from versus.watch import usage

P = ParamSpec("P")
T = TypeVar("T")

CLOCK, RANDOMNESS = SystemClock(), SystemRandomness()
MB = 1_000_000
TEXT = b"lorem ipsum dolor sit amet "
COMPACT_ALL = CompactionRules(min_entries=2, max_age_ms=0)
"""Whatever can be compacted is worth it."""


@dataclass(slots=True, kw_only=True)
class LedLog:
    """One partition, and what its leader knows."""

    topic: str
    key: PartitionKey
    epoch: int
    next_offset: int = 0


class Place:
    """One cluster's stores, and a leader of all its partitions."""

    def __init__(self, *, metadata: MetadataStore, store: ObjectStore, offload: ThreadOffload) -> None:
        self.metadata = metadata
        self.store = store
        self.offload = offload

    async def logs(self, topic: str, count: int, configs: Mapping[str, str] | None = None) -> list[LedLog]:
        new = NewTopic(topic_id=TopicId(RANDOMNESS.uuid()), name=topic, partition_count=count, configs=configs or {})
        holder = Holder(agent_id="bench", incarnation=RANDOMNESS.uuid(), wal_id=RANDOMNESS.uuid())
        led = []
        for key in (await self.metadata.create_topic(new)).partition_keys():
            lease = await self.metadata.acquire_partition_lease(key, holder, ttl_ms=3_600_000)
            led.append(LedLog(topic=topic, key=key, epoch=lease.epoch))
        return led

    async def write_blob(self, pieces: Sequence[tuple[LedLog, Sequence[bytes]]]) -> None:
        """One flush: a shared blob with some batches of each of these partitions."""
        stamp_ms = await self.metadata.now_ms()
        writer = BlobWriter(created_at_ms=stamp_ms)
        for log, batches in pieces:
            body = writer.add(log.topic, log.key)
            for batch in batches:
                body.append(batch, read_header(batch))
        blob = writer.finish()
        key = SharedBlobKey(created_ms=stamp_ms, object_id=RANDOMNESS.uuid())
        ref = ObjectRef(key=str(key), size_bytes=blob.size, created_at_ms=stamp_ms)
        await self.store.put(ref.key, blob.buffers)
        places = {piece.key: (piece.byte_offset, piece.byte_length) for piece in blob.slices}
        await self.commit(
            [
                leased_slice(log, ref, places[log.key], run_of(batches), EntryKind.WAL, KAFKA_BATCHES)
                for log, batches in pieces
            ]
        )
        for log, batches in pieces:
            log.next_offset += run_of(batches).record_count

    async def write_segment(self, log: LedLog, batches: Sequence[bytes]) -> None:
        """One uncompressed segment with these batches."""
        stamp_ms, run = await self.metadata.now_ms(), run_of(batches)
        base_offset, placed = log.next_offset, []
        for batch in batches:
            there = bytearray(batch)
            patch(there, 0, base_offset=log.next_offset, leader_epoch=log.epoch)
            placed.append(bytes(there))
            log.next_offset += read_header(batch).record_count
        segment = write_segment([(each, read_header(each)) for each in placed], key=log.key, compression="none")
        key = SegmentKey(
            log=log.key, base_offset=base_offset, epoch=log.epoch, created_ms=stamp_ms, object_id=RANDOMNESS.uuid()
        )
        ref = ObjectRef(key=str(key), size_bytes=segment.size, created_at_ms=stamp_ms)
        await self.store.put(ref.key, segment.buffers)
        at = LedLog(topic=log.topic, key=log.key, epoch=log.epoch, next_offset=base_offset)
        await self.commit([leased_slice(at, ref, (0, segment.size), run, EntryKind.SEGMENT, SEGMENT_V1)])

    async def commit(self, slices: Sequence[LeasedSlice]) -> None:
        for outcome in await self.metadata.commit_leased(AppendId(RANDOMNESS.uuid()), slices):
            assert outcome.verdict is Verdict.COMMITTED, outcome

    def compactor(self, *, store: ObjectStore | None = None) -> Compactor:
        return Compactor(
            metadata=self.metadata,
            store=store or self.store,
            offload=self.offload,
            clock=CLOCK,
            randomness=RANDOMNESS,
            owner="bench",
            options=CompactorOptions(rules=COMPACT_ALL),
        )


@asynccontextmanager
async def place(store: ObjectStore, *, path: Path | str = ":memory:", clock: Clock = CLOCK) -> AsyncIterator[Place]:
    offload = ThreadOffload(2)
    async with SqliteMetadata(path, clock=clock, randomness=RANDOMNESS) as metadata:
        yield Place(metadata=metadata, store=store, offload=offload)
    await offload.close()


def leased_slice(
    log: LedLog, ref: ObjectRef, position: tuple[int, int], run: BatchRun, kind: EntryKind, encoding: str
) -> LeasedSlice:
    """``position``: where the slice begins in the object, and how long it is, in bytes."""
    return LeasedSlice(
        key=log.key,
        epoch=log.epoch,
        base_offset=log.next_offset,
        kind=kind,
        object=ref,
        byte_offset=position[0],
        byte_length=position[1],
        encoding=encoding,
        batches=(run,),
    )


def run_of(batches: Sequence[bytes]) -> BatchRun:
    headers = [read_header(batch) for batch in batches]
    return BatchRun(
        record_count=sum(header.record_count for header in headers),
        byte_length=sum(map(len, batches)),
        min_timestamp_ms=min(header.base_timestamp for header in headers),
        max_timestamp_ms=max(header.max_timestamp for header in headers),
    )


def batches_of(batch_bytes: int, count: int, *, codec: Codec = Codec.NONE) -> list[bytes]:
    """Different batches of records of 1 KB. ``batch_bytes`` counts before compression."""
    source = random.Random(7)
    values = [(source.randbytes(500) + TEXT * 20)[:1000] for _ in range(batch_bytes // 1000 * count)]
    now_ms = CLOCK.wall_ms()  # older records would be retention's
    records = [Record(value=value, timestamp_ms=now_ms) for value in values]
    per_batch = max(1, batch_bytes // 1000)
    return [build_batch(records[at : at + per_batch], codec=codec) for at in range(0, len(records), per_batch)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What some work took."""

    cpu_s: float
    wall_s: float
    peak_growth_mb: float = 0.0
    """By how much the process grew at most. Measured in processes of their own only."""


class Stopwatch:
    """Measures CPU of all threads of this process, and its growth at most since the stopwatch was made."""

    def __init__(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew at what is held now
        self._rss_mb = usage(os.getpid()).rss_mb
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def read(self) -> Spent:
        cpu_s, wall_s = time.process_time() - self._cpu_s, time.perf_counter() - self._wall_s
        return Spent(cpu_s=cpu_s, wall_s=wall_s, peak_growth_mb=usage(os.getpid()).peak_rss_mb - self._rss_mb)


def in_own_process(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of a module in a new process, and return what it returns."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
