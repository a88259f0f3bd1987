"""Runs of batches → Arrow columns.

    column          Arrow type                                   null
    partition       int32
    offset          int64
    timestamp       int64 milliseconds, or timestamp[us, UTC]
    timestamp_type  int32: 0 create time, 1 log-append time
    key             binary                                       a record without a key
    value           binary                                       a tombstone
    headers         list<struct<key: string, value: binary>>     a record without headers; a header's null value

Names, types and nulls are those of Spark's Kafka source. Bodies are inflated by codecs.py, one batch at a time, and
walked by a kernel that exists twice (_columns.pyx, _columns_py.py). columns_encode.py goes the other way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError("Arrow columns need pyarrow: pip install 'streamhouse[arrow]'") from error

from streamhouse.core.errors import InvalidRequest
from streamhouse.core.limits import MAX_INFLATED_BATCH_BYTES, MIB
from streamhouse.wire._column_buffers import BinaryBuffers, DecodedBuffers, HeaderBuffers
from streamhouse.wire._column_kernel import kernel
from streamhouse.wire.batch import HEADER_BYTES, MIN_RECORD_BYTES, BatchHeader, check_batch, read_header
from streamhouse.wire.buffers import BytesLike
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import inflate_body
from streamhouse.wire.varint import MAX_INT32, MAX_INT64

TimestampUnit = Literal["ms", "us"]

HEADERS_TYPE: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_TYPES: Final = {
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "timestamp_type": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS_TYPE,
}
COLUMNS: Final = tuple(_TYPES)
WITHOUT_HEADERS: Final = COLUMNS[:-1]

_GUESSED_INFLATION: Final = 4  # how much room to reserve for a compressed body; a wrong guess costs a copy


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatches:
    """Whole batches of one partition, laid end to end, and which of their offsets are wanted."""

    partition: int
    data: BytesLike
    base_offset: int | None = None
    """Offset of the first batch, the others follow; for slices whose batches carry offset 0. None: as stored."""
    from_offset: int = 0
    to_offset: int = MAX_INT64
    """The first offset that is not wanted."""


class _Step(NamedTuple):
    run: StoredBatches
    pos: int
    header: BatchHeader
    base_offset: int


def schema(columns: Sequence[str] = WITHOUT_HEADERS, *, timestamp_unit: TimestampUnit = "ms") -> pa.Schema:
    """The schema that decode_columns and iter_columns give for the same arguments."""
    unknown = [name for name in columns if name not in _TYPES]
    if unknown or len(set(columns)) != len(columns):
        raise InvalidRequest(f"columns {list(columns)} are not distinct ones of {list(COLUMNS)}")
    return pa.schema(
        [
            pa.field(
                name, pa.timestamp("us", "UTC") if name == "timestamp" and timestamp_unit == "us" else _TYPES[name]
            )
            for name in columns
        ]
    )


def decode_columns(
    runs: Iterable[StoredBatches],
    *,
    columns: Sequence[str] = WITHOUT_HEADERS,
    timestamp_unit: TimestampUnit = "ms",
    skip_control: bool = True,
    check_crc: bool = True,
    max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES,
) -> pa.RecordBatch:
    """All wanted records of ``runs`` as one Arrow record batch.

    Raises CorruptBatch, InflatedTooLarge, UnsupportedVersion; LimitExceeded when a column passes the 2 GiB that
    Arrow's 32-bit offsets reach: use iter_columns for more.
    """
    result_schema = schema(columns, timestamp_unit=timestamp_unit)
    steps = list(_plan(runs, skip_control=skip_control, check_crc=check_crc))
    guessed_bytes = sum(_guess_bytes(step.header) for step in steps)
    decoder = kernel.Decoder(
        columns,
        allocate=pa.allocate_buffer,
        timestamp_scale=_scale(timestamp_unit),
        row_hint=_guess_rows(sum(step.header.record_count for step in steps), guessed_bytes),
        value_bytes_hint=min(MAX_INT32, guessed_bytes),
    )
    for step in steps:
        _decode(decoder, step, max_inflated_bytes)
    return _record_batch(decoder.finish(), result_schema)


def iter_columns(
    runs: Iterable[StoredBatches],
    *,
    columns: Sequence[str] = WITHOUT_HEADERS,
    timestamp_unit: TimestampUnit = "ms",
    skip_control: bool = True,
    check_crc: bool = True,
    max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES,
    target_bytes: int = 8 * MIB,
) -> Iterator[pa.RecordBatch]:
    """The same in Arrow record batches of about ``target_bytes``, at most twice that unless one record is larger.

    Holds one inflated body at a time. Gives nothing, not an empty batch, when no record is wanted.
    """
    result_schema = schema(columns, timestamp_unit=timestamp_unit)
    decoder: kernel.Decoder | None = None
    for step in _plan(runs, skip_control=skip_control, check_crc=check_crc):
        if decoder is None:
            guessed_bytes = max(_guess_bytes(step.header), MIN_RECORD_BYTES)
            like_this_one = step.header.record_count * target_bytes // guessed_bytes
            decoder = kernel.Decoder(
                columns,
                allocate=pa.allocate_buffer,
                timestamp_scale=_scale(timestamp_unit),
                row_hint=min(like_this_one, target_bytes // (_row_bytes(columns) + 1)),
                value_bytes_hint=max(guessed_bytes, target_bytes),
            )
        _decode(decoder, step, max_inflated_bytes)
        if decoder.data_bytes + decoder.row_count * _row_bytes(columns) >= target_bytes:
            yield from _split(_record_batch(decoder.finish(), result_schema), 2 * target_bytes)
            decoder = None
    if decoder is not None and decoder.row_count:
        yield from _split(_record_batch(decoder.finish(), result_schema), 2 * target_bytes)


def _plan(runs: Iterable[StoredBatches], *, skip_control: bool, check_crc: bool) -> Iterator[_Step]:
    """The batches to decode. Those wholly outside a run's range are stepped over without another look."""
    for run in runs:
        if run.from_offset < 0 or run.to_offset > MAX_INT64:
            raise InvalidRequest(f"offsets {run.from_offset} to {run.to_offset} of partition {run.partition}")
        end = memoryview(run.data).nbytes
        next_offset = run.base_offset
        pos = 0
        while pos < end:
            header = read_header(run.data, pos)
            base_offset = header.base_offset if next_offset is None else next_offset
            if not 0 <= base_offset <= MAX_INT64 - header.last_offset_delta - 1:
                raise InvalidRequest(
                    f"base offset {base_offset} of partition {run.partition} leaves no room for a batch"
                )
            if next_offset is not None:
                next_offset += header.last_offset_delta + 1
            is_wanted = base_offset < run.to_offset and base_offset + header.last_offset_delta >= run.from_offset
            if is_wanted and not (skip_control and header.is_control):
                check_batch(run.data, pos, header, allow_compacted=True, check_crc=check_crc)
                yield _Step(run, pos, header, base_offset)
            pos += header.size


