"""The pure-Python twin of _columns.pyx: its oracle in the tests, and its stand-in where it was not built.

Same names, same results, same refusals in the same words; some two hundred times slower.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_HEADERS_PER_RECORD
from streamhouse.wire._column_buffers import (
    BinaryBuffers,
    BinaryColumn,
    DecodedBuffers,
    EncodedBody,
    HeaderBuffers,
    HeaderColumn,
    RawBuffer,
)
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike, byte_view
from streamhouse.wire.murmur2 import partition_for_key
from streamhouse.wire.records import corrupt_record, header_key_text, iter_raw_records
from streamhouse.wire.varint import MAX_INT32, MAX_INT64, MIN_INT64, RecordFault, append_varint

Allocate = Callable[[int], RawBuffer]
_INT32: Final[Literal["i"]] = "i"
_INT64: Final[Literal["q"]] = "q"


class _BinaryOut:
    """A binary column under construction."""

    def __init__(self) -> None:
        self.offsets = array(_INT32, [0])
        self.data = bytearray()
        self.valid: list[bool] = []

    def append(self, value: BytesLike | None) -> None:
        if value is not None:
            self.data += value
        self.offsets.append(len(self.data))
        self.valid.append(value is not None)

    def finish(self) -> BinaryBuffers:
        null_count = self.valid.count(False)
        return BinaryBuffers(_bits(self.valid) if null_count else None, self.offsets, self.data, null_count)


class Decoder:
    """Builds the wanted columns, one batch after another. After a refusal it must not be used again."""

    def __init__(
        self,
        wanted: Collection[str],
        *,
        allocate: Allocate,
        timestamp_scale: int = 1,
        max_column_bytes: int = MAX_INT32,
        row_hint: int = 0,
        value_bytes_hint: int = 0,
    ) -> None:
        if not 0 <= max_column_bytes <= MAX_INT32:
            raise ValueError("Arrow's binary columns hold at most 2**31 - 1 bytes")
        self._wanted = frozenset(wanted)
        self._timestamp_scale = timestamp_scale
        self._max_column_bytes = max_column_bytes
        self._partitions = array(_INT32)
        self._offsets = array(_INT64)
        self._timestamps = array(_INT64)
        self._timestamp_types = array(_INT32)
        self._key = _BinaryOut()
        self._value = _BinaryOut()
        self._list_offsets = array(_INT32, [0])
        self._list_valid: list[bool] = []
        self._header_keys = _BinaryOut()
        self._header_values = _BinaryOut()

    @property
    def row_count(self) -> int:
        return len(self._offsets)

    @property
    def data_bytes(self) -> int:
        """Bytes of keys, values and headers so far."""
        return sum(len(column.data) for column in self._binary_columns())

    def add(
        self,
        body: BytesLike,
        header: BatchHeader,
        *,
        pos: int,
        partition: int,
        base_offset: int,
        from_offset: int,
        to_offset: int,
    ) -> None:
        """Append the records of an inflated batch that lie in [from_offset, to_offset). Raises CorruptBatch."""
        if base_offset + header.last_offset_delta > MAX_INT64:
            raise InvalidRequest(f"base offset {base_offset} leaves no room for the batch")
        view = byte_view(body)
        fullest = max(len(column.data) for column in self._binary_columns())
        if max(fullest, self._list_offsets[-1]) + len(view) > self._max_column_bytes:
            raise self._column_full()
        for index, raw in enumerate(iter_raw_records(view, header, pos)):
            offset = base_offset + raw.offset_delta
            if not from_offset <= offset < to_offset:
                continue
            timestamp = raw.timestamp_ms * self._timestamp_scale
            if not MIN_INT64 <= timestamp <= MAX_INT64:
                raise corrupt_record(pos, index, RecordFault.TIMESTAMP)
            self._partitions.append(partition)
            self._offsets.append(offset)
            self._timestamps.append(timestamp)
            self._timestamp_types.append(header.timestamp_type)
            if "key" in self._wanted:
                self._key.append(raw.key)
            if "value" in self._wanted:
                self._value.append(raw.value)
            if "headers" in self._wanted:
                self._append_headers(raw.headers)

    def finish(self) -> DecodedBuffers:
        """Return the columns that were built."""
        wanted = self._wanted
        return DecodedBuffers(
            self.row_count,
            self._partitions if "partition" in wanted else None,
            self._offsets if "offset" in wanted else None,
            self._timestamps if "timestamp" in wanted else None,
            self._timestamp_types if "timestamp_type" in wanted else None,
            self._key.finish() if "key" in wanted else None,
            self._value.finish() if "value" in wanted else None,
            self._finish_headers() if "headers" in wanted else None,
        )

    def _binary_columns(self) -> tuple[_BinaryOut, ...]:
        return self._key, self._value, self._header_keys, self._header_values

    def _append_headers(self, headers: list[tuple[memoryview, memoryview | None]]) -> None:
        for key, value in headers:
            text = header_key_text(key).encode()
            if len(self._header_keys.data) + len(text) > self._max_column_bytes:
                raise self._column_full()
            self._header_keys.append(text)
            self._header_values.append(value)
        self._list_offsets.append(self._list_offsets[-1] + len(headers))
        self._list_valid.append(bool(headers))

    def _finish_headers(self) -> HeaderBuffers:
        null_count = self._list_valid.count(False)
        return HeaderBuffers(
            _bits(self._list_valid) if null_count else None,
            self._list_offsets,
            null_count,
            self._list_offsets[-1],
            self._header_keys.finish(),
            self._header_values.finish(),
        )

    def _column_full(self) -> LimitExceeded:
        return LimitExceeded(
            f"a column would pass {self._max_column_bytes} bytes", hint="decode fewer batches at a time"
        )


class _Rows:
    """Checks that an array's buffers are long enough for it, and its offsets and validity as they are read."""

    def __init__(self, validity: RawBuffer | None, offsets: RawBuffer, start: int, length: int) -> None:
        self.start = start
        self.length = length
        self._offsets = _numbers(offsets, _INT32)
        self._validity = None if validity is None else byte_view(validity)
        for available in (len(self._offsets) - 1, *([] if self._validity is None else [len(self._validity) * 8])):
            if start < 0 or length < 0 or length > available - start:
                raise InvalidRequest(f"an array of {length} rows from {start} does not fit its buffers")

    def extent(self, row: int, limit: int) -> tuple[int, int] | None:
        """Where the row's items begin and end; None for a null row. Raises IndexError when that makes no sense."""
        at = self.start + row
        if self._validity is not None and not self._validity[at >> 3] >> (at & 7) & 1:
            return None
        begin, end = self._offsets[at], self._offsets[at + 1]
        if not 0 <= begin <= end <= limit:
            raise IndexError
        return begin, end


