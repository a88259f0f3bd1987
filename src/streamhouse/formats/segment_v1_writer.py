"""Writes a STRM segment as its batches come (segment_v1.py draws it).

    writer = SegmentWriter(key=…, compression="none")
    for batch, header in …:
        send(writer.append(batch, header))        the buffers of a block, whenever one is full
    send(writer.finish().buffers)                 the last block, the index, the footer

All buffers, end to end, are the object. A raw block's buffers *are* the batches, by reference: they must stay unchanged
until they were sent. The writer itself holds one block at most. A flush writes raw. Compaction asks for LZ4, and then a
block is one buffer of its own, compressed or not: one that LZ4 hardly shrinks stays raw. LZ4 takes longest over bytes
that it cannot shrink, and batches that their producers compressed are such bytes as a rule. So of a block that has no
others, LZ4 sees a sample first. Small batches of similar records shrink even so, and are compressed once more.

Must not do IO, and never looks at a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import lz4.block
from crc32c import crc32c

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import KIB, MAX_SEGMENT_BYTES, MAX_SEGMENT_INDEX_BYTES, TARGET_BLOCK_BYTES
from streamhouse.formats.batch_runs import PlacedBatches, run_of
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
_SAMPLE_BYTES: Final = 64 * KIB
"""LZ4 finds what repeats within 64 KiB."""
_WORTH_TRYING: Final = 31 / 32
"""A sample must save half of that: at its beginning, LZ4 knows of nothing that could repeat."""


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

    @property
    def room_bytes(self) -> int:
        """Bytes of batches that the present block takes before it is full."""
        return self._target_block_bytes - self._pending.raw_length

    def append(self, batch: BytesLike, header: BatchHeader) -> tuple[BytesLike, ...]:
        """Take one validated batch at its real offset, and give out the blocks that are full, if any.

        ``header`` is what ``validate`` returned for it. Raises InvalidRequest for a batch that does not follow the one
        before it, LimitExceeded when the segment is full; either way the batch was not taken.
        """
        missing = header.last_offset_delta + 1 - header.record_count
        if missing:
            self._check_count(header.record_count, missing)
        return self.append_run(batch, run_of(header))

    def append_run(self, batches: BytesLike, run: PlacedBatches) -> tuple[BytesLike, ...]:
        """``append`` for batches that lie end to end and become part of one block: ``room_bytes`` of them at most,
        unless it is one batch. ``run`` is what ``take_run`` returned for them."""
        view = batches if type(batches) is bytes else byte_view(batches)
        size, base_offset, end_offset, record_count, min_ms, max_ms, has_plain_batches = run
        self._check(len(view), size, base_offset)
        ready: tuple[BytesLike, ...] = ()
        pending = self._pending
        if pending.batches and pending.raw_length + size > self._target_block_bytes:
            ready = self._close_block()
            pending = self._pending
        if self._next_offset < 0 or min_ms < self._min_ms:
            self._min_ms = min_ms
        if not pending.batches:
            pending.base_offset, pending.max_timestamp_ms = base_offset, max_ms
        elif max_ms > pending.max_timestamp_ms:
            pending.max_timestamp_ms = max_ms
        pending.batches.append(view)
        pending.raw_length += size
        pending.has_plain_batches |= has_plain_batches
        pending.record_count += record_count
        self._next_offset = end_offset + 1
        self._raw_bytes += size
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

    def _check(self, length: int, size: int, base_offset: int) -> None:
        if self._finished:
            raise InvalidRequest(f"{self._key}: the segment is finished")
        if length != size:
            raise InvalidRequest(f"{self._key}: a batch of {length} bytes with a header for {size}")
        skipped = base_offset - self._next_offset if self._next_offset >= 0 else 0
        if skipped < 0 or (skipped and not self._sparse):
            raise InvalidRequest(f"{self._key}: a batch at offset {base_offset} where {self._next_offset} is next")
        index_bytes = (len(self._blocks) + 2) * MAX_INDEX_ENTRY_BYTES
        total = self._file_offset + self._pending.raw_length + length + index_bytes + FOOTER_BYTES
        if total > MAX_SEGMENT_BYTES or index_bytes > MAX_SEGMENT_INDEX_BYTES:
            raise LimitExceeded(f"{self._key}: a segment of {total} bytes is over the limit of {MAX_SEGMENT_BYTES}")

    def _check_count(self, record_count: int, missing: int) -> None:
        """Only key compaction may leave offsets without a record (R18)."""
        if missing < 0 or record_count < 0 or not self._sparse:
            raise InvalidRequest(f"{self._key}: a batch of {record_count} records for {record_count + missing} offsets")

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

    __slots__ = ("base_offset", "batches", "has_plain_batches", "max_timestamp_ms", "raw_length", "record_count")

    def __init__(self) -> None:
        self.batches: list[BytesLike] = []
        self.raw_length = 0
        self.has_plain_batches = False
        """True when its producer did not compress one of the batches, or more."""
        self.record_count = 0
        self.base_offset = -1
        self.max_timestamp_ms = 0

    def store(self, *, compress: bool) -> tuple[tuple[BytesLike, ...], BlockCodec, int, int]:
        """The buffers to be stored, their codec, length and CRC."""
        if not compress:
            crc = 0
            for batch in self.batches:
                crc = crc32c(batch, crc)
            return tuple(self.batches), BlockCodec.RAW, self.raw_length, crc
        raw = b"".join(self.batches)
        if self.has_plain_batches or _shrinks(raw[:_SAMPLE_BYTES], _WORTH_TRYING):
            compressed: bytes = lz4.block.compress(raw, store_size=False)
            if len(compressed) <= len(raw) * _WORTH_COMPRESSING:
                return (compressed,), BlockCodec.LZ4, len(compressed), crc32c(compressed)
        return (raw,), BlockCodec.RAW, len(raw), crc32c(raw)


def _shrinks(sample: bytes, to_share: float) -> bool:
    return len(lz4.block.compress(sample, store_size=False)) <= len(sample) * to_share


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
