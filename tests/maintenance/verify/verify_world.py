"""Logs to verify: real metadata, real formats, real commits, objects in memory, and hands that damage all of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol
from uuid import UUID

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.formats.segment_v1_writer import SegmentWriter
from streamhouse.formats.shared_blob_v1 import place_slice
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.leased.pending import run_of
from streamhouse.maintenance.verify import Finding, FindingKind, Verifier, VerifyDepth, VerifyOptions, VerifyProgress
from streamhouse.maintenance.verify.options import VerifySummary
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    BatchRun,
    Compaction,
    CompactionSource,
    Entry,
    EntryKind,
    HeldLease,
    Holder,
    LeaderlessSlice,
    LeasedSlice,
    MetadataStore,
    NewTopic,
    ObjectRef,
    PartitionState,
    ScanRange,
    Topic,
    Verdict,
    WriteMode,
)
from streamhouse.objectstore.contract import ObjectStore, WrappedStore
from streamhouse.objectstore.keys import CompactedKey, SegmentKey, SharedBlobKey
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload
from streamhouse.wire.batch import iter_batches, patch, read_header, validate
from streamhouse.wire.records import Record, build_batch, decode_records

START_MS = 1_700_000_000_000
TTL_MS = 30_000
BLOCK_BYTES = 200


class Rows(Protocol):
    """Changes rows of the store as a person with a database client would."""

    async def run(self, statement: str, *values: object) -> None: ...


class SqliteRows:
    def __init__(self, path: Path) -> None:
        self.path = path

    async def run(self, statement: str, *values: object) -> None:
        raw = [value.bytes if isinstance(value, UUID) else value for value in values]
        with closing(sqlite3.connect(self.path)) as database:
            changed = database.execute(statement, raw).rowcount
            database.commit()
        assert changed, statement


class PostgresRows:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def run(self, statement: str, *values: object) -> None:
        import asyncpg

        for number in range(1, len(values) + 1):
            statement = statement.replace("?", f"${number}", 1)
        connection = await asyncpg.connect(self._dsn)
        try:
            done = await connection.execute(statement, *values)
        finally:
            await connection.close()
        assert not done.endswith(" 0"), statement


@dataclass(slots=True)
class Written:
    """One partition's log: who leads it, and where it goes on."""

    topic: Topic
    key: PartitionKey
    epoch: int = 0
    next_offset: int = 0
    holder: Holder | None = None

    def batch(self, count: int, *, at: int | None = None, first_ms: int | None = None, **fields: Any) -> bytes:
        """A batch at the end of the log; a record's value is its offset, and its time grows with it."""
        base = self.next_offset if at is None else at
        first = START_MS + base if first_ms is None else first_ms
        records = [Record(value=b"%06d" % (base + each), timestamp_ms=first + each) for each in range(count)]
        made = build_batch(records, base_offset=base, leader_epoch=self.epoch, **fields)
        if at is None:
            self.next_offset += count
        return made

    def batches(self, *counts: int, **fields: Any) -> list[bytes]:
        return [self.batch(count, **fields) for count in counts]


@dataclass(slots=True)
class Told:
    """What a verification has said."""

    summary: VerifySummary
    findings: list[Finding] = field(default_factory=list)
    progress: list[VerifyProgress] = field(default_factory=list)

    @property
    def kinds(self) -> list[FindingKind]:
        return [finding.kind for finding in self.findings]


