"""Walks record batches that lie end to end and judges each of them. Pure.

The reader of the log refuses damaged bytes with one error. A verification wants to know what is wrong and where, so
this walk tells apart what ``wire/batch.py`` refuses alike, and goes on behind a fault when the place of the next batch
is still known: a wrong epoch, count or time does not hide what follows. A batch without its CRC ends the walk, because
its length may be what is wrong.

A fault that all batches of an entry would repeat (epoch, offsets, times) is told once, at the first of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from streamhouse.core.errors import CorruptData, StreamHouseError, UnsupportedVersion
from streamhouse.core.limits import MAX_INFLATED_BATCH_BYTES
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.formats.shared_blob_v1 import UNPLACED_EPOCH, UNPLACED_OFFSET
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.maintenance.verify.findings import FindingKind
from streamhouse.metadata.contract import Entry, EntryKind
from streamhouse.wire.batch import BatchHeader, check_batch, read_header
from streamhouse.wire.records import inflate_body, iter_raw_records

_CHECKED_FROM: Final = 21
"""The first byte that a batch's CRC covers: attributes. Base offset and leader epoch stand before it."""
_TOLD_ONCE: Final = frozenset(
    {FindingKind.EPOCH, FindingKind.OFFSETS, FindingKind.TIMESTAMPS, FindingKind.RECORD_TIMES}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFault:
    kind: FindingKind
    problem: str
    base_offset: int
    end_offset: int
    position: int
    """Where the batch begins in the buffer that was walked."""
    length: int


class BatchWalk:
    """The batches of one entry, in order, in as many buffers as it takes."""

    def __init__(self, entry: Entry, epochs: EpochLine, *, sparse: bool, deep: bool) -> None:
        self.next_offset = entry.base_offset
        self.record_count = 0
        self.smallest_ms: int | None = None
        """The smallest first time that a batch declares."""
        self.largest_ms: int | None = None
        """The largest time that a batch declares; the caller may set it back to None."""
        self.lost = False
        """True when a batch was malformed, so that the next one's place is unknown."""
        self._entry = entry
        self._epochs = epochs
        self._is_placed = entry.kind is not EntryKind.WAL
        self._sparse = sparse
        self._deep = deep
        self._told: set[FindingKind] = set()

    def take(self, buf: memoryview, position: int, end_offset: int) -> Iterator[BatchFault]:
        """Judge the batches from ``position`` to the end of the buffer, which must hold whole ones.

        ``end_offset`` is the last offset that they can have, for the place of a batch that cannot be read.
        """
        while position < len(buf) and not self.lost:
            try:
                header = read_header(buf, position)
            except CorruptData as error:
                self.lost = True
                yield self._lost(FindingKind.BATCH, _words(error), end_offset, position, len(buf) - position)
                return
            actual = crc32c(buf[position + _CHECKED_FROM : position + header.size])
            if actual != header.crc:
                self.lost = True
                problem = f"a batch of {header.size} bytes has the CRC-32C {actual:#x}, its header says {header.crc:#x}"
                yield self._lost(FindingKind.BATCH, problem, end_offset, position, header.size)
                return
            for kind, problem in self._judge(buf, position, header):
                if kind in _TOLD_ONCE and kind in self._told:
                    continue
                self._told.add(kind)
                yield BatchFault(
                    kind=kind,
                    problem=problem,
                    base_offset=self.next_offset,
                    end_offset=self.next_offset + header.last_offset_delta,
                    position=position,
                    length=header.size,
                )
            self._pass(header)
            position += header.size

    def _lost(self, kind: FindingKind, problem: str, end_offset: int, position: int, length: int) -> BatchFault:
        return BatchFault(
            kind=kind,
            problem=problem,
            base_offset=self.next_offset,
            end_offset=end_offset,
            position=position,
            length=length,
        )

    def _pass(self, header: BatchHeader) -> None:
        self.next_offset = header.next_offset if self._is_placed else self.next_offset + header.last_offset_delta + 1
        self.record_count += header.record_count
        smallest_ms, largest_ms = declared_times_ms(header)
        self.smallest_ms = smallest_ms if self.smallest_ms is None else min(self.smallest_ms, smallest_ms)
        self.largest_ms = largest_ms if self.largest_ms is None else max(self.largest_ms, largest_ms)

    def _judge(self, buf: memoryview, position: int, header: BatchHeader) -> Iterator[tuple[FindingKind, str]]:
        try:
            check_batch(buf, position, header, allow_compacted=self._sparse, check_crc=False)
        except UnsupportedVersion as error:
            yield FindingKind.BATCH, _words(error)
            return
        except CorruptData as error:
            yield FindingKind.RECORD_COUNT, _words(error)
        yield from self._judge_place(header)
        # A segment's index and footer bound its batches, and the footer is compared with the entry.
        if not self._is_placed and header.max_timestamp > self._entry.max_timestamp_ms:
            problem = f"a batch has records of {header.max_timestamp}, its entry says {self._entry.max_timestamp_ms}"
            yield FindingKind.TIMESTAMPS, problem
        if self._deep:
            yield from _judge_records(buf, position, header)

    def _judge_place(self, header: BatchHeader) -> Iterator[tuple[FindingKind, str]]:
        offset, epoch = header.base_offset, header.partition_leader_epoch
        if not self._is_placed:
            if offset != UNPLACED_OFFSET:
                yield FindingKind.OFFSETS, f"a batch of a shared blob has base offset {offset}, not {UNPLACED_OFFSET}"
            if epoch != UNPLACED_EPOCH:
                yield FindingKind.EPOCH, f"a batch of a shared blob has leader epoch {epoch}, not {UNPLACED_EPOCH}"
            return
        if offset < self.next_offset or (offset > self.next_offset and not self._sparse):
            yield FindingKind.OFFSETS, f"a batch has base offset {offset} where {self.next_offset} is next"
        if self._entry.kind is EntryKind.SEGMENT:
            lowest = highest = self._entry.epoch
        else:
            lowest, highest = self._epochs.between(offset, header.last_offset)
        if not lowest <= epoch <= highest:
            expected = str(lowest) if lowest == highest else f"{lowest} to {highest}"
            yield FindingKind.EPOCH, f"a batch has leader epoch {epoch}, not {expected}"


def _judge_records(buf: memoryview, position: int, header: BatchHeader) -> Iterator[tuple[FindingKind, str]]:
    """Decode the records: their number, their rising offset deltas, and that the batch's maximum bounds their times."""
    try:
        body = inflate_body(buf, position, header, max_bytes=MAX_INFLATED_BATCH_BYTES)
        # The decoder holds one record at a time, and checks the deltas and that no byte is left over.
        newest_ms = max((raw.timestamp_ms for raw in iter_raw_records(body, header, position)), default=None)
    except CorruptData as error:
        yield FindingKind.RECORDS, _words(error)
        return
    if newest_ms is not None and newest_ms > header.max_timestamp:
        yield FindingKind.RECORD_TIMES, f"a record is of {newest_ms}, its batch says {header.max_timestamp} at most"


def _words(error: StreamHouseError) -> str:
    """The error without its place, "record batch at byte 7: ", which counts from the start of a buffer."""
    return error.message.partition(": ")[2] or error.message