def _decode(decoder: kernel.Decoder, step: _Step, max_inflated_bytes: int) -> None:
    run, pos, header, base_offset = step
    decoder.add(
        inflate_body(run.data, pos, header, max_bytes=max_inflated_bytes),
        header,
        pos=pos,
        partition=run.partition,
        base_offset=base_offset,
        from_offset=run.from_offset,
        to_offset=run.to_offset,
    )


def _guess_bytes(header: BatchHeader) -> int:
    payload_bytes = header.size - HEADER_BYTES
    return payload_bytes if header.codec == Codec.NONE else payload_bytes * _GUESSED_INFLATION


def _guess_rows(record_count: int, guessed_bytes: int) -> int:
    """A count is believed only as far as its bytes could bear it out."""
    return min(record_count, guessed_bytes // MIN_RECORD_BYTES + 1)


def _row_bytes(columns: Sequence[str]) -> int:
    return sum(8 if name in ("offset", "timestamp") else 4 for name in columns)


def _scale(timestamp_unit: TimestampUnit) -> int:
    return 1000 if timestamp_unit == "us" else 1


def _split(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Halve by rows until each part fits; a part is a view, not a copy."""
    pending = [batch]
    while pending:
        part = pending.pop()
        if part.nbytes <= max_bytes or part.num_rows < 2:
            yield part
        else:
            middle = part.num_rows // 2
            pending += (part.slice(middle), part.slice(0, middle))


def _record_batch(decoded: DecodedBuffers, result_schema: pa.Schema) -> pa.RecordBatch:
    rows = decoded.row_count
    arrays = []
    for field in result_schema:
        column = getattr(decoded, field.name)
        if isinstance(column, BinaryBuffers):
            arrays.append(_binary_array(column, rows, field.type))
        elif isinstance(column, HeaderBuffers):
            arrays.append(_headers_array(column, rows))
        else:
            arrays.append(pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(column)], null_count=0))
    return pa.RecordBatch.from_arrays(arrays, schema=result_schema)


def _binary_array(column: BinaryBuffers, rows: int, arrow_type: pa.DataType) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    return pa.Array.from_buffers(
        arrow_type,
        rows,
        [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)],
        null_count=column.null_count,
    )


def _headers_array(column: HeaderBuffers, rows: int) -> pa.Array:
    entries = pa.Array.from_buffers(
        HEADERS_TYPE.value_type,
        column.entry_count,
        [None],
        null_count=0,
        children=[
            _binary_array(column.keys, column.entry_count, pa.string()),
            _binary_array(column.values, column.entry_count, pa.binary()),
        ],
    )
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    return pa.Array.from_buffers(
        HEADERS_TYPE,
        rows,
        [validity, pa.py_buffer(column.offsets)],
        null_count=column.null_count,
        children=[entries],
    )