class Meddled(WrappedStore):
    """Counts requests and what is under way; something else may happen before each of them."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.heads: list[str] = []
        self.gets: list[tuple[str, int, int]] = []
        self.most_bytes = 0
        self.most_calls = 0
        self.before: Callable[[], Awaitable[None]] | None = None
        """Awaited before each HEAD and each GET of a range."""
        self.damage: Callable[[str, int, memoryview], memoryview] | None = None
        """Changes what a GET of a range answers."""
        self._bytes = 0
        self._calls = 0

    async def _meddle(self) -> None:
        before, self.before = self.before, None  # what it does reads objects, too
        if before is not None:
            await before()
            self.before = before

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        self.gets.append((key, offset, length))
        self._bytes, self._calls = self._bytes + length, self._calls + 1
        self.most_bytes, self.most_calls = max(self.most_bytes, self._bytes), max(self.most_calls, self._calls)
        try:
            await self._meddle()
            data = await self._inner.get_range(key, offset, length)
        finally:
            self._bytes, self._calls = self._bytes - length, self._calls - 1
        if self.damage is not None:
            data = self.damage(key, offset, data)
        return Fetched(data=data, size_bytes=offset + length)

    async def _head(self, key: str) -> ObjectInfo:
        self.heads.append(key)
        await self._meddle()
        return await self._inner.head(key)

    async def _get(self, key: str) -> Fetched:
        data = await self._inner.get(key)
        return Fetched(data=data, size_bytes=len(data))

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._inner.put(key, views)

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return await self._inner.list_page(prefix, start_after=start_after)

    async def _delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def _open_upload(self, key: str) -> Upload:
        return await self._inner.open_upload(key)


class World:
    def __init__(
        self,
        metadata: MetadataStore,
        *,
        set_clock: Callable[[int], Awaitable[None]],
        rows: Rows | None = None,
    ) -> None:
        self.metadata = metadata
        self.rows = rows
        self.now_ms = START_MS
        self._set_clock = set_clock
        self.randomness = SeededRandomness(5)
        self.store = Meddled(MemoryStore(clock=ManualClock()))

    async def advance(self, ms: int = 1_000) -> None:
        self.now_ms += ms
        await self._set_clock(self.now_ms)

    # Writing.

    async def topic(self, name: str = "orders", partitions: int = 1, *, leaderless: bool = False) -> list[Written]:
        topic = await self.metadata.create_topic(
            NewTopic(
                topic_id=TopicId(self.randomness.uuid()),
                name=name,
                partition_count=partitions,
                configs={},
                write_mode=WriteMode.LEADERLESS if leaderless else WriteMode.LEASED,
            )
        )
        logs = [Written(topic, key) for key in topic.partition_keys()]
        if not leaderless:
            for log in logs:
                await self.take_over(log)
        return logs

    async def take_over(self, log: Written) -> None:
        """The next epoch, of another agent."""
        if log.holder is not None:
            await self.metadata.release_leases(log.holder, [HeldLease(key=log.key, epoch=log.epoch)])
        uuid = self.randomness.uuid
        log.holder = Holder(agent_id=f"agent-{log.epoch}", incarnation=uuid(), wal_id=uuid())
        log.epoch = (await self.metadata.acquire_partition_lease(log.key, log.holder, ttl_ms=TTL_MS)).epoch

    async def segment(self, log: Written, made: Sequence[bytes], *, block_bytes: int = BLOCK_BYTES) -> Entry:
        data = segment_of(log.key, made, block_bytes=block_bytes)
        base = read_header(made[0]).base_offset
        stamp = await self.metadata.now_ms()
        name = SegmentKey(
            log=log.key, base_offset=base, epoch=log.epoch, created_ms=stamp, object_id=self.randomness.uuid()
        )
        ref = ObjectRef(key=str(name), size_bytes=len(data), created_at_ms=stamp)
        await self.store.put(ref.key, data)
        piece = LeasedSlice(
            key=log.key,
            epoch=log.epoch,
            base_offset=base,
            kind=EntryKind.SEGMENT,
            object=ref,
            byte_offset=0,
            byte_length=len(data),
            encoding=SEGMENT_V1,
            batches=runs_of(made),
        )
        await self._commit([piece])
        return (await self.entries(log))[-1]

    async def blob(self, *parts: tuple[Written, Sequence[bytes]]) -> list[Entry]:
        """One flush of several leased partitions into a shared blob. Returns their entries, in the same order."""
        ref, slices = await self._put_blob(parts)
        await self._commit(
            [
                LeasedSlice(
                    key=log.key,
                    epoch=log.epoch,
                    base_offset=read_header(made[0]).base_offset,
                    kind=EntryKind.WAL,
                    object=ref,
                    byte_offset=start,
                    byte_length=length,
                    encoding=KAFKA_BATCHES,
                    batches=runs_of(made),
                )
                for (log, made), (start, length) in zip(parts, slices, strict=True)
            ]
        )
        return [(await self.entries(log))[-1] for log, _ in parts]

    async def leaderless(self, log: Written, made: Sequence[bytes]) -> list[Entry]:
        """A leaderless commit; duplicates among the batches are dropped, which cuts the slice into runs (R14)."""
        ref, ((start, length),) = await self._put_blob([(log, made)])
        piece = LeaderlessSlice(
            key=log.key, byte_offset=start, byte_length=length, encoding=KAFKA_BATCHES, batches=runs_of(made)
        )
        (outcome,) = await self.metadata.commit_leaderless(self._append_id(), ref, [piece])
        assert outcome.verdict is Verdict.COMMITTED, outcome
        log.next_offset = outcome.high_watermark
        return await self.entries(log)

    async def compact(
        self, log: Written, sources: Sequence[Entry], *, keep: Callable[[int], bool] | None = None
    ) -> Entry:
        """Replace consecutive entries by one LZ4 segment; ``keep`` says which offsets key compaction leaves."""
        made = [batch for entry in sources for batch in await self.batches_of(entry)]
        if keep is not None:
            made = [thinned(batch, keep) for batch in made]
        data = segment_of(log.key, made, compression="lz4", sparse=keep is not None)
        base, end, stamp = sources[0].base_offset, sources[-1].end_offset, await self.metadata.now_ms()
        name = CompactedKey(
            log=log.key, base_offset=base, end_offset=end, created_ms=stamp, object_id=self.randomness.uuid()
        )
        ref = ObjectRef(key=str(name), size_bytes=len(data), created_at_ms=stamp)
        await self.store.put(ref.key, data)
        target = replace(
            sources[-1],
            base_offset=base,
            kind=EntryKind.COMPACTED,
            object_key=ref.key,
            byte_offset=0,
            byte_length=len(data),
            record_count=sum(read_header(each).record_count for each in made),
            encoding=SEGMENT_V1,
            min_timestamp_ms=min(entry.min_timestamp_ms for entry in sources),
            # A batch that key compaction has emptied says -1, which is later than a record dated before 1970.
            max_timestamp_ms=max(
                *(entry.max_timestamp_ms for entry in sources), *(read_header(each).max_timestamp for each in made)
            ),
        )
        compaction = Compaction(
            key=log.key,
            compaction_id=self.randomness.uuid(),
            sources=tuple(
                CompactionSource(base_offset=each.base_offset, end_offset=each.end_offset, object_key=each.object_key)
                for each in sources
            ),
            target=target,
            object=ref,
        )
        await self.metadata.begin_compaction(compaction)
        await self.metadata.apply_compaction(log.key, compaction.compaction_id)
        return target

    async def vacuum(self) -> int:
        """Delete what nothing refers to, as soon as the contract allows it. Returns how many objects."""
        await self.advance()
        await self.metadata.raise_gc_horizon(await self.metadata.now_ms())
        garbage = [one.key for one in await self.metadata.list_dereferenced(grace_ms=0, limit=1000)]
        await self.store.delete(garbage)
        await self.metadata.forget_objects(garbage)
        return len(garbage)

    # Looking.

    async def entries(self, log: Written) -> list[Entry]:
        (page,) = await self.metadata.scan_entries([ScanRange(key=log.key, from_offset=0)], limit=10_000)
        return list(page.entries)

    async def state(self, log: Written) -> PartitionState:
        (found,) = await self.metadata.get_partitions([log.key])
        return found

    async def batches_of(self, entry: Entry) -> list[bytes]:
        """The batches of an entry at their offsets."""
        data = bytearray(await self.store.get_range(entry.object_key, entry.byte_offset, entry.byte_length))
        if entry.kind is not EntryKind.WAL:
            runs = [bytes(run) for run in read_segment(data).runs()]
        else:
            place_slice(
                data,
                byte_length=entry.byte_length,
                record_count=entry.record_count,
                base_offset=entry.base_offset,
                leader_epoch=entry.epoch,
            )
            runs = [bytes(data)]
        return [run[at : at + header.size] for run in runs for at, header in iter_batches(run, allow_compacted=True)]

    async def verify(
        self,
        depth: VerifyDepth = VerifyDepth.DEEP,
        *,
        topics: Sequence[str] | None = None,
        metadata: Any = None,
        **options: Any,
    ) -> Told:
        findings: list[Finding] = []
        progress: list[VerifyProgress] = []

        def tell(item: Finding | VerifyProgress) -> None:
            if isinstance(item, Finding):
                findings.append(item)
            else:
                progress.append(item)

        verifier = Verifier(
            metadata=metadata or self.metadata,
            store=self.store,
            randomness=self.randomness,
            tell=tell,
            options=VerifyOptions(depth=depth, **options),
        )
        summary = await verifier.run(topics)
        assert summary is verifier.summary
        return Told(summary, findings, progress)

    # Damaging.

    async def change_object(self, object_key: str, change: Callable[[bytearray], bytes | bytearray | None]) -> None:
        """``change`` alters the bytes in place, or returns others."""
        data = bytearray(await self.store.get(object_key))
        changed = change(data)
        await self.store.delete([object_key])
        await self.store.put(object_key, bytes(data if changed is None else changed))

    async def flip(self, object_key: str, position: int, bit: int = 0x01) -> None:
        def change(data: bytearray) -> None:
            data[position] ^= bit

        await self.change_object(object_key, change)

    async def change_entry(self, log: Written, entry: Entry, **columns: object) -> Entry:
        """Change columns of an entry's row. Returns the row as it is then, if the names are those of the contract."""
        assert self.rows is not None
        for column, value in columns.items():
            await self.rows.run(
                f"UPDATE entries SET {column} = ? WHERE topic_id = ? AND partition_id = ? AND end_offset = ?",
                value,
                log.key.topic_id,
                log.key.partition,
                entry.end_offset,
            )
        names = {"min_timestamp": "min_timestamp_ms", "max_timestamp": "max_timestamp_ms"}
        return replace(entry, **{names.get(column, column): value for column, value in columns.items()})

    async def drop_entry(self, log: Written, entry: Entry) -> None:
        assert self.rows is not None
        await self.rows.run(
            "DELETE FROM entries WHERE topic_id = ? AND partition_id = ? AND end_offset = ?",
            log.key.topic_id,
            log.key.partition,
            entry.end_offset,
        )

    async def change_partition(self, log: Written, column: str, value: object) -> None:
        assert self.rows is not None
        await self.rows.run(
            f"UPDATE partitions SET {column} = ? WHERE topic_id = ? AND partition_id = ?",
            value,
            log.key.topic_id,
            log.key.partition,
        )

    # Steps.

    async def _put_blob(
        self, parts: Sequence[tuple[Written, Sequence[bytes]]]
    ) -> tuple[ObjectRef, list[tuple[int, int]]]:
        stamp = await self.metadata.now_ms()
        writer = BlobWriter(created_at_ms=stamp)
        for log, made in parts:
            body = writer.add(log.topic.name, log.key)
            for each in made:
                body.append(each, validate(each))
        blob = writer.finish()
        name = SharedBlobKey(created_ms=stamp, object_id=self.randomness.uuid())
        ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=stamp)
        await self.store.put(ref.key, blob.buffers)
        return ref, [(piece.byte_offset, piece.byte_length) for piece in blob.slices]

    async def _commit(self, pieces: Sequence[LeasedSlice]) -> None:
        for outcome in await self.metadata.commit_leased(self._append_id(), pieces):
            assert outcome.verdict is Verdict.COMMITTED, outcome

    def _append_id(self) -> AppendId:
        return AppendId(self.randomness.uuid())


