"""Turns the batches of one damaged entry into a new segment, and proves each of them on the way. Pure: no IO, no clock.

    a slice of a shared blob       the entry alone says where its batches lie, as for every reader
    a segment with its index       block by block, each with the CRC that the index gives it
    a segment without its index    batch by batch from the first byte behind the head: raw blocks lie end to end, so
                                   they are a run of batches. Base offset and leader epoch are under no CRC then, so
                                   only the one value that each can have is taken: the offset that is next, the epoch
                                   that led there

Every batch must be whole under its own CRC, have a record for each of its offsets, and lie at the offset that is next;
together they must be exactly the offsets and records of the entry. Else it is a DamagedObject, and no segment comes of
it. Where key compaction has left holes (R18), which offset is next is not known: without the index such a segment
cannot be proven.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Final

from streamhouse.core.errors import CorruptBatch, CorruptData, CorruptSegment, DamagedObject, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_BATCH_BYTES
from streamhouse.formats.segment_v1 import ByteRange
from streamhouse.formats.segment_v1_writer import FinishedSegment, SegmentWriter
from streamhouse.maintenance.compaction.copying import Placed, SourceWalk
from streamhouse.maintenance.compaction.rewrite import PlanReads
from streamhouse.maintenance.compaction.sources import (
    READ_BYTES,
    SourcePart,
    SourceRead,
    block_reads,
    damaged,
    source_reads,
)
from streamhouse.maintenance.repair.layout import SegmentLayout
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.metadata.contract import Entry, EntryKind
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.wire.batch import HEADER_BYTES, BatchHeader, validate
from streamhouse.wire.buffers import BytesLike

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12  # a batch's length counts the bytes after itself


class SalvageCopy:
    """The new segment of one entry. ``layout`` is None for a slice of a shared blob."""

    def __init__(self, *, key: PartitionKey, entry: Entry, layout: SegmentLayout | None, epochs: EpochLine) -> None:
        is_sparse = layout is not None and layout.is_sparse
        self._key = key
        self._entry = entry
        self._epochs = epochs
        self._writer = SegmentWriter(key=key, compression="lz4", sparse=is_sparse)
        self._walk: SourceWalk | UnindexedWalk
        if layout is not None and layout.index is None:
            self._walk = UnindexedWalk(key=key, entry=entry, layout=layout)
        else:
            self._walk = SourceWalk(key=key, sources=[entry], thinned=is_sparse)

    def feed(self, read: SourceRead, buffers: Sequence[memoryview]) -> list[BytesLike]:
        """Take one read and return the blocks that are full. Raises DamagedObject, LimitExceeded."""
        ready: list[BytesLike] = []
        for batch, header in self._walk.batches(read, buffers):
            self._check_epoch(header)
            ready.extend(self._writer.append(batch, header))
        return ready

    def finish(self) -> FinishedSegment:
        """Close the segment. Raises DamagedObject when the batches are not all that the entry speaks of."""
        self._walk.check_ended()
        finished = self._writer.finish()
        footer, entry = finished.footer, self._entry
        if footer.record_count != entry.record_count:
            problem = f"its batches hold {footer.record_count} records, its entry says {entry.record_count}"
            raise damaged(self._key, entry, problem)
        return finished

    def _check_epoch(self, header: BatchHeader) -> None:
        epoch = header.partition_leader_epoch
        lowest = highest = self._entry.epoch
        if self._entry.kind is EntryKind.COMPACTED:
            lowest, highest = self._epochs.between(header.base_offset, header.last_offset)
        if not lowest <= epoch <= highest:
            problem = f"the batch at offset {header.base_offset} has leader epoch {epoch}, and {highest} led there"
            raise damaged(self._key, self._entry, problem)


class UnindexedWalk:
    """The batches of a segment without its index, out of reads that come in order. Holds the beginning of one batch."""

    def __init__(self, *, key: PartitionKey, entry: Entry, layout: SegmentLayout) -> None:
        if layout.is_sparse:
            problem = "key compaction has left holes in it, and without its index nothing proves which"
            raise damaged(key, entry, problem)
        self._key = key
        self._entry = entry
        self._is_exact = layout.is_exact
        self._left_bytes = layout.batch_bytes.length
        self._next_offset = entry.base_offset
        self._rest = b""

    def batches(self, read: SourceRead, buffers: Sequence[memoryview]) -> Iterator[Placed]:
        """The batches that end in these bytes. What follows the last one is left alone. Raises DamagedObject."""
        for data in buffers:
            try:
                yield from self._whole_batches(self._rest + data if self._rest else data)
            except (CorruptData, UnsupportedVersion) as error:
                raise self._damaged(error) from error

    def check_ended(self) -> None:
        """Raises DamagedObject when there are fewer batches than the entry has offsets, or more."""
        if self._next_offset != self._entry.end_offset + 1:
            problem = f"its batches end before offset {self._next_offset}, its entry at {self._entry.end_offset}"
            raise damaged(self._key, self._entry, problem)
        if self._is_exact and self._left_bytes:
            raise damaged(self._key, self._entry, f"{self._left_bytes} bytes between its last batch and its index")

    def _whole_batches(self, data: memoryview | bytes) -> Iterator[Placed]:
        view, position = memoryview(data), 0
        while self._next_offset <= self._entry.end_offset and (size := self._size_at(view, position)):
            header = validate(view, position)
            if header.base_offset != self._next_offset or header.last_offset > self._entry.end_offset:
                raise CorruptSegment(
                    f"segment: a batch has offsets {header.base_offset} to {header.last_offset} where"
                    f" {self._next_offset} is next, and {self._entry.end_offset} the last one"
                )
            yield view[position : position + size], header
            self._next_offset = header.next_offset
            self._left_bytes -= size
            position += size
        self._rest = bytes(view[position:]) if self._next_offset <= self._entry.end_offset else b""

    def _size_at(self, view: memoryview, position: int) -> int:
        """The size of the batch that begins there; 0 when it ends in a later read."""
        available = len(view) - position
        if not self._left_bytes or available < min(HEADER_BYTES, self._left_bytes):
            return 0
        if available < HEADER_BYTES:
            raise CorruptBatch(f"record batch: {available} bytes are left for it")
        (length,) = _LENGTH.unpack_from(view, position + _LENGTH_AT)
        size = _LENGTH_END + length
        if not HEADER_BYTES <= size <= min(self._left_bytes, MAX_BATCH_BYTES):
            raise CorruptBatch(f"record batch of {size} bytes, {self._left_bytes} bytes of its segment are left")
        return size if size <= available else 0

    def _damaged(self, error: CorruptData | UnsupportedVersion) -> DamagedObject:
        problem = f"without its index, from offset {self._next_offset} on: {error.message}"
        if self._entry.kind is EntryKind.COMPACTED and self._next_offset == self._entry.base_offset:
            problem += "; its blocks may be compressed, and only the index says where each of them begins"
        return damaged(self._key, self._entry, problem)


def salvage_reads(layout: SegmentLayout | None) -> PlanReads:
    """What to fetch of the entry, for the copy above."""

    async def plan(key: PartitionKey, sources: Sequence[Entry], store: ObjectStore) -> AsyncGenerator[SourceRead, None]:
        (entry,) = sources
        for read in _reads_of(entry, layout):
            yield read

    return plan


def _reads_of(entry: Entry, layout: SegmentLayout | None) -> Iterator[SourceRead]:
    if layout is None:
        # A slice needs no index, so every one of these is a read.
        yield from (read for read in source_reads([entry]) if isinstance(read, SourceRead))
    elif layout.index is not None:
        yield from block_reads(entry, layout.index)
    else:
        wanted = layout.batch_bytes
        for offset in range(wanted.offset, wanted.end, READ_BYTES):
            part = SourcePart(source=entry, range=ByteRange(offset=offset, length=min(READ_BYTES, wanted.end - offset)))
            yield SourceRead(object_key=entry.object_key, parts=(part,))
