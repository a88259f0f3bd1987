"""The keys of a batch's records, for key compaction: read by the kernel that decodes columns, which is compiled."""

from __future__ import annotations

from typing import Final

from streamhouse.wire._column_buffers import BinaryBuffers
from streamhouse.wire._column_kernel import kernel
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike, byte_view
from streamhouse.wire.varint import MAX_INT64

_KEYS: Final = ("offset", "key")
_KEYS_AND_VALUES: Final = ("offset", "timestamp", "key", "value")
_NULLS: Final = [bytes(~validity >> bit & 1 for bit in range(8)) for validity in range(256)]
"""What eight rows of validity say, one byte for each row: 1 if it is null."""


class RecordKeys:
    """The records of one batch by their position: offset and key; with ``values`` also times, and which have no value.

    Raises CorruptBatch if any part of a record cannot be read.
    """

    def __init__(self, body: BytesLike, header: BatchHeader, *, values: bool) -> None:
        decoder = kernel.Decoder(_KEYS_AND_VALUES if values else _KEYS, allocate=bytearray)
        decoder.add(
            body, header, pos=0, partition=0, base_offset=header.base_offset, from_offset=0, to_offset=MAX_INT64
        )
        found = decoder.finish()
        assert found.key is not None, "the column was asked for"
        count = found.row_count
        self.offsets: memoryview[int] = _numbers(found.offset, "q", count)
        self.keys = bytes(byte_view(found.key.data))
        self.bounds: memoryview[int] = _numbers(found.key.offsets, "i", count + 1)
        """Record n's key lies between bounds n and n + 1 of ``keys``."""
        self.without_key = _nulls(found.key, count)
        """One byte for each record: 1 if it has no key."""
        self.without_value = bytes(count) if found.value is None else _nulls(found.value, count)
        """The same for values. All 0 unless values were asked for."""
        self.timestamps_ms: memoryview[int] = _numbers(found.timestamp, "q", count if values else 0)


def _numbers(buffer: object, format_: str, count: int) -> memoryview:
    view = byte_view(buffer if buffer is not None else b"")  # type: ignore[arg-type]
    return view.cast(format_)[:count]  # type: ignore[call-overload,no-any-return]


def _nulls(column: BinaryBuffers, count: int) -> bytes:
    if column.validity is None or not column.null_count:
        return bytes(count)
    return b"".join(map(_NULLS.__getitem__, byte_view(column.validity)))[:count]
