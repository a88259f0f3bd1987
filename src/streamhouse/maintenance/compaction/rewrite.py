"""Rewrites the entries of one item into one object: fetches ahead, copies, uploads. It commits nothing.

Sources are mostly small, and each costs a round trip to the object store. So several reads are under way while earlier
bytes are checked, compressed and sent. What is in memory at a time is bounded by READ_AHEAD_BYTES, one block and what
the upload holds, whatever the size of the object; the object is visible only when it is complete.

An error leaves no object that anything refers to. An upload that succeeded and was never committed is left for vacuum
(R24): a commit of it may still be on its way, so it must not be deleted here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from streamhouse.core.errors import CorruptData, ObjectNotFound, ReadPastEnd, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MIB
from streamhouse.formats.segment_v1_index import Index
from streamhouse.formats.segment_v1_reader import RangedReader
from streamhouse.formats.segment_v1_writer import FinishedSegment
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.copying import SegmentCopy
from streamhouse.maintenance.compaction.plan import CompactionItem
from streamhouse.maintenance.compaction.sources import (
    SourceRead,
    block_reads,
    check_footer,
    damaged,
    source_reads,
)
from streamhouse.metadata.contract import SEGMENT_V1, Entry, EntryKind, ObjectRef
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import CompactedKey
from streamhouse.objectstore.topic_requests import caused_by
from streamhouse.wire.buffers import BytesLike

READ_AHEAD_BYTES: Final = 8 * MIB
"""The most bytes of one item that are fetched, or wait to be copied. A single read may be larger."""
_READS_AHEAD: Final = 16
"""The most requests of one item in flight: with 30 ms each, 500 small sources a second."""


class ItemCopy(Protocol):
    """What becomes of the batches of one item, while its bytes come in the order of their offsets."""

    def feed(self, read: SourceRead, buffers: Sequence[memoryview]) -> Sequence[BytesLike]:
        """Take one read and return what is to be written of the object."""
        ...

    def finish(self) -> FinishedSegment | None:
        """The end of the object; None when the entries should stay as they are, and there is nothing to commit."""
        ...


NewCopy = Callable[[CompactionItem], ItemCopy]


def copy_unchanged(item: CompactionItem) -> ItemCopy:
    """Every batch byte for byte."""
    return SegmentCopy(key=item.key, sources=item.sources)


PlanReads = Callable[[PartitionKey, Sequence[Entry], ObjectStore], AsyncGenerator[SourceRead, None]]
"""Says what to fetch of these entries, in the order in which the copy takes it."""

Copied = Callable[[int], Awaitable[None]]
"""Called with the bytes that were read and copied since the last call. It may raise to give the item up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenItem:
    target: Entry
    object: ObjectRef


async def indexed_reads(
    key: PartitionKey, sources: Sequence[Entry], store: ObjectStore
) -> AsyncGenerator[SourceRead, None]:
    """What to fetch. The index of a larger segment is read when its turn comes."""
    for read in source_reads(sources):
        if isinstance(read, SourceRead):
            yield read
            continue
        for part in block_reads(read.source, await _index(key, read.source, store)):
            yield part


async def rewrite_item(
    item: CompactionItem,
    *,
    store: ObjectStore,
    offload: Offload,
    created_ms: int,
    object_id: UUID,
    copied: Copied,
    new_copy: NewCopy = copy_unchanged,
    plan_reads: PlanReads = indexed_reads,
) -> RewrittenItem | None:
    """``created_ms``: the store's time before the first read, which the object's key carries (R6). None when the copy
    found that the entries should stay as they are.

    Raises DamagedObject when a source is missing or fails a check, StoreError.
    """
    key = CompactedKey(
        log=item.key,
        base_offset=item.base_offset,
        end_offset=item.end_offset,
        created_ms=created_ms,
        object_id=object_id,
    )
    copy = new_copy(item)
    reads = fetched_reads(item.key, item.sources, store, plan_reads)
    async with await store.open_upload(str(key)) as upload, aclosing(reads) as fetched:
        async for read, buffers in fetched:
            blocks = await offload.run(copy.feed, read, buffers)
            if blocks:
                await upload.write(blocks)
            await copied(sum(map(len, buffers)))
        finished = await offload.run(copy.finish)
        if finished is None:
            return None
        await upload.write(finished.buffers)
        assert upload.written.size_bytes == finished.size, "an entry's byte range is its whole object (invariant 5)"
        await upload.complete()
    ref = ObjectRef(key=str(key), size_bytes=finished.size, created_at_ms=created_ms)
    return RewrittenItem(target=_target(item, finished, ref), object=ref)


def _target(item: CompactionItem, finished: FinishedSegment, ref: ObjectRef) -> Entry:
    return Entry(
        base_offset=item.base_offset,
        end_offset=item.end_offset,
        kind=EntryKind.COMPACTED,
        object_key=ref.key,
        byte_offset=0,
        byte_length=ref.size_bytes,
        record_count=finished.footer.record_count,
        encoding=SEGMENT_V1,
        min_timestamp_ms=finished.footer.min_timestamp_ms,
        max_timestamp_ms=finished.footer.max_timestamp_ms,
        epoch=max(source.epoch for source in item.sources),
        created_at_ms=ref.created_at_ms,
    )


async def fetched_reads(
    key: PartitionKey, sources: Sequence[Entry], store: ObjectStore, plan_reads: PlanReads = indexed_reads
) -> AsyncGenerator[tuple[SourceRead, Sequence[memoryview]], None]:
    """Every read of these entries with its bytes, in order, fetched ahead. Close it when it is left early.

    Raises DamagedObject when a source is missing or cut off, StoreError.
    """
    ahead: deque[tuple[SourceRead, asyncio.Task[Sequence[memoryview]]]] = deque()
    ahead_bytes = 0
    try:
        async with aclosing(plan_reads(key, sources, store)) as reads:
            async for read in reads:
                while ahead and (len(ahead) == _READS_AHEAD or ahead_bytes + read.size_bytes > READ_AHEAD_BYTES):
                    first, task = ahead.popleft()
                    yield first, await task
                    ahead_bytes -= first.size_bytes
                ahead.append((read, asyncio.create_task(_fetch(key, read, store))))
                ahead_bytes += read.size_bytes
        while ahead:
            first, task = ahead.popleft()
            yield first, await task
    finally:
        for _, task in ahead:
            task.cancel()
        await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)


async def _index(key: PartitionKey, source: Entry, store: ObjectStore) -> Index:
    reader = RangedReader(source.byte_length)
    try:
        while (need := reader.need()) is not None:
            reader.feed(await store.get_range(source.object_key, need.offset, need.length))
        check_footer(reader.footer, key, source)
    except ObjectNotFound as error:
        raise damaged(key, source, error.message, missing=True) from error
    except (CorruptData, ReadPastEnd, UnsupportedVersion) as error:
        raise damaged(key, source, error.message) from error
    return reader.index


async def _fetch(key: PartitionKey, read: SourceRead, store: ObjectStore) -> Sequence[memoryview]:
    try:
        with caused_by({key.topic_id: read.size_bytes}):
            return await store.get_ranges(read.object_key, read.ranges)
    except ObjectNotFound as error:
        raise damaged(key, read.parts[0].source, error.message, missing=True) from error
    except ReadPastEnd as error:
        raise damaged(key, read.parts[-1].source, error.message) from error
