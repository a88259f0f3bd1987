"""A task's work: the ranges of a split → Arrow batches of rows, straight from the object store.

Objects are fetched ahead on the connection's loop while Spark's thread decodes what has come. Every byte was checked
when it gets here (log/reader/objects.py). An object that is missing or damaged may have been replaced by compaction,
which keeps offsets: its range is looked up again in the metadata (R7). Only offsets below the log start are lost.
A range is read completely, or the task fails. It never returns fewer rows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import pyarrow as pa

from streamhouse.core.errors import DamagedObject
from streamhouse.core.limits import MIB
from streamhouse.log.offload import InlineOffload
from streamhouse.log.reader.objects import ObjectReader
from streamhouse.log.reader.options import ReaderOptions, ReaderStats
from streamhouse.metadata.contract import SEGMENT_V1, Entry
from streamhouse.spark.connection import Connection
from streamhouse.spark.plan import ReadRange, check_covered, clip
from streamhouse.spark.rows import arrow_schema, decoded_columns, shape
from streamhouse.spark.snapshot import DataLoss, scan_pages, scan_ranges
from streamhouse.wire.columns import StoredBatches, iter_columns

_AHEAD_BYTES: Final = 24 * MIB
"""Bytes being fetched or waiting to be decoded: enough to hide the object store's latency, small enough for many
workers.
"""
_CACHE_BYTES: Final = 2 * _AHEAD_BYTES
_LARGE_SEGMENT_BYTES: Final = 8 * MIB
"""Above, a segment is read some blocks at a time."""
_PART_BYTES: Final = 4 * MIB
_BATCH_BYTES: Final = 8 * MIB
"""Arrow batches are at most twice this; Spark's side keeps several of them outside of its heap."""
_HAND_OVER_BYTES: Final = 2 * MIB
"""How much goes from the loop to Spark's thread at once: each hand-over costs a tenth of a millisecond."""
_MAX_REPLACED: Final = 10
"""How often the same range is looked up again after compaction has moved it."""


