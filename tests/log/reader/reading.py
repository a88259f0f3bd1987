"""Logs to read in tests: real metadata, real formats, real commits, objects in memory, and time that passes at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1_writer import SegmentWriter
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.reader.cursor import ReadResult
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.protocols import LedPartitions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    BatchRun,
    Compaction,
    CompactionSource,
    Entry,
    EntryKind,
    Holder,
    LeaderlessSlice,
    LeasedSlice,
    MetadataStore,
    NewTopic,
    ObjectRef,
    ScanRange,
    SliceOutcome,
    Topic,
    Verdict,
    WriteMode,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.contract import ObjectStore, WrappedStore
from streamhouse.objectstore.keys import CompactedKey, SegmentKey, SharedBlobKey
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload
from streamhouse.wire.batch import BatchHeader, read_header, validate
from streamhouse.wire.buffers import BytesLike
from streamhouse.wire.records import Record, build_batch, decode_records
from virtual_time import START_MS, LoopClock, run_virtually

T = TypeVar("T")


class StillClock:
    def wall_ms(self) -> int:
        return START_MS

    def boot_ms(self) -> int:
        return 0


def at_once(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test on a loop whose hours pass in milliseconds."""

    def run() -> None:
        run_virtually(test())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def settle(turns: int = 60) -> None:
    """Let every task that can run, run."""
    for _ in range(turns):
        await asyncio.sleep(0)


# Batches.


def batch(*values: str, at: int = 0, times: Sequence[int] | None = None, **fields: Any) -> bytes:
    """One batch of these values from offset ``at`` on; ``times`` in ms after START_MS."""
    stamps = times if times is not None else [0] * len(values)
    records = [
        Record(value=value.encode(), timestamp_ms=START_MS + ms) for value, ms in zip(values, stamps, strict=True)
    ]
    return build_batch(records, base_offset=at, **fields)


def batches(count: int, *, at: int = 0, records: int = 2, size: int = 10, epoch: int = -1) -> list[bytes]:
    """Consecutive batches; each value is its own offset, filled up to ``size`` characters."""
    made = []
    for number in range(count):
        base = at + number * records
        values = [f"{base + index}".ljust(size, ".") for index in range(records)]
        made.append(batch(*values, at=base, times=list(range(base, base + records)), leader_epoch=epoch))
    return made


def records_in(result: ReadResult | Iterable[BytesLike]) -> list[tuple[int, str]]:
    buffers = result.batches if isinstance(result, ReadResult) else result
    return [
        (record.offset, (record.value or b"").decode().rstrip("."))
        for each in buffers
        for record in decode_records(each)
    ]


def offsets_in(result: ReadResult | Iterable[BytesLike]) -> list[int]:
    return [offset for offset, _ in records_in(result)]


def run_of(header: BatchHeader) -> BatchRun:
    return BatchRun(
        record_count=header.record_count,
        byte_length=header.size,
        min_timestamp_ms=header.base_timestamp,
        max_timestamp_ms=header.max_timestamp,
    )


# Stores.


