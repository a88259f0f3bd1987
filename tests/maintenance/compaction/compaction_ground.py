"""Logs to compact in tests: real commits of real blobs and segments, compactors on them, and readers that compare."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness import Backend

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.offload import InlineOffload
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionItem, CompactionRules, Worth
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    BatchRun,
    Entry,
    EntryKind,
    LeaderlessSlice,
    LeasedSlice,
    MetadataStore,
    ObjectRef,
    Topic,
    Verdict,
)
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import SegmentKey, SharedBlobKey
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.wire.batch import NO_LEADER_EPOCH, BatchHeader, iter_batches, validate
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record, build_batch, decode_records

START_MS = 1_700_000_000_000
AT_ONCE = CompactionRules(
    target_object_bytes=1 << 20, max_object_bytes=2 << 20, large_entry_bytes=1 << 20, min_entries=2, max_age_ms=0
)
"""Whatever can be compacted is worth it."""

Batch = dict[str, Any]
"""Arguments of ``build_batch`` beside the place in the log."""


def some_batch(rng: random.Random, *, producer: bool = True, most_records: int = 6) -> Batch:
    """A batch with any codec, keys and values that may be null, headers, times in any order."""
    records = [
        Record(
            key=rng.choice([None, b"", rng.randbytes(5)]),
            value=rng.choice([None, b"", b"again " * rng.randrange(40), rng.randbytes(rng.randrange(300))]),
            timestamp_ms=START_MS + rng.randrange(-5_000, 5_000),
            headers=tuple(
                Header(key=f"h{n}", value=rng.choice([None, rng.randbytes(4)])) for n in range(rng.randrange(3))
            ),
        )
        for _ in range(rng.randrange(1, most_records + 1))
    ]
    batch: Batch = {"records": records, "codec": rng.choice(list(Codec))}
    if producer and rng.random() < 0.5:
        batch |= {
            "producer_id": rng.randrange(100),
            "producer_epoch": rng.randrange(3),
            "base_sequence": rng.randrange(9),
        }
    return batch


def built(batch: Batch, *, at: int = 0, epoch: int = NO_LEADER_EPOCH) -> bytes:
    return build_batch(
        batch["records"], base_offset=at, leader_epoch=epoch, **{k: v for k, v in batch.items() if k != "records"}
    )


def placed(batches: Sequence[Batch], *, at: int, epoch: int) -> list[bytes]:
    """The batches as a reader gets them from offset ``at`` on."""
    made = []
    for batch in batches:
        made.append(built(batch, at=at, epoch=epoch))
        at += len(batch["records"])
    return made


def run_of(header: BatchHeader) -> BatchRun:
    return BatchRun(
        record_count=header.record_count,
        byte_length=header.size,
        min_timestamp_ms=header.base_timestamp,
        max_timestamp_ms=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def records_of(log: bytes) -> list[Record]:
    return [record for position, _ in iter_batches(log) for record in decode_records(log, position)]


def an_item(key: PartitionKey, sources: Sequence[Entry]) -> CompactionItem:
    return CompactionItem(key=key, sources=tuple(sources), worth=Worth.MANY)


class Ground:
    """One cluster's stores."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.clock = ManualClock(wall_ms=START_MS)
        self.memory = MemoryStore(clock=self.clock)
        self._owners = 0

    @property
    def metadata(self) -> MetadataStore:
        return self.backend.store

    async def log(self, name: str = "orders", *, leaderless: bool = False) -> WrittenLog:
        topic = await self.backend.topic(name, leaderless=leaderless)
        log = WrittenLog(self, topic, leaderless=leaderless)
        if not leaderless:
            await log.change_leader()
        return log

    def compactor(
        self,
        *,
        rules: CompactionRules = AT_ONCE,
        metadata: Any = None,
        store: ObjectStore | None = None,
        owner: str | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Compactor:
        """A compactor as another process would make it."""
        self._owners += 1
        return Compactor(
            metadata=metadata or self.metadata,
            store=store or self.memory,
            offload=InlineOffload(),
            clock=self.clock,
            randomness=SeededRandomness(1000 + self._owners if seed is None else seed),
            owner=owner or f"compactor-{self._owners}",
            options=CompactorOptions(rules=rules, **options),
        )

    async def advance(self, ms: int) -> None:
        """Time passes for the stores and for the processes."""
        self.clock.advance(ms)
        await self.backend.advance(ms)

    async def read(self, key: PartitionKey, offset: int = 0, *, metadata: MetadataStore | None = None) -> bytes:
        """The log from ``offset`` to its end, as a reader of its own gets it."""
        reader = LogReader(
            metadata=metadata or self.metadata,
            store=self.memory,
            tail=TailCache(1 << 20),
            leading=None,
            clock=self.clock,
            options=ReaderOptions(read_ahead_bytes=0),
        )
        found: list[bytes] = []
        try:
            while True:
                result = await reader.read(key, offset, max_bytes=1 << 20)
                if result.next_offset == offset:
                    return b"".join(found)
                found += [bytes(batch) for batch in result.batches]
                offset = result.next_offset
        finally:
            await reader.close()


class WrittenLog:
    """One partition's log, written by hand, and what a reader must find in it."""

    def __init__(self, ground: Ground, topic: Topic, *, leaderless: bool) -> None:
        self.ground = ground
        self.topic = topic
        self.key = topic.partition_keys()[0]
        self.leaderless = leaderless
        self.epoch = 0
        self.next_offset = 0
        self.batches: list[bytes] = []
        """Every batch at its place, in order."""

    @property
    def bytes(self) -> bytes:
        return b"".join(self.batches)

    def bytes_from(self, offset: int) -> bytes:
        """From the batch with ``offset`` on."""
        return b"".join(batch for batch in self.batches if validate(batch).next_offset > offset)

    async def change_leader(self) -> None:
        self.epoch = (await self.ground.backend.lead(self.key)).epoch

    async def write(self, *batches: Batch, kind: EntryKind = EntryKind.WAL) -> Entry:
        """One object with these batches, committed."""
        if kind is EntryKind.SEGMENT:
            await self._write_segment(batches)
        else:
            await self._write_blob(batches)
        return (await self.entries())[-1]

    async def write_some(self, rng: random.Random, objects: int) -> None:
        """Objects of either kind, with batches of every sort, now and then under another leader."""
        for _ in range(objects):
            if not self.leaderless and rng.random() < 0.2:
                await self.change_leader()
            kind = EntryKind.WAL if self.leaderless else rng.choice([EntryKind.WAL, EntryKind.SEGMENT])
            made = [some_batch(rng, producer=not self.leaderless) for _ in range(rng.randrange(1, 5))]
            await (self._write_segment(made) if kind is EntryKind.SEGMENT else self._write_blob(made))

    async def entries(self) -> tuple[Entry, ...]:
        return await self.ground.backend.entries(self.key)

    async def _write_segment(self, batches: Sequence[Batch]) -> None:
        made = placed(batches, at=self.next_offset, epoch=self.epoch)
        segment = write_segment([(batch, validate(batch)) for batch in made], key=self.key)
        name = SegmentKey(
            log=self.key,
            base_offset=self.next_offset,
            epoch=self.epoch,
            created_ms=self.ground.backend.now_ms,
            object_id=self.ground.backend.uuid(),
        )
        ref = ObjectRef(key=str(name), size_bytes=segment.size, created_at_ms=self.ground.backend.now_ms)
        await self.ground.memory.put(ref.key, segment.buffers)
        await self._commit(ref, made, EntryKind.SEGMENT, SEGMENT_V1, byte_offset=0, byte_length=segment.size)

    async def _write_blob(self, batches: Sequence[Batch]) -> None:
        """A slice of a shared blob, between the slices of two other partitions."""
        made = placed(batches, at=self.next_offset, epoch=self.epoch)
        writer = BlobWriter(created_at_ms=self.ground.backend.now_ms)
        neighbour = built({"records": [Record(value=b"another partition")]})
        others = [PartitionKey(TopicId(self.ground.backend.uuid()), 0) for _ in range(2)]
        writer.add("before", others[0]).append(neighbour, validate(neighbour))
        body = writer.add(self.topic.name, self.key)
        for batch in made:
            body.append(batch, validate(batch))
        writer.add("behind", others[1]).append(neighbour, validate(neighbour))
        blob = writer.finish()
        name = SharedBlobKey(created_ms=self.ground.backend.now_ms, object_id=self.ground.backend.uuid())
        ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=self.ground.backend.now_ms)
        await self.ground.memory.put(ref.key, blob.buffers)
        piece = blob.slices[1]
        await self._commit(
            ref, made, EntryKind.WAL, KAFKA_BATCHES, byte_offset=piece.byte_offset, byte_length=piece.byte_length
        )

    async def _commit(
        self,
        ref: ObjectRef,
        made: Sequence[bytes],
        kind: EntryKind,
        encoding: str,
        *,
        byte_offset: int,
        byte_length: int,
    ) -> None:
        metadata, append_id = self.ground.metadata, self.ground.backend.append_id()
        self.batches += made  # before the commit returns: readers beside this may see them earlier than it does
        runs = tuple(run_of(validate(batch)) for batch in made)
        if self.leaderless:
            loose = LeaderlessSlice(
                key=self.key, byte_offset=byte_offset, byte_length=byte_length, encoding=encoding, batches=runs
            )
            (outcome,) = await metadata.commit_leaderless(append_id, ref, [loose])
        else:
            piece = LeasedSlice(
                key=self.key,
                epoch=self.epoch,
                base_offset=self.next_offset,
                kind=kind,
                object=ref,
                byte_offset=byte_offset,
                byte_length=byte_length,
                encoding=encoding,
                batches=runs,
            )
            (outcome,) = await metadata.commit_leased(append_id, [piece])
        assert outcome.verdict is Verdict.COMMITTED, outcome
        assert outcome.end_offset - self.next_offset + 1 == sum(run.record_count for run in runs)
        self.next_offset = outcome.end_offset + 1


async def damage(ground: Ground, entry: Entry, *, at: int | None = None) -> None:
    """Flip one bit in the middle of the entry's bytes."""
    data = bytearray(await ground.memory.get(entry.object_key))
    data[entry.byte_offset + entry.byte_length // 2 if at is None else at] ^= 0x10
    await ground.memory.delete([entry.object_key])
    await ground.memory.put(entry.object_key, bytes(data))


def rules_with(rules: CompactionRules, **changes: Any) -> CompactionRules:
    return replace(rules, **changes)


async def settle(turns: int = 50) -> None:
    """Let every task that can run, run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def small_log(ground: Ground, objects: int = 6, *, seed: int = 1, name: str = "orders") -> WrittenLog:
    log = await ground.log(name)
    await log.write_some(random.Random(seed), objects)
    await ground.advance(1)
    return log


async def assert_one_object(log: WrittenLog) -> None:
    (entry,) = await log.entries()
    assert (entry.kind, entry.encoding) == (EntryKind.COMPACTED, SEGMENT_V1)
    assert (entry.base_offset, entry.end_offset, entry.record_count) == (0, log.next_offset - 1, log.next_offset)
    assert await log.ground.read(log.key) == log.bytes
