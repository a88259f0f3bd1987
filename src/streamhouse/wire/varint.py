"""Zigzag varints, and why the bytes of a record may be refused.

    a signed number is folded to unsigned, 0 -1 1 -2 2 … → 0 1 2 3 4 …, and stored seven bits to a byte, lowest first;
    the top bit says that another byte follows: at most 5 bytes for an int32, 10 for an int64

The reasons are numbered so that the compiled reader, which cannot build messages without Python, names the same ones.
"""

from __future__ import annotations

import enum
from typing import Final

MIN_INT32: Final = -(2**31)
MAX_INT32: Final = 2**31 - 1
MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1


class RecordFault(enum.IntEnum):
    """The ways in which a record can be wrong. The numbers are shared with _columns.pyx."""

    VARINT = 1
    RECORD_LENGTH = 2
    RECORD_CUT = 3
    OFFSET_DELTA = 4
    TIMESTAMP = 5
    KEY_LENGTH = 6
    VALUE_LENGTH = 7
    HEADER_COUNT = 8
    HEADER_KEY_LENGTH = 9
    HEADER_VALUE_LENGTH = 10
    RECORD_TRAILING = 11
    BATCH_TRAILING = 12

    @property
    def text(self) -> str:
        return _FAULT_TEXTS[self]


_FAULT_TEXTS: Final = {
    RecordFault.VARINT: "a number is cut off or too long",
    RecordFault.RECORD_LENGTH: "its length is negative or passes the end of the batch",
    RecordFault.RECORD_CUT: "it has no room for its attributes",
    RecordFault.OFFSET_DELTA: "its offset delta does not rise, or passes the batch's last",
    RecordFault.TIMESTAMP: "its timestamp does not fit 64 bits",
    RecordFault.KEY_LENGTH: "its key's length is below -1 or passes its end",
    RecordFault.VALUE_LENGTH: "its value's length is below -1 or passes its end",
    RecordFault.HEADER_COUNT: "its header count is negative, over the limit, or more than its bytes can hold",
    RecordFault.HEADER_KEY_LENGTH: "a header key's length is negative or passes its end",
    RecordFault.HEADER_VALUE_LENGTH: "a header value's length is below -1 or passes its end",
    RecordFault.RECORD_TRAILING: "bytes are left over at its end",
    RecordFault.BATCH_TRAILING: "bytes are left over after the last record",
}


class MalformedRecord(Exception):
    """Raised and caught within wire/: the caller knows which batch and record, and says so in a CorruptBatch."""

    def __init__(self, fault: RecordFault) -> None:
        super().__init__(fault)
        self.fault = fault


def read_varint(view: memoryview, pos: int, end: int) -> tuple[int, int]:
    """The int32 at ``pos`` and the position after it; never looks at or past ``end``."""
    if pos < end and (byte := view[pos]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read(view, pos, end, 5, 0x0F)


def read_varlong(view: memoryview, pos: int, end: int) -> tuple[int, int]:
    """The int64 at ``pos`` and the position after it; never looks at or past ``end``."""
    if pos < end and (byte := view[pos]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    return _read(view, pos, end, 10, 0x01)


def _read(view: memoryview, pos: int, end: int, max_bytes: int, last_byte_max: int) -> tuple[int, int]:
    folded = 0
    for index in range(max_bytes):
        if pos >= end:
            break
        byte = view[pos]
        pos += 1
        if index == max_bytes - 1 and byte > last_byte_max:
            break
        folded |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return (folded >> 1) ^ -(folded & 1), pos
    raise MalformedRecord(RecordFault.VARINT)


def append_varint(out: bytearray, value: int) -> None:
    """Append a number of at most 64 bits; the bytes of an int32 are the same either way."""
    folded = value << 1 if value >= 0 else ~(value << 1)
    while folded > 0x7F:
        out.append(folded & 0x7F | 0x80)
        folded >>= 7
    out.append(folded)
