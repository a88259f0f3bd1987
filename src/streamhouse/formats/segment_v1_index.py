"""A segment's index: where each block lies and what it covers, delta-encoded and searchable.

    one entry per block, in offset order; v = unsigned varint (7 bits a byte, lowest first), z = zigzag varint
    ┌─────────────┬──────┬────────────┬─────────┬──────┬─────────┬─────────────┬────────┐
    │stored length│codec │raw length  │gap      │span  │record   │max time     │crc32c  │
    │v            │u8    │v, only if  │v        │v     │count    │delta, ms    │of the  │
    │             │      │compressed  │         │      │v        │z            │stored  │
    │             │      │            │         │      │         │             │bytes u32│
    └─────────────┴──────┴────────────┴─────────┴──────┴─────────┴─────────────┴────────┘

    a block starts where the one before it ends, the first one at byte 8
    gap   offsets between the last one before this block (the footer's base offset, for the first) and its own first
    span  its last offset less its first
    max time is given relative to the previous block's, the first one's relative to the footer's

About 15 bytes a block: the index of 1 GiB is 16 KB. Must not do IO. Nothing is built from an index that has not passed
its CRC and the footer's bounds.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from crc32c import crc32c

from streamhouse.core.errors import CorruptSegment, UnsupportedVersion
from streamhouse.core.limits import MAX_BLOCK_BYTES
from streamhouse.formats.segment_v1 import HEAD_BYTES, BlockCodec, BlockInfo, ByteRange, Footer
from streamhouse.wire.batch import HEADER_BYTES as BATCH_HEADER_BYTES
from streamhouse.wire.buffers import BytesLike, byte_view

MAX_INDEX_ENTRY_BYTES: Final = 56

_MAX_VARINT_BYTES: Final = 10
_MAX_LZ4_RATIO: Final = 255  # what LZ4's length bytes can express at most
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    blocks: tuple[BlockInfo, ...]
    highest_times_ms: tuple[int, ...]
    """The largest time in each block or before it: sorted whatever the records' times are."""

    def blocks_from(self, offset: int) -> Sequence[BlockInfo]:
        """The block that holds ``offset``, or the next one if it was compacted away, and all after it."""
        return self.blocks[bisect_left(self.blocks, offset, key=lambda block: block.end_offset) :]

    def block_for_timestamp(self, timestamp_ms: int) -> BlockInfo | None:
        """The first block that holds a record at or after ``timestamp_ms``, or None if there is no such record."""
        at = bisect_left(self.highest_times_ms, timestamp_ms)
        return self.blocks[at] if at < len(self.blocks) else None


def make_index(blocks: Sequence[BlockInfo]) -> Index:
    highest = tuple(accumulate((block.max_timestamp_ms for block in blocks), max))
    return Index(blocks=tuple(blocks), highest_times_ms=highest)


def range_of(blocks: Sequence[BlockInfo]) -> ByteRange:
    """The bytes of a run of neighbouring blocks, for one ranged GET."""
    first, last = blocks[0], blocks[-1]
    return ByteRange(offset=first.file_offset, length=last.file_offset + last.stored_length - first.file_offset)


def encode_index(blocks: Sequence[BlockInfo], *, base_offset: int, max_timestamp_ms: int) -> bytes:
    out = bytearray()
    next_offset, time_ms = base_offset, max_timestamp_ms
    for block in blocks:
        _put(out, block.stored_length)
        out.append(block.codec)
        if block.codec is not BlockCodec.RAW:
            _put(out, block.raw_length)
        _put(out, block.base_offset - next_offset)
        _put(out, block.end_offset - block.base_offset)
        _put(out, block.record_count)
        delta = block.max_timestamp_ms - time_ms
        _put(out, 2 * delta if delta >= 0 else -2 * delta - 1)
        out += _CRC.pack(block.crc32c)
        next_offset, time_ms = block.end_offset + 1, block.max_timestamp_ms
    return bytes(out)


