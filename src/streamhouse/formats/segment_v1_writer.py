"""Writes a STRM segment as its batches come (segment_v1.py draws it).

    writer = SegmentWriter(key=…, compression="none")
    for batch, header in …:
        send(writer.append(batch, header))        the buffers of a block, whenever one is full
    send(writer.finish().buffers)                 the last block, the index, the footer

All buffers, end to end, are the object. A raw block's buffers *are* the batches, by reference: they must stay unchanged
until they were sent. The writer itself holds one block at most. A flush writes raw; compaction asks for LZ4, and a
block that LZ4 hardly shrinks (its batches are compressed, as a rule) stays raw. Must not do IO, and never looks at a
record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import lz4.block
from crc32c import crc32c

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_SEGMENT_BYTES, MAX_SEGMENT_INDEX_BYTES, TARGET_BLOCK_BYTES
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.formats.segment_v1 import (
    FOOTER_BYTES,
    HEAD,
    HEAD_BYTES,
    BlockCodec,
    BlockInfo,
    Footer,
    encode_footer,
)
from streamhouse.formats.segment_v1_index import MAX_INDEX_ENTRY_BYTES, encode_index
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike, byte_view

_WORTH_COMPRESSING: Final = 15 / 16
"""LZ4 must save a sixteenth: less is not worth inflating the block on every read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSegment:
    buffers: tuple[BytesLike, ...]
    """The buffers that ``append`` had not returned yet."""
    footer: Footer
    blocks: tuple[BlockInfo, ...]
    size: int
    """Bytes of the whole object."""


class SegmentWriter:
    def __init__(
        self,
        *,
        key: PartitionKey,
        compression: Literal["none", "lz4"] = "none",
        sparse: bool = False,
        target_block_bytes: int = TARGET_BLOCK_BYTES,
    ) -> None:
        """``sparse`` is for key compaction: batches may hold fewer records than offsets, and offsets may be skipped."""
        self._key = key
        self._compress = compression == "lz4"
        self._sparse = sparse
        self._target_block_bytes = target_block_bytes
        self._blocks: list[BlockInfo] = []
        self._file_offset = HEAD_BYTES
        self._raw_bytes = 0
        self._pending = _PendingBlock()
        self._next_offset = -1
        self._min_ms = 0
        self._finished = False

    @property
    def raw_bytes(self) -> int:
        """Bytes of batches taken so far, before compression."""
        return self._raw_bytes

    def append(self, batch: BytesLike, header: BatchHeader) -> tuple[BytesLike, ...]:
        """Take one validated batch at its real offset, and give out the blocks that are full, if any.

        ``header`` is what ``validate`` returned for it. Raises InvalidRequest for a batch that does not follow the one
        before it, LimitExceeded when the segment is full; either way the batch was not taken.
        """
        view = batch if type(batch) is bytes else byte_view(batch)
        length = len(view)
        self._check(length, header)
        ready: tuple[BytesLike, ...] = ()
        pending = self._pending
        if pending.batches and pending.raw_length + length > self._target_block_bytes:
            ready = self._close_block()
            pending = self._pending
        smallest_ms, largest_ms = declared_times_ms(header)
        if self._next_offset < 0 or smallest_ms < self._min_ms:
            self._min_ms = smallest_ms
        if not pending.batches:
            pending.base_offset, pending.max_timestamp_ms = header.base_offset, largest_ms
        elif largest_ms > pending.max_timestamp_ms:
            pending.max_timestamp_ms = largest_ms
        pending.batches.append(view)
        pending.raw_length += length
        pending.crc = crc32c(view, pending.crc)
        pending.record_count += header.record_count
        self._next_offset = header.base_offset + header.last_offset_delta + 1
        self._raw_bytes += length
        if pending.raw_length >= self._target_block_bytes:
            ready += self._close_block()
        return ready

    def finish(self) -> FinishedSegment:
        """Close the segment. Raises InvalidRequest for one without batches."""
        if self._next_offset < 0 or self._finished:
            raise InvalidRequest(f"{self._key}: a segment needs at least one batch, and is finished once")
        self._finished = True
        last = self._close_block() if self._pending.batches else ()
        blocks = tuple(self._blocks)
        max_ms = max(block.max_timestamp_ms for block in blocks)
        index = encode_index(blocks, base_offset=blocks[0].base_offset, max_timestamp_ms=max_ms)
        footer = Footer(
            key=self._key,
            block_count=len(blocks),
            base_offset=blocks[0].base_offset,
            end_offset=blocks[-1].end_offset,
            record_count=sum(block.record_count for block in blocks),
            min_timestamp_ms=self._min_ms,
            max_timestamp_ms=max_ms,
            index_offset=self._file_offset,
            index_length=len(index),
            index_crc=crc32c(index),
            sparse=self._sparse,
        )
        size = footer.index_range.end + FOOTER_BYTES
        return FinishedSegment(buffers=(*last, index, encode_footer(footer)), footer=footer, blocks=blocks, size=size)

    def _check(self, length: int, header: BatchHeader) -> None:
        if self._finished:
            raise InvalidRequest(f"{self._key}: the segment is finished")
        if length != header.size:
            raise InvalidRequest(f"{self._key}: a batch of {length} bytes with a header for {header.size}")
        skipped = header.base_offset - self._next_offset if self._next_offset >= 0 else 0
        missing = header.last_offset_delta + 1 - header.record_count
        if skipped or missing:
            self._check_sparse(header, skipped, missing)
        index_bytes = (len(self._blocks) + 2) * MAX_INDEX_ENTRY_BYTES
        total = self._file_offset + self._pending.raw_length + length + index_bytes + FOOTER_BYTES
        if total > MAX_SEGMENT_BYTES or index_bytes > MAX_SEGMENT_INDEX_BYTES:
            raise LimitExceeded(f"{self._key}: a segment of {total} bytes is over the limit of {MAX_SEGMENT_BYTES}")

    def _check_sparse(self, header: BatchHeader, skipped: int, missing: int) -> None:
        """Check that the batches go forward. Only key compaction may leave offsets without a record (R18)."""
        if skipped < 0 or (skipped and not self._sparse):
            raise InvalidRequest(
                f"{self._key}: a batch at offset {header.base_offset} where {self._next_offset} is next"
            )
        if missing < 0 or header.record_count < 0 or not self._sparse:
            offsets = header.last_offset_delta + 1
            raise InvalidRequest(f"{self._key}: a batch of {header.record_count} records for {offsets} offsets")

    def _close_block(self) -> tuple[BytesLike, ...]:
        pending, self._pending = self._pending, _PendingBlock()
        stored, codec, stored_length, crc = pending.store(compress=self._compress)
        self._blocks.append(
            BlockInfo(
                file_offset=self._file_offset,
                stored_length=stored_length,
                raw_length=pending.raw_length,
                codec=codec,
                base_offset=pending.base_offset,
                end_offset=self._next_offset - 1,
                record_count=pending.record_count,
                max_timestamp_ms=pending.max_timestamp_ms,
                crc32c=crc,
            )
        )
        self._file_offset += stored_length
        return (HEAD, *stored) if len(self._blocks) == 1 else stored


