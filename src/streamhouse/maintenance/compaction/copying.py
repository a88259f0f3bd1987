"""Turns the bytes of small entries into the bytes of one segment, batch by batch. Pure: no IO, no clock.

    copy = SegmentCopy(key=…, sources=…)
    for read, buffers in …:                  in the order of sources.py
        send(copy.feed(read, buffers))
    finished = copy.finish()
    send(finished.buffers)

A batch is copied as it is: its CRC covers everything from its attributes on, so codec, records, times, producer and
sequence stay what they were (invariant 6). The two fields that the CRC leaves out are set as a reader sets them:

    slice of a shared blob     base offset counted from the entry's, leader epoch that of the entry
    segment                    both stand in the batch already

Entries of one run may have different epochs, because leaders change. Each batch keeps the epoch of the entry that it
came from. The target has one epoch in the index, the highest, which is that of its last records: readers of a segment
take the epoch of a record from its batch and never look at the entry's.

Every batch's CRC and count are checked, every block's CRC, and that the batches of an entry cover exactly its offsets.
Anything else is a DamagedObject that names the entry, and no segment comes of it. Holds one read, one block, and at a
cut between two reads the beginning of one batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from streamhouse.core.errors import (
    CorruptBatch,
    CorruptBlob,
    CorruptData,
    CorruptSegment,
    DamagedObject,
    UnsupportedVersion,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_BATCH_BYTES
from streamhouse.formats.segment_v1_reader import decode_run, read_segment
from streamhouse.formats.segment_v1_writer import FinishedSegment, SegmentWriter
from streamhouse.formats.shared_blob_v1 import UNPLACED_EPOCH, UNPLACED_OFFSET
from streamhouse.maintenance.compaction.sources import SourcePart, SourceRead, check_footer, damaged
from streamhouse.metadata.contract import KAFKA_BATCHES, Entry
from streamhouse.wire.batch import HEADER_BYTES, BatchHeader, iter_batches, patch, validate
from streamhouse.wire.buffers import BytesLike

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12  # a batch's length counts the bytes after itself

Placed = tuple[memoryview, BatchHeader]
"""A batch with its real offset and epoch, and a header that says so."""


class SegmentCopy:
    def __init__(self, *, key: PartitionKey, sources: Sequence[Entry]) -> None:
        self._sources = sources
        self._writer = SegmentWriter(key=key, compression="lz4")
        self._walk = SourceWalk(key=key, sources=sources)

    def feed(self, read: SourceRead, buffers: Sequence[memoryview]) -> bytes:
        """Take one read and return the blocks that are full, end to end. Raises DamagedObject."""
        ready: list[BytesLike] = []
        for batch, header in self._walk.batches(read, buffers):
            ready.extend(self._writer.append(batch, header))
        return b"".join(ready)

    def finish(self) -> FinishedSegment:
        """Close the segment. Raises DamagedObject when the last entry has not come to its end."""
        self._walk.check_ended()
        finished = self._writer.finish()
        footer, first, last = finished.footer, self._sources[0], self._sources[-1]
        covered = (footer.base_offset, footer.end_offset, footer.record_count)
        # Every source was checked by itself, and the writer refuses gaps: this says that no source was left out.
        assert covered == (first.base_offset, last.end_offset, last.end_offset - first.base_offset + 1), covered
        return finished


class SourceWalk:
    """The batches of consecutive entries, in order, out of reads that come in order.

    With ``thinned``, key compaction may have left holes in the entries: each must then have as many records as it says.
    """

    def __init__(self, *, key: PartitionKey, sources: Sequence[Entry], thinned: bool = False) -> None:
        self._key = key
        self._sources = sources
        self._thinned = thinned
        self._at = 0
        """The source that the next bytes belong to."""
        self._current = _SourceBatches(sources[0], thinned=thinned)

    @property
    def source(self) -> Entry:
        """The entry that the last batch came from."""
        return self._sources[self._at]

    def batches(self, read: SourceRead, buffers: Sequence[memoryview]) -> Iterator[Placed]:
        """The batches in one read, at their real offsets. Raises DamagedObject."""
        for part, data in zip(read.parts, buffers, strict=True):
            self._move_to(part.source)
            try:
                yield from self._current.batches(self._key, part, data)
            except (CorruptData, UnsupportedVersion) as error:
                # Also a version: where no CRC covers it, a flipped bit makes a newer one.
                raise self.damaged(error) from error

    def check_ended(self) -> None:
        """Raises DamagedObject when the last entry has not come to its end."""
        problem = self._current.what_is_missing()
        if problem:
            raise damaged(self._key, self.source, problem)

    def damaged(self, error: CorruptData | UnsupportedVersion) -> DamagedObject:
        """The error as one of the present source."""
        return damaged(self._key, self.source, f"{error.message}; {error.hint}" if error.hint else error.message)

    def _move_to(self, source: Entry) -> None:
        if source is self.source:
            return
        self.check_ended()
        self._at += 1
        assert source is self.source, "reads come in the order of their entries"
        self._current = _SourceBatches(source, thinned=self._thinned)


class _SourceBatches:
    """One entry: how far its batches have come."""

    def __init__(self, entry: Entry, *, thinned: bool) -> None:
        self._entry = entry
        self._thinned = thinned
        self._next_offset = entry.base_offset
        self._record_count = 0
        self._left_bytes = entry.byte_length
        """Bytes of a slice that have not become whole batches yet."""
        self._rest = b""
        """The beginning of a batch whose end is in the next read."""

    def batches(self, key: PartitionKey, part: SourcePart, data: memoryview) -> Iterator[Placed]:
        """The batches in these bytes, at their real offsets. Raises CorruptData, UnsupportedVersion."""
        if self._entry.encoding == KAFKA_BATCHES:
            return self._placed(data)
        if part.blocks:
            return self._stored(decode_run(data, part.blocks))
        segment = read_segment(data)
        check_footer(segment.footer, key, self._entry)
        return self._stored(segment.runs())

    def what_is_missing(self) -> str:
        """Empty when the batches cover the entry, and all of its bytes."""
        if self._thinned:
            if self._record_count != self._entry.record_count:
                return f"it has {self._record_count} records, its entry says {self._entry.record_count}"
        elif self._next_offset != self._entry.end_offset + 1:
            return f"its batches end before offset {self._next_offset}, its entry at {self._entry.end_offset}"
        if self._rest:
            return f"{len(self._rest)} bytes behind its last batch"
        return ""

    def _placed(self, data: memoryview) -> Iterator[Placed]:
        """Batches of a shared blob, which have neither offset nor epoch yet."""
        buffer = bytearray(self._rest)  # a copy in any case: the store may have handed out its own bytes
        buffer += data
        position = 0
        while self._has_whole_batch(buffer, position):
            header = validate(buffer, position)
            if (header.base_offset, header.partition_leader_epoch) != (UNPLACED_OFFSET, UNPLACED_EPOCH):
                raise CorruptBlob(
                    f"shared blob slice: a batch has base offset {header.base_offset} and leader epoch"
                    f" {header.partition_leader_epoch}, not {UNPLACED_OFFSET} and {UNPLACED_EPOCH}"
                )
            base_offset, epoch = self._next_offset, self._entry.epoch
            self._advance(base_offset, header)
            patch(buffer, position, base_offset=base_offset, leader_epoch=epoch)
            placed = header._replace(base_offset=base_offset, partition_leader_epoch=epoch)
            yield memoryview(buffer)[position : position + header.size], placed
            position += header.size
            self._left_bytes -= header.size
        self._rest = bytes(memoryview(buffer)[position:])

    def _has_whole_batch(self, buffer: bytearray, position: int) -> bool:
        """False when the next batch ends in a later read. For what makes no batch it is True: the check refuses it."""
        available = len(buffer) - position
        if not available or available == self._left_bytes:
            return available > 0
        if available < HEADER_BYTES:
            return False
        (length,) = _LENGTH.unpack_from(buffer, position + _LENGTH_AT)
        size = _LENGTH_END + length
        if size > min(self._left_bytes, MAX_BATCH_BYTES):
            raise CorruptBatch(f"record batch of {size} bytes, {self._left_bytes} bytes of its slice are left")
        return bool(size <= available)

    def _stored(self, runs: Iterator[memoryview]) -> Iterator[Placed]:
        """Batches of a segment, which have their places."""
        for run in runs:
            for position, header in iter_batches(run, allow_compacted=self._thinned):
                skipped = header.base_offset - self._next_offset
                if skipped < 0 or (skipped and not self._thinned):
                    raise CorruptSegment(
                        f"segment: a batch at offset {header.base_offset} where {self._next_offset} is next"
                    )
                self._advance(header.base_offset, header)
                yield run[position : position + header.size], header

    def _advance(self, base_offset: int, header: BatchHeader) -> None:
        self._next_offset = base_offset + header.last_offset_delta + 1
        self._record_count += header.record_count
        if self._next_offset > self._entry.end_offset + 1:
            raise CorruptData(
                f"its batches reach offset {self._next_offset - 1}, its entry ends at {self._entry.end_offset}"
            )