class _BinaryIn:
    def __init__(self, column: BinaryColumn) -> None:
        self.rows = _Rows(column.validity, column.offsets, column.start, column.length)
        self._data = byte_view(column.data)

    def __getitem__(self, row: int) -> memoryview | None:
        extent = self.rows.extent(row, len(self._data))
        return None if extent is None else self._data[extent[0] : extent[1]]


class Encoder:
    """Turns rows into the bodies of batches, as many rows to a body as the limits of ``encode`` allow."""

    def __init__(
        self,
        key: BinaryColumn | None,
        value: BinaryColumn | None,
        timestamps: RawBuffer,
        headers: HeaderColumn | None = None,
        *,
        allocate: Allocate,
        rows: RawBuffer | None = None,
        max_body_bytes: int,
    ) -> None:
        self._key = None if key is None else _BinaryIn(key)
        self._value = None if value is None else _BinaryIn(value)
        self._timestamps = _numbers(timestamps, _INT64)
        self._header_rows: _Rows | None = None
        if headers is not None:
            self._header_rows = _Rows(headers.validity, headers.offsets, headers.start, headers.length)
            self._header_keys = _BinaryIn(headers.keys)
            self._header_values = _BinaryIn(headers.values)
        if any(column is not None and column.length != len(self._timestamps) for column in (key, value, headers)):
            raise InvalidRequest("columns of different lengths")
        self._rows = range(len(self._timestamps)) if rows is None else _numbers(rows, _INT32)
        self._max_body_bytes = max_body_bytes
        self._next = 0

    def encode(self, *, max_records: int, target_bytes: int) -> EncodedBody | None:
        """The next body, or None when all rows are done. One record larger than the target makes a body alone."""
        if self._next >= len(self._rows):
            return None
        out = bytearray()
        base_timestamp = max_timestamp = 0
        count = 0
        while self._next < len(self._rows) and count < max_records:
            row = self._rows[self._next]
            if not 0 <= row < len(self._timestamps):
                raise InvalidRequest(f"row {self._next}: selects a row that is not there")
            timestamp = self._timestamps[row]
            if count == 0:
                base_timestamp = max_timestamp = timestamp
            if not MIN_INT64 <= timestamp - base_timestamp <= MAX_INT64:
                break  # too far apart for one batch: the row starts the next
            record = self._encode_row(row, timestamp - base_timestamp, count)
            if count and len(out) + len(record) > target_bytes:
                break
            if len(out) + len(record) > self._max_body_bytes:
                raise LimitExceeded(f"row {self._next}: a record is over the limit of {self._max_body_bytes} bytes")
            out += record
            max_timestamp = max(max_timestamp, timestamp)
            count += 1
            self._next += 1
        return EncodedBody(out, count, base_timestamp, max_timestamp)

    def _encode_row(self, row: int, timestamp_delta: int, offset_delta: int) -> bytearray:
        inner = bytearray(1)
        append_varint(inner, timestamp_delta)
        append_varint(inner, offset_delta)
        try:
            _append_nullable(inner, None if self._key is None else self._key[row])
            _append_nullable(inner, None if self._value is None else self._value[row])
            headers = list(self._headers(row))
        except IndexError:
            raise InvalidRequest(f"row {self._next}: the offsets of an array make no sense") from None
        append_varint(inner, len(headers))
        for key, value in headers:
            _append_nullable(inner, key)
            _append_nullable(inner, value)
        record = bytearray()
        append_varint(record, len(inner))
        return record + inner

    def _headers(self, row: int) -> Iterator[tuple[memoryview, memoryview | None]]:
        if self._header_rows is None:
            return
        limit = min(self._header_keys.rows.length, self._header_values.rows.length)
        begin, end = self._header_rows.extent(row, limit) or (0, 0)
        if end - begin > MAX_HEADERS_PER_RECORD:
            raise LimitExceeded(f"row {self._next}: over the limit of {MAX_HEADERS_PER_RECORD} headers a record")
        for entry in range(begin, end):
            key = self._header_keys[entry]
            if key is None:
                raise InvalidRequest(f"row {self._next}: a header key is null")
            yield key, self._header_values[entry]


