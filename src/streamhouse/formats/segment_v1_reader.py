"""Reads a STRM segment in ranges that the caller fetches, or whole (segment_v1.py draws it).

    reader = RangedReader(object_size)
    while (need := reader.need()) is not None:           footer first, then the index if it was not in the same bytes
        reader.feed(fetch(need.offset, need.length))
    blocks = reader.index.blocks_from(offset)
    for run in decode_run(fetch(range_of(blocks[:4])), blocks[:4]):
        …                                                whole record batches at their real offsets

Every byte that is looked at is under a CRC that starts from the footer. Must not do IO, and inflates nothing that is
larger than its limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import lz4.block
from crc32c import crc32c

from streamhouse.core.errors import CorruptSegment
from streamhouse.core.limits import KIB, MAX_BLOCK_BYTES
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.formats.segment_v1 import (
    FOOTER_BYTES,
    BlockCodec,
    BlockInfo,
    ByteRange,
    Footer,
    check_head,
    parse_footer,
)
from streamhouse.formats.segment_v1_index import Index, parse_index, range_of
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.buffers import BytesLike, byte_view

TAIL_BYTES: Final = 64 * KIB
"""What the first read asks for: footer and index of segments up to about 4 GiB, for the price of one GET."""


class RangedReader:
    """Says which range to fetch next, until footer and index are known."""

    def __init__(self, object_size: int, *, tail_bytes: int = TAIL_BYTES) -> None:
        length = min(max(tail_bytes, FOOTER_BYTES), max(object_size, 0))
        self._object_size = object_size
        self._need: ByteRange | None = ByteRange(offset=object_size - length, length=length)
        self._footer: Footer | None = None
        self._index: Index | None = None

    @property
    def footer(self) -> Footer:
        if self._footer is None:
            raise ValueError("the footer has not been fed yet")
        return self._footer

    @property
    def index(self) -> Index:
        if self._index is None:
            raise ValueError("the index has not been fed yet")
        return self._index

    def need(self) -> ByteRange | None:
        return self._need

    def feed(self, data: BytesLike) -> None:
        """Take the bytes that ``need`` asked for. Raises CorruptSegment or UnsupportedVersion."""
        view = byte_view(data)
        if self._need is None:
            raise ValueError("footer and index are known; nothing more is needed")
        if len(view) != self._need.length:
            raise CorruptSegment(
                f"segment: {len(view)} bytes at {self._need.offset}, {self._need.length} were asked for",
                hint="the object is truncated or not the one its metadata speaks of",
            )
        if self._footer is not None:
            self._index, self._need = parse_index(view, self._footer), None
            return
        self._footer = parse_footer(view, self._object_size)
        wanted = self._footer.index_range
        start = wanted.offset - self._need.offset
        if start >= 0:
            self._index, self._need = parse_index(view[start : start + wanted.length], self._footer), None
        else:
            self._need = wanted


def decode_block(stored: BytesLike, block: BlockInfo) -> memoryview:
    """The batches of one block: a view of ``stored`` if it is raw. Raises CorruptSegment."""
    view = byte_view(stored)
    if len(view) != block.stored_length:
        raise CorruptSegment(f"segment block at {block.file_offset}: {len(view)} bytes, not {block.stored_length}")
    if crc32c(view) != block.crc32c:
        raise CorruptSegment(f"segment block at {block.file_offset}: its bytes do not have the CRC-32C in the index")
    if block.codec is BlockCodec.RAW:
        return view
    if block.raw_length > MAX_BLOCK_BYTES:
        raise CorruptSegment(f"segment block at {block.file_offset}: {block.raw_length} bytes inflated")
    try:
        inflated: bytes = lz4.block.decompress(view, uncompressed_size=block.raw_length)
    except lz4.block.LZ4BlockError as error:
        raise CorruptSegment(f"segment block at {block.file_offset}: not an LZ4 block: {error}") from error
    if len(inflated) != block.raw_length:
        raise CorruptSegment(
            f"segment block at {block.file_offset}: {len(inflated)} bytes inflated, not {block.raw_length}"
        )
    return memoryview(inflated)


def decode_run(stored: BytesLike, blocks: Sequence[BlockInfo]) -> Iterator[memoryview]:
    """The batches of neighbouring blocks that were fetched as one range, block by block. Raises CorruptSegment."""
    view = byte_view(stored)
    if not blocks:
        return
    start = blocks[0].file_offset
    if len(view) != range_of(blocks).length:
        raise CorruptSegment(f"segment blocks at {start}: {len(view)} bytes, not {range_of(blocks).length}")
    for block in blocks:
        at = block.file_offset - start
        yield decode_block(view[at : at + block.stored_length], block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that lies in memory whole."""

    data: memoryview
    footer: Footer
    index: Index

    def runs(self, from_offset: int = 0) -> Iterator[memoryview]:
        """The batches block by block, from the block that holds ``from_offset`` on."""
        blocks = self.index.blocks_from(from_offset)
        if blocks:
            wanted = range_of(blocks)
            yield from decode_run(self.data[wanted.offset : wanted.end], blocks)


def read_segment(buf: BytesLike) -> Segment:
    """Read head, footer and index. Blocks are checked when they are decoded.

    Raises CorruptSegment or UnsupportedVersion.
    """
    view = byte_view(buf)
    check_head(view)
    footer = parse_footer(view, len(view))
    index = parse_index(view[footer.index_offset : footer.index_range.end], footer)
    return Segment(data=view, footer=footer, index=index)


def verify_segment(buf: BytesLike) -> Segment:
    """Check every byte, and that the batches are what the index and the footer say of them.

    Raises CorruptSegment, CorruptBatch or UnsupportedVersion.
    """
    segment = read_segment(buf)
    smallest_ms: list[int] = []
    for block, run in zip(segment.index.blocks, segment.runs(), strict=True):
        smallest_ms.append(_verify_block(block, run, sparse=segment.footer.sparse))
    if min(smallest_ms) != segment.footer.min_timestamp_ms:
        raise CorruptSegment(f"segment: its earliest batch is of {min(smallest_ms)}, its footer says otherwise")
    return segment


def _verify_block(block: BlockInfo, run: memoryview, *, sparse: bool) -> int:
    """The smallest declared time, after all else was compared."""
    where = f"segment block at {block.file_offset}"
    base_offset = next_offset = -1
    records = 0
    times: list[tuple[int, int]] = []
    for _, header in iter_batches(run, allow_compacted=sparse):
        if times and (header.base_offset < next_offset or (header.base_offset > next_offset and not sparse)):
            raise CorruptSegment(f"{where}: a batch at offset {header.base_offset} where {next_offset} is next")
        if not times:
            base_offset = header.base_offset
        next_offset = header.next_offset
        records += header.record_count
        times.append(declared_times_ms(header))
    found = (base_offset, next_offset - 1, records, max(largest for _, largest in times))
    stated = (block.base_offset, block.end_offset, block.record_count, block.max_timestamp_ms)
    if found != stated:
        raise CorruptSegment(f"{where}: its batches cover {found}, the index says {stated}")
    return min(smallest for smallest, _ in times)