def parse_index(buf: BytesLike, footer: Footer) -> Index:
    """Raises CorruptSegment, or UnsupportedVersion for a codec this build does not know."""
    view = byte_view(buf)
    if len(view) != footer.index_length:
        raise CorruptSegment(f"segment index: {len(view)} bytes, its footer says {footer.index_length}")
    if crc32c(view) != footer.index_crc:
        raise CorruptSegment(f"segment index: its bytes do not have the CRC-32C {footer.index_crc:#x}")
    entries = _Entries(bytes(view), footer)
    try:
        blocks = [entries.next_block() for _ in range(footer.block_count)]
    except (IndexError, struct.error) as error:
        raise CorruptSegment("segment index: an entry runs past its end") from error
    if entries.position != len(view) or entries.file_offset != footer.index_offset:
        raise CorruptSegment(f"segment index: its blocks end at byte {entries.file_offset}, not {footer.index_offset}")
    index = make_index(blocks)
    found = (blocks[0].base_offset, blocks[-1].end_offset, sum(block.record_count for block in blocks))
    stated = (footer.base_offset, footer.end_offset, footer.record_count)
    if found != stated or index.highest_times_ms[-1] != footer.max_timestamp_ms:
        raise CorruptSegment(f"segment index: its blocks cover {found}, its footer says {stated}")
    return index


class _Entries:
    """A cursor over the encoded entries; runs off the end with IndexError or struct.error."""

    def __init__(self, data: bytes, footer: Footer) -> None:
        self._data = data
        self._sparse = footer.sparse
        self._next_offset = footer.base_offset
        self._time_ms = footer.max_timestamp_ms
        self.position = 0
        self.file_offset = HEAD_BYTES

    def next_block(self) -> BlockInfo:
        stored_length = self._varint()
        codec = self._codec()
        raw_length = stored_length if codec is BlockCodec.RAW else self._varint()
        base_offset = self._next_offset + self._varint()
        end_offset = base_offset + self._varint()
        record_count = self._varint()
        zigzag = self._varint()
        self._time_ms += zigzag >> 1 if not zigzag & 1 else -(zigzag + 1 >> 1)
        (crc,) = _CRC.unpack_from(self._data, self.position)
        self.position += _CRC.size
        block = BlockInfo(
            file_offset=self.file_offset,
            stored_length=stored_length,
            raw_length=raw_length,
            codec=codec,
            base_offset=base_offset,
            end_offset=end_offset,
            record_count=record_count,
            max_timestamp_ms=self._time_ms,
            crc32c=crc,
        )
        self._check(block)
        self.file_offset += stored_length
        self._next_offset = end_offset + 1
        return block

    def _check(self, block: BlockInfo) -> None:
        if not BATCH_HEADER_BYTES <= block.raw_length <= MAX_BLOCK_BYTES:
            raise CorruptSegment(f"segment index: a block of {block.raw_length} bytes at {block.file_offset}")
        if not block.stored_length <= block.raw_length <= block.stored_length * _MAX_LZ4_RATIO:
            raise CorruptSegment(
                f"segment index: a block of {block.raw_length} bytes stored in {block.stored_length} at"
                f" {block.file_offset}"
            )
        offsets = block.end_offset - block.base_offset + 1
        dense = block.record_count == offsets and block.base_offset == self._next_offset
        if block.record_count > offsets or not (dense or self._sparse):
            raise CorruptSegment(
                f"segment index: the block at {block.file_offset} has {block.record_count} records for the offsets"
                f" {block.base_offset} to {block.end_offset}, after {self._next_offset - 1}"
            )

    def _codec(self) -> BlockCodec:
        codec = self._data[self.position]
        self.position += 1
        if codec > BlockCodec.LZ4:
            raise UnsupportedVersion(f"segment index: block codec {codec} is unknown")
        return BlockCodec(codec)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptSegment(f"segment index: no number ends before byte {self.position}")


def _put(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
