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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from streamhouse.formats.batch_runs import PlacedBatches, run_of, take_run
from streamhouse.formats.segment_v1_reader import decode_run, read_segment
from streamhouse.formats.segment_v1_writer import FinishedSegment, SegmentWriter
from streamhouse.formats.shared_blob_v1 import UNPLACED_EPOCH, UNPLACED_OFFSET
from streamhouse.maintenance.compaction.sources import SourcePart, SourceRead, check_footer, damaged
from streamhouse.metadata.contract import KAFKA_BATCHES, Entry
from streamhouse.wire.batch import HEADER_BYTES, BatchHeader, patch, validate
from streamhouse.wire.buffers import BytesLike

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12  # a batch's length counts the bytes after itself

Placed = tuple[memoryview, BatchHeader]
"""A batch with its real offset and epoch, and a header that says so."""
PlacedRun = tuple[memoryview, PlacedBatches]
"""Batches that lie end to end, with their real offsets and epoch."""
Room = Callable[[], int]
"""How many bytes of batches the next run may have. A batch that is larger than that is a run of its own."""


class SegmentCopy:
    def __init__(self, *, key: PartitionKey, sources: Sequence[Entry]) -> None:
        self._sources = sources
        self._writer = SegmentWriter(key=key, compression="lz4")
        self._walk = SourceWalk(key=key, sources=sources)

    def feed(self, read: SourceRead, buffers: Sequence[memoryview]) -> Sequence[BytesLike]:
        """Take one read and return the blocks that are full. Raises DamagedObject."""
        ready: list[BytesLike] = []
        writer = self._writer
        for batches, run in self._walk.runs(read, buffers, room=lambda: writer.room_bytes):
            ready.extend(writer.append_run(batches, run))
        return ready

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
            with self._naming_the_source():
                for batch, found in self._current.batches(self._key, part, data, room=None):
                    assert isinstance(found, BatchHeader), "without room there are no runs"
                    yield batch, found

    def runs(self, read: SourceRead, buffers: Sequence[memoryview], *, room: Room) -> Iterator[PlacedRun]:
        """The same batches, as many at a time as there is room for. Raises DamagedObject."""
        for part, data in zip(read.parts, buffers, strict=True):
            self._move_to(part.source)
            with self._naming_the_source():
                for batches, found in self._current.batches(self._key, part, data, room=room):
                    yield batches, found if isinstance(found, PlacedBatches) else run_of(found)

    def check_ended(self) -> None:
        """Raises DamagedObject when the last entry has not come to its end."""
        problem = self._current.what_is_missing()
        if problem:
            raise damaged(self._key, self.source, problem)

    def damaged(self, error: CorruptData | UnsupportedVersion) -> DamagedObject:
        """The error as one of the present source."""
        return damaged(self._key, self.source, f"{error.message}; {error.hint}" if error.hint else error.message)

    @contextmanager
    def _naming_the_source(self) -> Iterator[None]:
        try:
            yield
        except (CorruptData, UnsupportedVersion) as error:
            # Also a version: where no CRC covers it, a flipped bit makes a newer one.
            raise self.damaged(error) from error

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

    def batches(
        self, key: PartitionKey, part: SourcePart, data: memoryview, *, room: Room | None
    ) -> Iterator[tuple[memoryview, BatchHeader | PlacedBatches]]:
        """The batches in these bytes, at their real offsets: single ones, and runs if there is ``room`` for them.
        Raises CorruptData, UnsupportedVersion."""
        if self._entry.encoding == KAFKA_BATCHES:
            return self._placed(data, room)
        if part.blocks:
            return self._stored(decode_run(data, part.blocks), room)
        segment = read_segment(data)
        check_footer(segment.footer, key, self._entry)
        return self._stored(segment.runs(), room)

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

    def _placed(self, data: memoryview, room: Room | None) -> Iterator[tuple[memoryview, BatchHeader | PlacedBatches]]:
        """Batches of a shared blob, which have neither offset nor epoch yet."""
        buffer = bytearray(self._rest)  # a copy in any case: the store may have handed out its own bytes
        buffer += data
        view, position, epoch = memoryview(buffer), 0, self._entry.epoch
        while self._has_whole_batch(view, position):
            found = self._run(view, position, room, leader_epoch=epoch) or self._place(view, position)
            yield view[position : position + found.size], found
            position += found.size
            self._left_bytes -= found.size
        self._rest = bytes(view[position:])

    def _place(self, view: memoryview, position: int) -> BatchHeader:
        header = validate(view, position)
        if (header.base_offset, header.partition_leader_epoch) != (UNPLACED_OFFSET, UNPLACED_EPOCH):
            raise CorruptBlob(
                f"shared blob slice: a batch has base offset {header.base_offset} and leader epoch"
                f" {header.partition_leader_epoch}, not {UNPLACED_OFFSET} and {UNPLACED_EPOCH}"
            )
        base_offset, epoch = self._next_offset, self._entry.epoch
        self._advance(base_offset, header)
        patch(view, position, base_offset=base_offset, leader_epoch=epoch)
        return header._replace(base_offset=base_offset, partition_leader_epoch=epoch)

    def _run(
        self, view: memoryview, position: int, room: Room | None, *, leader_epoch: int | None = None
    ) -> PlacedBatches | None:
        """The plain batches from here on; None if the next one has to be looked at by itself."""
        if room is None:
            return None
        run = take_run(
            view,
            position,
            room_bytes=room(),
            next_offset=self._next_offset,
            last_offset=self._entry.end_offset,
            leader_epoch=leader_epoch,
        )
        if run is not None:
            self._next_offset = run.end_offset + 1
            self._record_count += run.record_count
        return run

    def _has_whole_batch(self, buffer: memoryview, position: int) -> bool:
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

    def _stored(
        self, blocks: Iterator[memoryview], room: Room | None
    ) -> Iterator[tuple[memoryview, BatchHeader | PlacedBatches]]:
        """Batches of a segment, which have their places."""
        for block in blocks:
            position = 0
            while position < len(block):
                found = self._run(block, position, room) or self._follow(block, position)
                yield block[position : position + found.size], found
                position += found.size

    def _follow(self, block: memoryview, position: int) -> BatchHeader:
        header = validate(block, position, allow_compacted=self._thinned)
        skipped = header.base_offset - self._next_offset
        if skipped < 0 or (skipped and not self._thinned):
            raise CorruptSegment(f"segment: a batch at offset {header.base_offset} where {self._next_offset} is next")
        self._advance(header.base_offset, header)
        return header

    def _advance(self, base_offset: int, header: BatchHeader) -> None:
        self._next_offset = base_offset + header.last_offset_delta + 1
        self._record_count += header.record_count
        if self._next_offset > self._entry.end_offset + 1:
            raise CorruptData(
                f"its batches reach offset {self._next_offset - 1}, its entry ends at {self._entry.end_offset}"
            )
