"""Arrow columns → record batches, and rows → partitions.

A row becomes a record: key and value from binary or string columns (null stays null), the time in milliseconds, headers
from a list<struct<key: string, value: binary>> (null and empty lists are no headers). Batches carry base offset 0
unless told otherwise: the commit decides their offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ImportError("Arrow columns need pyarrow: pip install 'streamhouse[arrow]'") from error

from streamhouse.core.errors import InvalidPartitions, InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_PARTITIONS_PER_TOPIC, MAX_RECORDS_PER_BATCH, MIB
from streamhouse.wire._column_buffers import BinaryColumn, HeaderColumn, RawBuffer
from streamhouse.wire._column_kernel import kernel
from streamhouse.wire.batch import HEADER_BYTES
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import seal_batch

DEFAULT_BATCH_BYTES: Final = 1 * MIB  # large enough to compress well, small enough to fetch one
_EMPTY_OFFSETS: Final = bytes(4)


def encode_columns(
    key: pa.Array | pa.ChunkedArray | None,
    value: pa.Array | pa.ChunkedArray | None,
    timestamp: pa.Array | pa.ChunkedArray,
    headers: pa.Array | pa.ChunkedArray | None = None,
    *,
    rows: pa.Array | None = None,
    codec: int = Codec.NONE,
    compression_level: int | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    records_per_batch: int = MAX_RECORDS_PER_BATCH,
    first_offset: int | None = None,
) -> list[bytes]:
    """The rows as record batches, in order; with ``rows`` (int32) only those, in that order.

    A batch is closed at ``batch_bytes`` before compression or at ``records_per_batch``; a record larger than that goes
    alone. ``timestamp`` is int64 milliseconds or any Arrow timestamp. With ``first_offset`` the batches carry
    consecutive offsets from there on, otherwise each carries 0.
    Raises InvalidRequest for columns of other types, null times or null header keys; LimitExceeded for a record over
    100 MiB.
    """
    encoder = _ColumnSource(key, value, timestamp, headers).encoder(rows)
    return list(
        _batches(
            encoder,
            codec=codec,
            compression_level=compression_level,
            batch_bytes=batch_bytes,
            records_per_batch=records_per_batch,
            first_offset=first_offset,
        )
    )


def encode_by_partition(
    key: pa.Array | pa.ChunkedArray | None,
    value: pa.Array | pa.ChunkedArray | None,
    timestamp: pa.Array | pa.ChunkedArray,
    headers: pa.Array | pa.ChunkedArray | None = None,
    *,
    partitions: pa.Array,
    partition_count: int,
    codec: int = Codec.NONE,
    compression_level: int | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    records_per_batch: int = MAX_RECORDS_PER_BATCH,
) -> dict[int, list[bytes]]:
    """Each partition's batches, its rows in their old order; partitions without rows are left out.

    ``partitions`` (int32, no nulls) says where each row goes: see murmur2_partitions.
    """
    source = _ColumnSource(key, value, timestamp, headers)
    order, begins = group_rows(partitions, partition_count)
    return {
        partition: list(
            _batches(
                source.encoder(order.slice(begins[partition], begins[partition + 1] - begins[partition])),
                codec=codec,
                compression_level=compression_level,
                batch_bytes=batch_bytes,
                records_per_batch=records_per_batch,
                first_offset=None,
            )
        )
        for partition in range(partition_count)
        if begins[partition] < begins[partition + 1]
    }


def murmur2_partitions(keys: pa.Array | pa.ChunkedArray, partition_count: int) -> pa.Array:
    """Where Kafka's default partitioner puts each key, as int32; null for a null key, which has no fixed place."""
    _check_partition_count(partition_count)
    column = _binary_column(keys, "key")
    buffer = kernel.murmur2_partitions(column, partition_count, allocate=pa.allocate_buffer)
    partitions = _int32_array(buffer, column.length)
    if column.validity is None:
        return partitions
    return pc.if_else(pc.equal(partitions, -1), pa.scalar(None, pa.int32()), partitions)


def group_rows(partitions: pa.Array, partition_count: int) -> tuple[pa.Array, list[int]]:
    """Row numbers (int32) ordered by partition, and where each partition's rows begin, with the end at last."""
    _check_partition_count(partition_count)
    numbers = _flat(partitions, "partitions")
    if numbers.type != pa.int32() or numbers.null_count:
        raise InvalidRequest(f"partitions must be int32 without nulls, not {numbers.type}")
    buffer, begins = kernel.group_rows(_fixed_width(numbers, 4), partition_count, allocate=pa.allocate_buffer)
    return _int32_array(buffer, len(numbers)), begins


class _ColumnSource:
    """Columns made ready for the kernel once, to be encoded in one or several selections of their rows."""

    def __init__(self, key: Any, value: Any, timestamp: Any, headers: Any) -> None:
        self._key = None if key is None else _binary_column(key, "key")
        self._value = None if value is None else _binary_column(value, "value")
        self._timestamps = _timestamps_ms(timestamp)
        self._headers = None if headers is None else _header_column(headers)

    def encoder(self, rows: pa.Array | None) -> kernel.Encoder:
        if rows is not None and (rows.type != pa.int32() or rows.null_count):
            raise InvalidRequest(f"rows must be int32 without nulls, not {rows.type}")
        return kernel.Encoder(
            self._key,
            self._value,
            self._timestamps,
            self._headers,
            allocate=pa.allocate_buffer,
            rows=None if rows is None else _fixed_width(rows, 4),
            max_body_bytes=MAX_BATCH_BYTES - HEADER_BYTES,
        )