class WatchedStore(WrappedStore):
    """Counts reads; holds them back while ``gate`` is closed; may damage what it answers."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.gets: list[tuple[str, int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.before_get: Callable[[str], Awaitable[None]] | None = None
        self.damage: Callable[[str, int, memoryview], memoryview] | None = None

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        self.gets.append((key, offset, length))
        if self.before_get is not None:
            await self.before_get(key)
        await self.gate.wait()
        data = await self._inner.get_range(key, offset, length)
        if self.damage is not None:
            data = self.damage(key, offset, data)
        return Fetched(data=data, size_bytes=offset + length)

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._inner.put(key, views)

    async def _get(self, key: str) -> Fetched:
        data = await self._inner.get(key)
        return Fetched(data=data, size_bytes=len(data))

    async def _head(self, key: str) -> ObjectInfo:
        return await self._inner.head(key)

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return await self._inner.list_page(prefix, start_after=start_after)

    async def _delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def _open_upload(self, key: str) -> Upload:
        return await self._inner.open_upload(key)


# The library: topics, their logs, and readers of them.


class Counted:
    """The metadata as the readers of a library ask it, with a count of their questions."""

    def __init__(self, inner: Any, asked: Counter[str]) -> None:
        self._inner = inner
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        self._asked[name] += 1
        return getattr(self._inner, name)


class Library(AsyncExitStack):
    def __init__(self, *, store: ObjectStore | None = None, metadata: MetadataStore | None = None) -> None:
        super().__init__()
        self.randomness = SeededRandomness(5)
        self.store = WatchedStore(store or MemoryStore(clock=StillClock()))
        self.metadata = metadata or SqliteMetadata(
            ":memory:", clock=StillClock(), randomness=self.randomness, threads=False
        )
        self._asked: Counter[str] = Counter()

    async def __aenter__(self) -> Library:
        await super().__aenter__()
        await self.enter_async_context(self.metadata)
        return self

    @property
    def partition_lookups(self) -> int:
        """How often the readers asked the metadata for partitions; a question may be about many."""
        return self._asked["get_partitions"]

    @property
    def entry_lookups(self) -> int:
        return self._asked["scan_entries"]

    def reader(
        self,
        *,
        metadata: MetadataStore | None = None,
        tail: TailCache | None = None,
        leading: LedPartitions | None = None,
        store: ObjectStore | None = None,
        **options: Any,
    ) -> LogReader:
        made = LogReader(
            metadata=cast(MetadataStore, Counted(metadata or self.metadata, self._asked)),
            store=store or self.store,
            tail=tail or TailCache(1 << 20),
            leading=leading,
            clock=LoopClock(),
            options=ReaderOptions(**{"read_ahead_bytes": 0, **options}),
        )
        self.push_async_callback(made.close)
        return made

    async def topic(self, name: str = "orders", partitions: int = 1, *, leaderless: bool = False) -> Topic:
        return await self.metadata.create_topic(
            NewTopic(
                topic_id=TopicId(self.randomness.uuid()),
                name=name,
                partition_count=partitions,
                configs={},
                write_mode=WriteMode.LEADERLESS if leaderless else WriteMode.LEASED,
            )
        )

    async def shelf(self, name: str = "orders") -> Shelf:
        """A new topic's only partition, led by somebody."""
        return (await self.shelves(name, 1))[0]

    async def shelves(self, name: str, count: int) -> list[Shelf]:
        topic = await self.topic(name, count)
        holder = Holder(agent_id="agent-9", incarnation=self.randomness.uuid(), wal_id=self.randomness.uuid())
        made = []
        for key in topic.partition_keys():
            lease = await self.metadata.acquire_partition_lease(key, holder, ttl_ms=30_000)
            made.append(Shelf(self, topic, key, lease.epoch))
        return made

    def append_id(self) -> AppendId:
        return AppendId(self.randomness.uuid())