def murmur2_partitions(keys: BinaryColumn, partition_count: int, *, allocate: Allocate) -> RawBuffer:
    """The partition of each key, as int32; a null key gets -1."""
    column = _BinaryIn(keys)
    if partition_count < 1:
        raise InvalidRequest(f"a topic has at least 1 partition, not {partition_count}")
    partitions = array(_INT32)
    for row in range(keys.length):
        try:
            key = column[row]
        except IndexError:
            raise InvalidRequest(f"row {row}: the offsets of an array make no sense") from None
        partitions.append(-1 if key is None else partition_for_key(key, partition_count))
    return partitions


def group_rows(partitions: RawBuffer, partition_count: int, *, allocate: Allocate) -> tuple[RawBuffer, list[int]]:
    """Row numbers (int32) ordered by partition, in their old order within each, and where each partition begins.

    ``partitions`` holds int32 numbers below ``partition_count``; the list has ``partition_count + 1`` entries.
    """
    numbers = _numbers(partitions, _INT32)
    if partition_count < 1:
        raise InvalidRequest(f"a topic has at least 1 partition, not {partition_count}")
    counts = [0] * partition_count
    for row, number in enumerate(numbers):
        if not 0 <= number < partition_count:
            raise InvalidRequest(f"row {row}: there is no partition {number} of {partition_count}")
        counts[number] += 1
    order = array(_INT32, sorted(range(len(numbers)), key=numbers.__getitem__))
    return order, [0, *itertools.accumulate(counts)]


def _append_nullable(out: bytearray, value: memoryview | None) -> None:
    append_varint(out, -1 if value is None else len(value))
    if value is not None:
        out += value


def _numbers(buffer: RawBuffer, code: Literal["i", "q"]) -> memoryview:
    """The whole numbers in a buffer; a few bytes of padding after the last are left out."""
    view = byte_view(buffer)
    width = array(code).itemsize
    return view[: len(view) // width * width].cast(code)


def _bits(flags: list[bool]) -> bytes:
    """Arrow's bitmaps: eight to a byte, the first in the lowest bit."""
    return bytes(
        sum(flag << index for index, flag in enumerate(flags[start : start + 8])) for start in range(0, len(flags), 8)
    )