def _batches(
    encoder: kernel.Encoder,
    *,
    codec: int,
    compression_level: int | None,
    batch_bytes: int,
    records_per_batch: int,
    first_offset: int | None,
) -> Iterator[bytes]:
    if not 1 <= records_per_batch <= MAX_RECORDS_PER_BATCH or not HEADER_BYTES < batch_bytes <= MAX_BATCH_BYTES:
        raise InvalidRequest(f"batches of {records_per_batch} records and {batch_bytes} bytes cannot be made")
    base_offset = first_offset or 0
    while body := encoder.encode(max_records=records_per_batch, target_bytes=batch_bytes - HEADER_BYTES):
        yield seal_batch(
            memoryview(body.data),
            record_count=body.record_count,
            last_offset_delta=body.record_count - 1,
            base_timestamp_ms=body.base_timestamp_ms,
            max_timestamp_ms=body.max_timestamp_ms,
            codec=codec,
            compression_level=compression_level,
            base_offset=base_offset,
        )
        if first_offset is not None:
            base_offset += body.record_count


def _flat(column: pa.Array | pa.ChunkedArray, name: str) -> pa.Array:
    """One array of plain values, whatever the column was cut or encoded into."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            raise LimitExceeded(f"column {name} holds over 2 GiB", hint="encode fewer rows at a time")
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _cast(array: pa.Array, to: pa.DataType, name: str, wanted: str) -> pa.Array:
    if array.type == to:
        return array
    try:
        return array.cast(to)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidRequest(f"column {name} must be {wanted}, not {array.type}: {error}") from None


def _binary_column(column: pa.Array | pa.ChunkedArray, name: str) -> BinaryColumn:
    array = _flat(column, name)
    if not (_is_bytes(array.type) or pa.types.is_null(array.type)):
        raise InvalidRequest(f"column {name} must be binary or string, not {array.type}")
    # A string's buffers are a binary's, so only the other layouts need a cast.
    if array.type not in (pa.binary(), pa.string()):
        array = _cast(array, pa.binary(), name, "binary or string")
    validity, offsets, data = array.buffers()
    return BinaryColumn(
        validity if array.null_count else None,
        offsets if offsets is not None and offsets.size else _EMPTY_OFFSETS,
        b"" if data is None else data,
        array.offset,
        len(array),
    )


def _is_bytes(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return any(
        check(arrow_type)
        for check in (
            types.is_binary,
            types.is_string,
            types.is_large_binary,
            types.is_large_string,
            types.is_fixed_size_binary,
            types.is_binary_view,
            types.is_string_view,
        )
    )


def _header_column(column: pa.Array | pa.ChunkedArray) -> HeaderColumn:
    array = _flat(column, "headers")
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise InvalidRequest(f"column headers must be a list of (key, value), not {array.type}")
    if not pa.types.is_struct(array.type.value_type) or array.type.value_type.num_fields != 2:
        raise InvalidRequest(f"column headers must be a list of (key, value), not {array.type}")
    if pa.types.is_large_list(array.type):
        array = _cast(array, pa.list_(array.type.value_type), "headers", "a list of (key, value)")
    entries = array.values
    if entries.null_count:
        raise InvalidRequest("column headers holds a null entry; leave it out of its list")
    validity, offsets = array.buffers()[:2]
    return HeaderColumn(
        validity if array.null_count else None,
        offsets if offsets is not None and offsets.size else _EMPTY_OFFSETS,
        array.offset,
        len(array),
        _binary_column(entries.field(0), "headers.key"),
        _binary_column(entries.field(1), "headers.value"),
    )


def _timestamps_ms(column: pa.Array | pa.ChunkedArray) -> RawBuffer:
    array = _flat(column, "timestamp")
    if pa.types.is_timestamp(array.type):
        array = pc.floor_temporal(array, unit="millisecond") if array.type.unit in ("us", "ns") else array
        array = _cast(array, pa.timestamp("ms", array.type.tz), "timestamp", "a time").cast(pa.int64())
    if array.type != pa.int64() or array.null_count:
        raise InvalidRequest(f"column timestamp must be int64 milliseconds or a timestamp, no nulls, not {array.type}")
    return _fixed_width(array, 8)


def _fixed_width(array: pa.Array, width: int) -> RawBuffer:
    data = array.buffers()[1]
    return b"" if data is None else data.slice(array.offset * width, len(array) * width)


def _int32_array(buffer: RawBuffer, length: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), length, [None, pa.py_buffer(buffer)], null_count=0)


def _check_partition_count(partition_count: int) -> None:
    if not 1 <= partition_count <= MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitions(f"{partition_count} is not a number of partitions from 1 to {MAX_PARTITIONS_PER_TOPIC}")
