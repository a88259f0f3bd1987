"""Reads record batches, and the batches in a segment, from raw bytes, for the checker.

Written from the formats' drawings (wire/batch.py, formats/segment_v1.py), not with their code. Only what the simulated
producers write is understood: plain batches, raw blocks, records of a value without key or headers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
_SEGMENT_END = 96
_SEGMENT_START = 8


class Unreadable(Exception):
    """The bytes are not what they should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBatch:
    base_offset: int
    leader_epoch: int
    values: tuple[str, ...]


def batches_in(data: bytes) -> Iterator[RawBatch]:
    """Batches laid end to end."""
    position = 0
    while position < len(data):
        if len(data) - position < _HEADER.size:
            raise Unreadable(f"{len(data) - position} bytes left at {position}, no batch fits there")
        base_offset, length, epoch, magic, crc, attributes, last_delta, *_, count = _HEADER.unpack_from(data, position)
        end = position + 12 + length
        if magic != 2 or end > len(data) or length < _HEADER.size - 12:
            raise Unreadable(f"no batch at byte {position}: magic {magic}, length {length}")
        if crc32c(data[position + 21 : end]) != crc:
            raise Unreadable(f"the batch at byte {position} fails its checksum")
        if attributes or last_delta + 1 != count:
            raise Unreadable(f"the batch at byte {position}: attributes {attributes}, {count} records for {last_delta}")
        values = tuple(_values(data, position + _HEADER.size, end, count))
        yield RawBatch(base_offset=base_offset, leader_epoch=epoch, values=values)
        position = end


def batches_in_segment(data: bytes) -> Iterator[RawBatch]:
    if len(data) < _SEGMENT_START + _SEGMENT_END or data[:4] != b"STRM" or data[-4:] != b"STRM":
        raise Unreadable("not a segment")
    (index_offset,) = struct.unpack_from(">Q", data, len(data) - _SEGMENT_END + 68)
    if not _SEGMENT_START <= index_offset <= len(data) - _SEGMENT_END:
        raise Unreadable(f"a segment of {len(data)} bytes with its index at {index_offset}")
    return batches_in(data[_SEGMENT_START:index_offset])


def _values(data: bytes, position: int, end: int, count: int) -> Iterator[str]:
    for _ in range(count):
        size, position = _varint(data, position)
        record_end = position + size
        if size < 0 or record_end > end:
            raise Unreadable("a record reaches beyond its batch")
        position += 1
        for _ in range(2):
            _, position = _varint(data, position)
        key_size, position = _varint(data, position)
        position += max(0, key_size)
        value_size, position = _varint(data, position)
        yield data[position : position + max(0, value_size)].decode("utf-8", "replace")
        position = record_end
    if position != end:
        raise Unreadable("a batch longer than its records")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise Unreadable("a number without end")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
