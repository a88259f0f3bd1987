"""Blocks: record batches that lie end to end in memory, checked, at their real offsets, searchable. Pure.

A block is one block of a segment, or the whole slice that an entry has in a shared blob. Batches are found by bisecting
flat arrays, so a read costs the same whether a block holds ten batches or ten thousand.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final

from streamhouse.core.errors import CorruptBatch, CorruptBlob, CorruptSegment
from streamhouse.formats.segment_v1 import BlockInfo
from streamhouse.formats.shared_blob_v1 import check_slice
from streamhouse.metadata.contract import Entry
from streamhouse.wire.batch import HEADER, HEADER_BYTES, MAGIC, patch, read_header

LENGTH_END: Final = 12  # a batch's length counts the bytes after itself

_BATCH_OVERHEAD_BYTES: Final = 24
_BLOCK_OVERHEAD_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Whole batches, one view each."""

    batches: list[memoryview]
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    data: memoryview
    starts: array[int]
    """The position of each batch, and the end of the block."""
    nexts: array[int]
    """The offset after each batch."""
    times_ms: array[int]
    """The largest time that each batch declares."""

    held_bytes: int
    """The memory that ``data`` keeps alive: it may be a view of something larger."""

    @property
    def memory_bytes(self) -> int:
        return self.held_bytes + _BATCH_OVERHEAD_BYTES * len(self.nexts) + _BLOCK_OVERHEAD_BYTES

    def take(self, offset: int, max_bytes: int) -> Taken:
        """Batches from the one with ``offset``, or the next after it; the first whatever its size."""
        starts = self.starts
        first = bisect_right(self.nexts, offset)
        if first == len(self.nexts):
            return Taken(batches=[], next_offset=offset, size_bytes=0)
        after = max(first + 1, bisect_right(starts, starts[first] + max_bytes) - 1)
        return Taken(
            batches=[self.batch(at) for at in range(first, after)],
            next_offset=self.nexts[after - 1],
            size_bytes=starts[after] - starts[first],
        )

    def batch(self, at: int) -> memoryview:
        return self.data[self.starts[at] : self.starts[at + 1]]

    def cut_out(self, whole_bytes: int) -> Block:
        """This block in a form that may be cached; its data is part of a download of ``whole_bytes``.

        A view of most of it is kept as it is, and counted as the whole; a smaller part is copied.
        """
        if len(self.data) * 4 >= whole_bytes * 3:
            return replace(self, held_bytes=whole_bytes)
        return replace(self, data=memoryview(bytes(self.data)))


def slice_block(stored: memoryview, entry: Entry) -> Block:
    """Check the bytes of a slice of a shared blob and set the offsets of its batches. Raises CorruptBlob, CorruptBatch.

    The batches' own CRCs cover every byte; offsets and epoch come from the entry.
    """
    if entry.record_count != entry.end_offset - entry.base_offset + 1:
        raise CorruptBlob(
            f"shared blob slice: an entry of {entry.record_count} records for the offsets {entry.base_offset} to"
            f" {entry.end_offset}"
        )
    data = bytearray(stored)  # a store may return its own bytes: patch a copy
    starts, nexts, times_ms = array("q", [0]), array("q"), array("q")
    position, offset = 0, entry.base_offset
    for header in check_slice(data, byte_length=entry.byte_length, record_count=entry.record_count):
        patch(data, position, base_offset=offset, leader_epoch=entry.epoch)
        position += header.size
        offset += header.record_count
        starts.append(position)
        nexts.append(offset)
        times_ms.append(header.max_timestamp)
    view = memoryview(data).toreadonly()
    return Block(data=view, starts=starts, nexts=nexts, times_ms=times_ms, held_bytes=len(data))


def segment_block(data: memoryview, info: BlockInfo, *, sparse: bool) -> Block:
    """A block of a segment, whose CRC was checked: check that its batches are those of the index.

    Raises CorruptSegment, CorruptBatch.
    """
    starts, nexts, times_ms = array("q", [0]), array("q"), array("q")
    position, next_offset, records, size = 0, info.base_offset, 0, len(data)
    while position < size:
        # Every batch of every segment passes here: the struct itself is a quarter of the cost of a header object.
        try:
            base_offset, length, _, magic, _, _, last_delta, _, max_time_ms, _, _, _, count = HEADER.unpack_from(
                data, position
            )
        except struct.error:
            magic = length = last_delta = -1
        position += LENGTH_END + length
        if magic != MAGIC or length < HEADER_BYTES - LENGTH_END or position > size or last_delta < 0:
            read_header(data, starts[-1])  # says what is wrong with it
            raise CorruptBatch(f"record batch at byte {starts[-1]}: its header makes no sense")
        if base_offset < next_offset or (base_offset > next_offset and not sparse):
            raise CorruptSegment(f"{_at(info)}: a batch at offset {base_offset} where {next_offset} is next")
        next_offset = base_offset + last_delta + 1
        records += count
        starts.append(position)
        nexts.append(next_offset)
        times_ms.append(max_time_ms)
    if (next_offset - 1, records) != (info.end_offset, info.record_count):
        raise CorruptSegment(
            f"{_at(info)}: its batches end at {next_offset - 1} with {records} records, the index says"
            f" {info.end_offset} with {info.record_count}"
        )
    return Block(data=data.toreadonly(), starts=starts, nexts=nexts, times_ms=times_ms, held_bytes=size)


def _at(info: BlockInfo) -> str:
    return f"segment block at {info.file_offset}"
