"""The segment, STRM version 1: one partition's batches in one object. Its ends: head and footer.

    0      4         6       8                                      index offset   size-96        size
    ┌──────┬─────────┬───────┬─────────┬─────────┬───┬──────────────┬──────────────┬──────────────┐
    │"STRM"│version=1│flags=0│ block 0 │ block 1 │ … │ block n-1    │ index        │ footer       │
    │      │u16      │u16    │         │         │   │              │              │ 96 bytes     │
    └──────┴─────────┴───────┴─────────┴─────────┴───┴──────────────┴──────────────┴──────────────┘

    block   whole record batches, about 1 MiB of them, at their real offsets and leader epochs; either as they are or
            one LZ4 block. No header of its own: what is to be known of it, its CRC included, stands in the index
    index   one entry per block, delta-encoded: segment_v1_index.py

    Footer
    0         16         20     24      28           36          44            52
    ┌─────────┬──────────┬──────┬───────┬────────────┬───────────┬─────────────┬─
    │topic id │partition │block │zero   │base offset │end offset │record count │
    │uuid     │i32       │count │u32    │i64         │i64        │u64          │
    │         │          │u32   │       │            │           │             │
    └─────────┴──────────┴──────┴───────┴────────────┴───────────┴─────────────┴─
    52             60            68            76           80        84        86      88       92      96
    ─┬─────────────┬─────────────┬─────────────┬────────────┬─────────┬─────────┬───────┬────────┬───────┐
     │min time ms  │max time ms  │index offset │index length│index    │version=1│flags  │crc32c  │"STRM" │
     │i64          │i64          │u64          │u32         │crc32c   │u16      │u16    │0 to 87 │       │
     │             │             │             │            │u32      │         │       │u32     │       │
    ─┴─────────────┴─────────────┴─────────────┴────────────┴─────────┴─────────┴───────┴────────┴───────┘

    big endian; end offset is the last offset covered, included, as in a metadata entry
    flags: 0 sparse: key compaction dropped records, so there are fewer records than offsets (R18)

The footer's CRC covers the index's, the index's covers each block's: a reader that starts at the footer can trust every
byte that it leads to. Raw blocks lie end to end without anything between them, so any run of them is a run of batches.

Owns the head, the footer and what a block is called. Must not do IO. The writer, the index and the reader have files of
their own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final
from uuid import UUID

from crc32c import crc32c

from streamhouse.core.errors import CorruptSegment, UnsupportedVersion
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_SEGMENT_BYTES, MAX_SEGMENT_INDEX_BYTES
from streamhouse.wire.buffers import BytesLike, byte_view

MAGIC: Final = b"STRM"
VERSION: Final = 1
HEAD: Final = struct.pack(">4sHH", MAGIC, VERSION, 0)
HEAD_BYTES: Final = 8
FOOTER_BYTES: Final = 96
MIN_INDEX_ENTRY_BYTES: Final = 10
SPARSE_FLAG: Final = 0x0001

_FIELDS: Final = struct.Struct(">16siIIqqQqqQIIHH")
_SEAL: Final = struct.Struct(">I4s")
_MAX_OFFSET: Final = 2**63 - 2
assert _FIELDS.size + _SEAL.size == FOOTER_BYTES


class BlockCodec(IntEnum):
    RAW = 0
    LZ4 = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """A part of an object, to be fetched with one ranged GET."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    file_offset: int
    stored_length: int
    raw_length: int
    codec: BlockCodec
    base_offset: int
    end_offset: int
    record_count: int
    max_timestamp_ms: int
    crc32c: int
    """The checksum of the stored bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    key: PartitionKey
    block_count: int
    base_offset: int
    end_offset: int
    record_count: int
    min_timestamp_ms: int
    """The smallest declared first time of a batch; a hint, never a reason to skip records."""
    max_timestamp_ms: int
    index_offset: int
    index_length: int
    index_crc: int
    sparse: bool

    @property
    def index_range(self) -> ByteRange:
        return ByteRange(offset=self.index_offset, length=self.index_length)


def check_head(first_bytes: BytesLike) -> None:
    """Raises CorruptSegment, or UnsupportedVersion for a newer segment."""
    head = bytes(byte_view(first_bytes)[:HEAD_BYTES])
    if head == HEAD:
        return
    if len(head) < HEAD_BYTES or head[:4] != MAGIC:
        raise CorruptSegment(f"segment: starts with {head!r}, not {MAGIC!r} and a version")
    version, flags = struct.unpack(">HH", head[4:])
    raise UnsupportedVersion(f"segment: version {version}, flags {flags:#x}; this build reads {VERSION}, 0")


def encode_footer(footer: Footer) -> bytes:
    fields = _FIELDS.pack(
        footer.key.topic_id.bytes,
        footer.key.partition,
        footer.block_count,
        0,
        footer.base_offset,
        footer.end_offset,
        footer.record_count,
        footer.min_timestamp_ms,
        footer.max_timestamp_ms,
        footer.index_offset,
        footer.index_length,
        footer.index_crc,
        VERSION,
        SPARSE_FLAG if footer.sparse else 0,
    )
    return fields + _SEAL.pack(crc32c(fields), MAGIC)


def parse_footer(tail: BytesLike, object_size: int) -> Footer:
    """Read the footer from the object's last bytes, of which there may be more than the footer's 96.

    Raises CorruptSegment, also if the index does not end where the footer starts; UnsupportedVersion for a newer one.
    """
    view = byte_view(tail)
    if object_size > MAX_SEGMENT_BYTES:
        raise CorruptSegment(f"segment: {object_size} bytes are over the limit of {MAX_SEGMENT_BYTES}")
    if len(view) < FOOTER_BYTES or object_size < HEAD_BYTES + MIN_INDEX_ENTRY_BYTES + FOOTER_BYTES:
        raise CorruptSegment(f"segment: {min(len(view), object_size)} bytes cannot hold its footer")
    start = len(view) - FOOTER_BYTES
    stored_crc, magic = _SEAL.unpack_from(view, start + _FIELDS.size)
    if magic != MAGIC:
        raise CorruptSegment(f"segment: ends with {magic!r}, not {MAGIC!r}")
    if crc32c(view[start : start + _FIELDS.size]) != stored_crc:
        raise CorruptSegment(f"segment: its footer does not have the CRC-32C {stored_crc:#x} it states")
    (
        topic_id,
        partition,
        block_count,
        _,
        base_offset,
        end_offset,
        record_count,
        min_timestamp_ms,
        max_timestamp_ms,
        index_offset,
        index_length,
        index_crc,
        version,
        flags,
    ) = _FIELDS.unpack_from(view, start)
    if version != VERSION or flags & ~SPARSE_FLAG:
        raise UnsupportedVersion(f"segment: footer of version {version}, flags {flags:#x}; this build reads {VERSION}")
    footer = Footer(
        key=PartitionKey(TopicId(UUID(bytes=topic_id)), partition),
        block_count=block_count,
        base_offset=base_offset,
        end_offset=end_offset,
        record_count=record_count,
        min_timestamp_ms=min_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        index_offset=index_offset,
        index_length=index_length,
        index_crc=index_crc,
        sparse=bool(flags & SPARSE_FLAG),
    )
    _check_footer(footer, object_size)
    return footer


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlace:
    """Where a footer says that the index is. Its fields may contradict each other, if the footer is damaged."""

    block_count: int
    index_offset: int
    index_length: int
    index_crc: int


def unchecked_index_place(tail: BytesLike) -> IndexPlace:
    """What the footer at the end of these bytes says of the index, without any check: for a repair of the footer, which
    proves by other checksums what it finds there."""
    view = byte_view(tail)
    fields = _FIELDS.unpack_from(view, len(view) - FOOTER_BYTES)
    return IndexPlace(block_count=fields[2], index_offset=fields[9], index_length=fields[10], index_crc=fields[11])


def _check_footer(footer: Footer, object_size: int) -> None:
    if footer.index_offset < HEAD_BYTES or footer.index_range.end + FOOTER_BYTES != object_size:
        raise CorruptSegment(
            f"segment: an index at {footer.index_offset} of {footer.index_length} bytes does not fit an object of"
            f" {object_size}",
            hint="the object is truncated or not the one its metadata speaks of",
        )
    fits = MIN_INDEX_ENTRY_BYTES * footer.block_count <= footer.index_length <= MAX_SEGMENT_INDEX_BYTES
    if not fits or not footer.block_count:
        raise CorruptSegment(f"segment: {footer.block_count} blocks in an index of {footer.index_length} bytes")
    offsets = footer.end_offset - footer.base_offset + 1
    if not 0 <= footer.base_offset <= footer.end_offset <= _MAX_OFFSET:
        raise CorruptSegment(f"segment: offsets from {footer.base_offset} to {footer.end_offset}")
    if footer.record_count > offsets or (footer.record_count != offsets and not footer.sparse):
        raise CorruptSegment(f"segment: {footer.record_count} records for {offsets} offsets")