def read_ranges(
    connection: Connection, ranges: Sequence[ReadRange], columns: Sequence[str], loss: DataLoss
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of ``ranges``. Raises DamagedObject, CorruptData, StoreError, MetadataError, DataLost."""
    schema, decoded = arrow_schema(columns), decoded_columns(columns)
    for topic, of_topic in groupby(ranges, key=lambda each: each.topic):
        runs = _runs(connection, list(of_topic), loss)
        try:
            batches = iter_columns(
                runs, columns=decoded, timestamp_unit="us", check_crc=False, target_bytes=_BATCH_BYTES
            )
            for batch in batches:
                yield shape(batch, topic, schema)
        finally:
            runs.close()


def _runs(connection: Connection, ranges: Sequence[ReadRange], loss: DataLoss) -> Generator[StoredBatches, None, None]:
    fetcher = _Fetcher(connection, loss)
    blocks = fetcher.blocks(ranges)
    try:
        while handed := connection.run(_some(blocks)):
            yield from handed
    finally:
        connection.run(blocks.aclose())


async def _some(blocks: AsyncIterator[StoredBatches]) -> list[StoredBatches]:
    """The next runs, some at a time; none at the end."""
    taken: list[StoredBatches] = []
    size = 0
    async for run in blocks:
        taken.append(run)
        size += memoryview(run.data).nbytes
        if size >= _HAND_OVER_BYTES:
            break
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Part of one entry that is fetched and decoded together."""

    range: ReadRange
    """The wanted offsets that are in this entry."""
    entry: Entry
    size_bytes: int


class _Fetcher:
    def __init__(self, connection: Connection, loss: DataLoss) -> None:
        self._connection = connection
        self._loss = loss
        self._reader: ObjectReader | None = None

    async def blocks(self, ranges: Sequence[ReadRange]) -> AsyncGenerator[StoredBatches, None]:
        """Yield the batches in the order of the ranges, each range from its first offset to its last."""
        options = ReaderOptions(block_cache_bytes=_CACHE_BYTES, index_cache_bytes=4 * MIB, max_downloads=16)
        store = await self._connection.objects()
        self._reader = ObjectReader(store=store, offload=InlineOffload(), options=options, stats=ReaderStats())
        jobs = self._jobs(ranges)
        ahead: deque[tuple[_Job, asyncio.Task[list[StoredBatches]]]] = deque()
        ahead_bytes = 0
        try:
            while True:
                while ahead_bytes < _AHEAD_BYTES and (job := await anext(jobs, None)) is not None:
                    ahead.append((job, asyncio.create_task(self._run(job))))
                    ahead_bytes += job.size_bytes
                if not ahead:
                    return
                job, task = ahead.popleft()
                runs = await task
                ahead_bytes -= job.size_bytes
                for run in runs:
                    yield run
        finally:
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)
            await self._reader.close()

    async def _jobs(self, ranges: Sequence[ReadRange]) -> AsyncGenerator[_Job, None]:
        async for each in self._resolved(ranges):
            for entry in each.entries:
                from_offset = max(each.from_offset, entry.base_offset)
                to_offset = min(each.to_offset, entry.end_offset + 1)
                part = replace(each, from_offset=from_offset, to_offset=to_offset, entries=(entry,))
                if entry.encoding == SEGMENT_V1 and entry.byte_length > _LARGE_SEGMENT_BYTES:
                    async for job in self._parts(part, entry):
                        yield job
                else:
                    yield _Job(range=part, entry=entry, size_bytes=entry.byte_length)

    async def _resolved(self, ranges: Sequence[ReadRange]) -> AsyncGenerator[ReadRange, None]:
        for each in ranges:
            if not each.is_coarse:
                yield each
                continue
            left = await self._what_is_left(each)
            if left is not None:
                async for part in scan_pages(await self._connection.metadata(), left):
                    yield part

    async def _parts(self, part: ReadRange, entry: Entry) -> AsyncGenerator[_Job, None]:
        """A large segment's blocks, some at a time. Costs one small GET, for its index."""
        try:
            stretches = await self._objects.stretches(part.key, entry, part.from_offset)
        except DamagedObject:  # the job itself finds out what has become of it
            yield _Job(range=part, entry=entry, size_bytes=entry.byte_length)
            return
        at, size, upto = part.from_offset, 0, part.from_offset
        for stretch in stretches:
            if stretch.base_offset >= part.to_offset:
                break
            size += stretch.bytes.length
            upto = min(stretch.end_offset + 1, part.to_offset)
            if size >= _PART_BYTES:
                yield _Job(range=replace(part, from_offset=at, to_offset=upto), entry=entry, size_bytes=size)
                at, size = upto, 0
        if size:
            yield _Job(range=replace(part, from_offset=at, to_offset=upto), entry=entry, size_bytes=size)

    async def _run(self, job: _Job) -> list[StoredBatches]:
        try:
            return await self._fetch(job.range, job.entry)
        except DamagedObject as error:
            return await self._resolve_again(job.range, error)

    async def _fetch(self, part: ReadRange, entry: Entry) -> list[StoredBatches]:
        wanted = []
        for stretch in await self._objects.stretches(part.key, entry, part.from_offset):
            if stretch.base_offset >= part.to_offset:
                break
            wanted.append(stretch)
        self._objects.fetch_ahead(wanted)
        return [
            StoredBatches(
                partition=part.key.partition,
                data=(await self._objects.block(stretch)).data,
                from_offset=part.from_offset,
                to_offset=part.to_offset,
            )
            for stretch in wanted
        ]

    async def _resolve_again(self, part: ReadRange, damage: DamagedObject) -> list[StoredBatches]:
        """R7: the offsets may be elsewhere by now, or below the log start. Raises DamagedObject when they are not."""
        metadata = await self._connection.metadata()
        runs: list[StoredBatches] = []
        for _ in range(_MAX_REPLACED):
            left = await self._what_is_left(part)
            if left is None:
                return runs
            (left,) = await scan_ranges(metadata, [left])
            check_covered(left)
            if any(each.object_key == damage.object_key for each in left.entries):
                raise damage.named(f"{part.topic}/{part.key.partition}") from damage
            try:
                for entry in left.entries:  # the next one to be missing, perhaps
                    runs += await self._fetch(
                        clip(left, part.from_offset, min(entry.end_offset + 1, part.to_offset)), entry
                    )
                    part = replace(part, from_offset=min(entry.end_offset + 1, part.to_offset))
                return runs
            except DamagedObject as error:
                damage = error
        raise damage.named(f"{part.topic}/{part.key.partition}") from damage

    async def _what_is_left(self, part: ReadRange) -> ReadRange | None:
        """The part that the log still holds; the rest is reported as lost."""
        where = f"{part.topic}/{part.key.partition}"
        states = await (await self._connection.metadata()).get_partitions([part.key])
        if not states:
            self._loss.report(f"{where}: the topic was deleted while it was read")
            return None
        start = states[0].log_start_offset
        if start > part.from_offset:
            self._loss.report(f"{where} starts at offset {start} now, {part.from_offset} was to be read")
        if start >= part.to_offset:
            return None
        return replace(part, from_offset=max(start, part.from_offset), entries=())

    @property
    def _objects(self) -> ObjectReader:
        assert self._reader is not None
        return self._reader