class _PendingBlock:
    """The batches of the block that is being filled."""

    __slots__ = ("base_offset", "batches", "crc", "max_timestamp_ms", "raw_length", "record_count")

    def __init__(self) -> None:
        self.batches: list[BytesLike] = []
        self.raw_length = 0
        self.crc = 0
        self.record_count = 0
        self.base_offset = -1
        self.max_timestamp_ms = 0

    def store(self, *, compress: bool) -> tuple[tuple[BytesLike, ...], BlockCodec, int, int]:
        """The buffers to be stored, their codec, length and CRC."""
        if compress:
            compressed: bytes = lz4.block.compress(b"".join(self.batches), store_size=False)
            if len(compressed) <= self.raw_length * _WORTH_COMPRESSING:
                return (compressed,), BlockCodec.LZ4, len(compressed), crc32c(compressed)
        return tuple(self.batches), BlockCodec.RAW, self.raw_length, self.crc


def write_segment(
    batches: Iterable[tuple[BytesLike, BatchHeader]],
    *,
    key: PartitionKey,
    compression: Literal["none", "lz4"] = "none",
    sparse: bool = False,
) -> FinishedSegment:
    """A whole segment at once; ``buffers`` are the object."""
    writer = SegmentWriter(key=key, compression=compression, sparse=sparse)
    buffers: list[BytesLike] = []
    for batch, header in batches:
        buffers.extend(writer.append(batch, header))
    finished = writer.finish()
    return FinishedSegment(
        buffers=(*buffers, *finished.buffers), footer=finished.footer, blocks=finished.blocks, size=finished.size
    )