def runs_of(made: Sequence[bytes]) -> tuple[BatchRun, ...]:
    return tuple(run_of(read_header(each)) for each in made)


def segment_of(
    key: PartitionKey,
    made: Sequence[bytes],
    *,
    compression: Literal["none", "lz4"] = "none",
    block_bytes: int = BLOCK_BYTES,
    sparse: bool = False,
    **claims: Any,
) -> bytes:
    """A segment of these batches. ``claims`` replace fields of each header that the writer is told: an index and a
    footer that lie about their batches, under right CRCs."""
    writer = SegmentWriter(key=key, compression=compression, target_block_bytes=block_bytes, sparse=sparse)
    out = bytearray()
    for each in made:
        header = read_header(each)
        for buffer in writer.append(each, header._replace(**claims)):
            out += buffer
    for buffer in writer.finish().buffers:
        out += buffer
    return bytes(out)


def thinned(batch: bytes, keep: Callable[[int], bool]) -> bytes:
    """The batch without the records that key compaction removes; it keeps its first and last offset (R18)."""
    header = read_header(batch)
    records = [record for record in decode_records(batch) if keep(record.offset)]
    made = bytearray(build_batch(records, base_offset=header.base_offset, last_offset=header.last_offset))
    patch(made, 0, base_offset=header.base_offset, leader_epoch=header.partition_leader_epoch)
    return bytes(made)