class Shelf:
    """One partition's log, written by hand."""

    def __init__(self, library: Library, topic: Topic, key: PartitionKey, epoch: int) -> None:
        self.library = library
        self.topic = topic
        self.key = key
        self.epoch = epoch
        self.next_offset = 0

    async def add(self, count: int = 3, *, kind: Literal["segment", "blob"] = "segment", **how: Any) -> Entry:
        """``count`` batches of two records (see ``batches``) in one object."""
        segment = {name: how.pop(name) for name in ("compression", "target_block_bytes") if name in how}
        made = batches(count, at=self.next_offset, epoch=self.epoch, **how)
        return await (self.add_segment(made, **segment) if kind == "segment" else self.add_blob(made))

    async def add_segment(self, made: Sequence[bytes], **how: Any) -> Entry:
        data, _ = segment_of(self.key, made, **how)
        headers = [validate(each) for each in made]
        name = SegmentKey(
            log=self.key,
            base_offset=self.next_offset,
            epoch=self.epoch,
            created_ms=START_MS,
            object_id=self.library.randomness.uuid(),
        )
        ref = ObjectRef(key=str(name), size_bytes=len(data), created_at_ms=START_MS)
        await self.library.store.put(ref.key, data)
        return await self._commit(
            LeasedSlice(
                key=self.key,
                epoch=self.epoch,
                base_offset=self.next_offset,
                kind=EntryKind.SEGMENT,
                object=ref,
                byte_offset=0,
                byte_length=len(data),
                encoding=SEGMENT_V1,
                batches=tuple(map(run_of, headers)),
            )
        )

    async def add_blob(self, made: Sequence[bytes]) -> Entry:
        """A slice of a shared blob, behind another partition's."""
        writer = BlobWriter(created_at_ms=START_MS)
        other = writer.add("other", PartitionKey(TopicId(self.library.randomness.uuid()), 0))
        for each in batches(2):
            other.append(each, validate(each))
        body = writer.add(self.topic.name, self.key)
        headers = [validate(each) for each in made]
        for each, header in zip(made, headers, strict=True):
            body.append(each, header)
        blob = writer.finish()
        name = SharedBlobKey(created_ms=START_MS, object_id=self.library.randomness.uuid())
        ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=START_MS)
        await self.library.store.put(ref.key, blob.buffers)
        return await self._commit(
            LeasedSlice(
                key=self.key,
                epoch=self.epoch,
                base_offset=self.next_offset,
                kind=EntryKind.WAL,
                object=ref,
                byte_offset=blob.slices[1].byte_offset,
                byte_length=blob.slices[1].byte_length,
                encoding=KAFKA_BATCHES,
                batches=tuple(map(run_of, headers)),
            )
        )

    async def _commit(self, piece: LeasedSlice) -> Entry:
        (outcome,) = await self.library.metadata.commit_leased(self.library.append_id(), [piece])
        assert outcome.verdict is Verdict.COMMITTED, outcome
        self.next_offset = outcome.end_offset + 1
        return (await self.entries())[-1]

    async def entries(self) -> list[Entry]:
        (page,) = await self.library.metadata.scan_entries([ScanRange(key=self.key, from_offset=0)], limit=1000)
        return list(page.entries)

    async def compact(self, entries: Sequence[Entry], made: Sequence[bytes], **how: Any) -> Entry:
        """Replace consecutive entries by one that holds these batches instead; does not delete their objects."""
        sparse = any(read_header(each).record_count != read_header(each).last_offset_delta + 1 for each in made)
        data, footer_records = segment_of(self.key, made, **{"sparse": sparse, **how})
        base, end = entries[0].base_offset, entries[-1].end_offset
        name = CompactedKey(
            log=self.key,
            base_offset=base,
            end_offset=end,
            created_ms=START_MS,
            object_id=self.library.randomness.uuid(),
        )
        ref = ObjectRef(key=str(name), size_bytes=len(data), created_at_ms=START_MS)
        await self.library.store.put(ref.key, data)
        target = replace(
            entries[-1],
            base_offset=base,
            kind=EntryKind.COMPACTED,
            object_key=ref.key,
            byte_offset=0,
            byte_length=len(data),
            record_count=footer_records,
            encoding=SEGMENT_V1,
            min_timestamp_ms=min(read_header(each).base_timestamp for each in made),
            max_timestamp_ms=max(read_header(each).max_timestamp for each in made),
        )
        compaction = Compaction(
            key=self.key,
            compaction_id=self.library.randomness.uuid(),
            sources=tuple(
                CompactionSource(base_offset=each.base_offset, end_offset=each.end_offset, object_key=each.object_key)
                for each in entries
            ),
            target=target,
            object=ref,
        )
        await self.library.metadata.begin_compaction(compaction)
        await self.library.metadata.apply_compaction(self.key, compaction.compaction_id)
        return target

    async def read_all(self, reader: LogReader, *, max_bytes: int = 1 << 20, offset: int = 0) -> list[tuple[int, str]]:
        """Every record from ``offset`` on, read to the end of the log."""
        found: list[tuple[int, str]] = []
        while True:
            result = await reader.read(self.key, offset, max_bytes=max_bytes)
            if result.next_offset == offset:
                assert not result.batches
                return found
            found += [each for each in records_in(result) if each[0] >= offset]
            offset = result.next_offset

    def expected(self, offset: int = 0) -> list[tuple[int, str]]:
        return [(each, f"{each}") for each in range(offset, self.next_offset)]


def segment_of(
    key: PartitionKey,
    made: Sequence[bytes],
    *,
    compression: Literal["none", "lz4"] = "none",
    target_block_bytes: int = 200,
    sparse: bool = False,
) -> tuple[bytes, int]:
    """A segment of these batches, and how many records it holds."""
    writer = SegmentWriter(key=key, compression=compression, target_block_bytes=target_block_bytes, sparse=sparse)
    out = bytearray()
    for each in made:
        for buffer in writer.append(each, validate(each, allow_compacted=sparse)):
            out += buffer
    finished = writer.finish()
    for buffer in finished.buffers:
        out += buffer
    return bytes(out), finished.footer.record_count


async def commit_leaderless(library: Library, topic: Topic, made: Sequence[bytes]) -> SliceOutcome:
    (key,) = topic.partition_keys()
    writer = BlobWriter(created_at_ms=START_MS)
    body = writer.add(topic.name, key)
    headers = [validate(each) for each in made]
    for each, header in zip(made, headers, strict=True):
        body.append(each, header)
    blob = writer.finish()
    name = SharedBlobKey(created_ms=START_MS, object_id=library.randomness.uuid())
    ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=START_MS)
    await library.store.put(ref.key, blob.buffers)
    piece = LeaderlessSlice(
        key=key,
        byte_offset=blob.slices[0].byte_offset,
        byte_length=blob.slices[0].byte_length,
        encoding=KAFKA_BATCHES,
        batches=tuple(map(run_of, headers)),
    )
    (outcome,) = await library.metadata.commit_leaderless(library.append_id(), ref, [piece])
    return outcome
