"""Reads record batches, and the batches in a segment, from raw bytes, for the checker.

Written from the formats' drawings (wire/batch.py, formats/segment_v1.py, formats/segment_v1_index.py), not with their
code. Only what the simulated producers write is understood, and what maintenance makes of it: batches without a codec,
blocks as they are or compressed with LZ4, batches from which key compaction has taken records. A tombstone has no
value, so it is known by the text in its header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import lz4.block
from crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
_SEGMENT_END = 96
_SEGMENT_START = 8
_DELETE_HORIZON = 0x40
"""The attribute bit which says that the base timestamp is the time until when tombstones must stay."""


class Unreadable(Exception):
    """The bytes are not what they should be."""


class RawBatchRecord(NamedTuple):
    delta: int
    """Its offset, less the base offset of its batch."""
    time_ms: int
    key: bytes
    value: str
    is_tombstone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    base_offset: int
    last_delta: int
    """The last offset that it covers, less its base offset; key compaction may have taken that record."""
    leader_epoch: int
    producer: tuple[int, int, int]
    crc: int
    records: tuple[RawBatchRecord, ...]

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(record.value for record in self.records)


def batches_in(data: bytes) -> Iterator[RawBatch]:
    """Batches laid end to end."""
    position = 0
    while position < len(data):
        if len(data) - position < _HEADER.size:
            raise Unreadable(f"{len(data) - position} bytes left at {position}, no batch fits there")
        (base_offset, length, epoch, magic, crc, attributes, last_delta, base_ms, _, *producer, count) = (
            _HEADER.unpack_from(data, position)
        )
        end = position + 12 + length
        if magic != 2 or end > len(data) or length < _HEADER.size - 12:
            raise Unreadable(f"no batch at byte {position}: magic {magic}, length {length}")
        if crc32c(data[position + 21 : end]) != crc:
            raise Unreadable(f"the batch at byte {position} fails its checksum")
        if attributes & ~_DELETE_HORIZON or last_delta + 1 < count:
            raise Unreadable(f"the batch at byte {position}: attributes {attributes}, {count} records for {last_delta}")
        records = tuple(_records(data, position + _HEADER.size, end, count, base_ms))
        if any(not 0 <= record.delta <= last_delta for record in records):
            raise Unreadable(f"a record of the batch at byte {position} lies beyond its last offset")
        yield RawBatch(
            base_offset=base_offset,
            last_delta=last_delta,
            leader_epoch=epoch,
            producer=(producer[0], producer[1], producer[2]),
            crc=crc,
            records=records,
        )
        position = end


def batches_in_segment(data: bytes) -> Iterator[RawBatch]:
    if len(data) < _SEGMENT_START + _SEGMENT_END or data[:4] != b"STRM" or data[-4:] != b"STRM":
        raise Unreadable("not a segment")
    (index_offset, index_length) = struct.unpack_from(">QI", data, len(data) - _SEGMENT_END + 68)
    if not _SEGMENT_START <= index_offset <= len(data) - _SEGMENT_END - index_length:
        raise Unreadable(f"a segment of {len(data)} bytes with its index at {index_offset}")
    position = _SEGMENT_START
    for stored_length, raw_length in _blocks(data[index_offset : index_offset + index_length]):
        block = data[position : position + stored_length]
        position += stored_length
        yield from batches_in(block if raw_length is None else _inflated(block, raw_length))
    if position != index_offset:
        raise Unreadable(f"the blocks of a segment end at {position}, its index begins at {index_offset}")


def _blocks(index: bytes) -> Iterator[tuple[int, int | None]]:
    """The stored length of each block, and its raw length if it is compressed."""
    position = 0
    while position < len(index):
        stored_length, position = _unsigned(index, position)
        if position >= len(index):
            raise Unreadable("an index that ends within an entry")
        codec, position = index[position], position + 1
        raw_length: int | None = None
        if codec:
            raw_length, position = _unsigned(index, position)
        for _ in range(4):  # gap, span, record count, time
            _, position = _unsigned(index, position)
        position += 4
        yield stored_length, raw_length


def _inflated(block: bytes, raw_length: int) -> bytes:
    try:
        return bytes(lz4.block.decompress(block, uncompressed_size=raw_length))
    except lz4.block.LZ4BlockError as error:
        raise Unreadable(f"a block cannot be decompressed: {error}") from error


def _records(data: bytes, position: int, end: int, count: int, base_ms: int) -> Iterator[RawBatchRecord]:
    for _ in range(count):
        size, position = _varint(data, position)
        record_end = position + size
        if size < 0 or record_end > end:
            raise Unreadable("a record reaches beyond its batch")
        position += 1
        delta_ms, position = _varint(data, position)
        delta, position = _varint(data, position)
        key, position = _bytes(data, position)
        value, position = _bytes(data, position)
        text = value if value is not None else _header(data, position)
        yield RawBatchRecord(delta, base_ms + delta_ms, key or b"", text.decode("utf-8", "replace"), value is None)
        position = record_end
    if position != end:
        raise Unreadable("a batch longer than its records")


def _header(data: bytes, position: int) -> bytes:
    """The value of a record's first header, which names a tombstone."""
    headers, position = _varint(data, position)
    if headers < 1:
        raise Unreadable("a record without a value and without a header")
    _, position = _bytes(data, position)
    value, _ = _bytes(data, position)
    return value or b""


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    return (None, position) if size < 0 else (data[position : position + size], position + size)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result, position = _unsigned(data, position)
    return (result >> 1) ^ -(result & 1), position


def _unsigned(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Unreadable("a number without end")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
