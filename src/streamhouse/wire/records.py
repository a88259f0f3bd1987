"""Records inside a batch, as Python objects: for the Python API, lookups by time, control markers and tests.

    record  ┌────────┬──────────┬───────────┬─────────┬─────────┬─────┬─────────┬───────┬─────────┬─────────┐
            │ length │attributes│ timestamp │ offset  │ key     │ key │ value   │ value │ header  │ headers │
            │ varint │i8, unused│ delta     │ delta   │ length  │     │ length  │       │ count   │         │
            │        │          │ varlong   │ varint  │ varint  │     │ varint  │       │ varint  │         │
            └────────┴──────────┴───────────┴─────────┴─────────┴─────┴─────────┴───────┴─────────┴─────────┘
    header  ┌────────────┬─────┬──────────────┬───────┐
            │ key length │ key │ value length │ value │      length -1 is null; a header key is never null
            └────────────┴─────┴──────────────┴───────┘
    control record: key = version i16, type i16 (0 abort, 1 commit); value = version i16, coordinator epoch i32

Every length is checked against the end of its record before a byte is read. Bulk decoding belongs to columns.py.
"""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypedDict, Unpack

from streamhouse.core.errors import CorruptBatch, InvalidRequest, LimitExceeded
from streamhouse.core.limits import (
    MAX_BATCH_BYTES,
    MAX_HEADERS_PER_RECORD,
    MAX_INFLATED_BATCH_BYTES,
    MAX_RECORDS_PER_BATCH,
)
from streamhouse.wire import batch as wire_batch
from streamhouse.wire.batch import BatchHeader, TimestampType
from streamhouse.wire.buffers import BytesLike, byte_view
from streamhouse.wire.codecs import Codec, codec_of, compress, inflate
from streamhouse.wire.varint import (
    MAX_INT64,
    MIN_INT64,
    MalformedRecord,
    RecordFault,
    append_varint,
    read_varint,
    read_varlong,
)


class Header(NamedTuple):
    """A key that is not UTF-8 reads with U+FFFD in place of the bad bytes, as in Kafka's own client."""

    key: str
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = wire_batch.NO_TIMESTAMP
    offset: int = 0
    headers: tuple[Header, ...] = ()


class ControlType(enum.IntEnum):
    UNKNOWN = -1  # a kind newer than this build; readers step over it
    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlMarker:
    """The end of a producer's transaction in this partition."""

    type: ControlType
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    offset: int


class RawRecord(NamedTuple):
    """One record as views into the inflated batch; what both decoders here and in _columns_py start from."""

    offset_delta: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None
    headers: list[tuple[memoryview, memoryview | None]]


_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")


def decode_records(
    buf: BytesLike,
    pos: int = 0,
    *,
    base_offset: int | None = None,
    max_inflated_bytes: int = MAX_INFLATED_BATCH_BYTES,
) -> list[Record]:
    """Check the batch at ``pos`` and decode its records, with absolute offsets and timestamps.

    ``base_offset`` stands in for the stored one, for batches whose offsets come from elsewhere. A batch that key
    compaction thinned is accepted. Raises CorruptBatch, InflatedTooLarge or UnsupportedVersion.
    """
    header = wire_batch.validate(buf, pos, allow_compacted=True)
    base = header.base_offset if base_offset is None else base_offset
    body = inflate_body(buf, pos, header, max_bytes=max_inflated_bytes)
    return [
        Record(
            key=None if raw.key is None else bytes(raw.key),
            value=None if raw.value is None else bytes(raw.value),
            timestamp_ms=raw.timestamp_ms,
            offset=base + raw.offset_delta,
            headers=tuple(
                Header(header_key_text(key), None if value is None else bytes(value)) for key, value in raw.headers
            ),
        )
        for raw in iter_raw_records(body, header, pos)
    ]


def read_control_marker(buf: BytesLike, pos: int = 0) -> ControlMarker:
    """The marker of a control batch. Raises CorruptBatch when the batch is none, or its marker is malformed."""
    header = wire_batch.read_header(buf, pos)
    if not header.is_control:
        raise CorruptBatch(f"record batch at byte {pos}: not a control batch")
    records = decode_records(buf, pos)
    if len(records) != 1:
        raise CorruptBatch(f"record batch at byte {pos}: a control batch holds one record, this one {len(records)}")
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < _CONTROL_KEY.size or len(value) < _CONTROL_VALUE.size:
        raise CorruptBatch(f"record batch at byte {pos}: its control record is too short")
    _, type_id = _CONTROL_KEY.unpack_from(key)
    _, coordinator_epoch = _CONTROL_VALUE.unpack_from(value)
    return ControlMarker(
        type=ControlType(type_id) if type_id in (ControlType.ABORT, ControlType.COMMIT) else ControlType.UNKNOWN,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        coordinator_epoch=coordinator_epoch,
        offset=records[0].offset,
    )


def inflate_body(buf: BytesLike, pos: int, header: BatchHeader, *, max_bytes: int) -> memoryview:
    """The records of the batch at ``pos``, uncompressed: a view of ``buf`` itself when they are not compressed."""
    payload = byte_view(buf)[pos + wire_batch.HEADER_BYTES : pos + header.size]
    if header.codec == Codec.NONE or not payload:
        return payload
    return byte_view(inflate(header.codec, payload, max_bytes=max_bytes))


def iter_raw_records(body: memoryview, header: BatchHeader, pos: int) -> Iterator[RawRecord]:
    """Walk an inflated body. ``pos`` is the place of the batch, for the text of errors."""
    index = at = 0
    previous_delta = -1
    try:
        while index < header.record_count:
            raw, at = _read_record(body, at, header, previous_delta)
            previous_delta = raw.offset_delta
            index += 1
            yield raw
        if at != len(body):
            raise MalformedRecord(RecordFault.BATCH_TRAILING)
    except MalformedRecord as malformed:
        raise corrupt_record(pos, index, malformed.fault) from None


def corrupt_record(pos: int, index: int, fault: RecordFault) -> CorruptBatch:
    return CorruptBatch(f"record batch at byte {pos}: record {index}: {fault.text}")


def header_key_text(key: BytesLike) -> str:
    return str(key, "utf-8", "replace")


def _read_record(body: memoryview, pos: int, batch: BatchHeader, previous_delta: int) -> tuple[RawRecord, int]:
    length, pos = read_varint(body, pos, len(body))
    if not 0 <= length <= len(body) - pos:
        raise MalformedRecord(RecordFault.RECORD_LENGTH)
    end = pos + length
    if length == 0:
        raise MalformedRecord(RecordFault.RECORD_CUT)
    timestamp_delta, pos = read_varlong(body, pos + 1, end)
    offset_delta, pos = read_varint(body, pos, end)
    if not previous_delta < offset_delta <= batch.last_offset_delta:
        raise MalformedRecord(RecordFault.OFFSET_DELTA)
    if batch.timestamp_type == TimestampType.LOG_APPEND_TIME:
        timestamp_ms = batch.max_timestamp
    else:
        timestamp_ms = batch.base_timestamp + timestamp_delta
        if not MIN_INT64 <= timestamp_ms <= MAX_INT64:
            raise MalformedRecord(RecordFault.TIMESTAMP)
    key, pos = _read_nullable(body, pos, end, RecordFault.KEY_LENGTH)
    value, pos = _read_nullable(body, pos, end, RecordFault.VALUE_LENGTH)
    headers, pos = _read_headers(body, pos, end)
    if pos != end:
        raise MalformedRecord(RecordFault.RECORD_TRAILING)
    return RawRecord(offset_delta, timestamp_ms, key, value, headers), end


def _read_headers(body: memoryview, pos: int, end: int) -> tuple[list[tuple[memoryview, memoryview | None]], int]:
    count, pos = read_varint(body, pos, end)
    if not 0 <= count <= min(MAX_HEADERS_PER_RECORD, (end - pos) // 2):
        raise MalformedRecord(RecordFault.HEADER_COUNT)
    headers: list[tuple[memoryview, memoryview | None]] = []
    for _ in range(count):
        key, pos = _read_nullable(body, pos, end, RecordFault.HEADER_KEY_LENGTH)
        if key is None:
            raise MalformedRecord(RecordFault.HEADER_KEY_LENGTH)
        value, pos = _read_nullable(body, pos, end, RecordFault.HEADER_VALUE_LENGTH)
        headers.append((key, value))
    return headers, pos


def _read_nullable(body: memoryview, pos: int, end: int, fault: RecordFault) -> tuple[memoryview | None, int]:
    length, pos = read_varint(body, pos, end)
    if not -1 <= length <= end - pos:
        raise MalformedRecord(fault)
    return (None, pos) if length < 0 else (body[pos : pos + length], pos + length)


class BatchFields(TypedDict, total=False):
    """What a new batch's header says beyond what its records determine; seal_batch has the defaults."""

    codec: int
    compression_level: int | None
    base_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    timestamp_type: TimestampType
    is_transactional: bool
    is_control: bool


def build_batch(records: Sequence[Record], *, last_offset: int | None = None, **fields: Unpack[BatchFields]) -> bytes:
    """One batch of ``records``, at consecutive offsets from ``base_offset`` on; their own offsets are not looked at.

    With ``last_offset`` the batch is one that key compaction thinned: its records keep their own offsets, which must
    rise from ``base_offset`` and not pass ``last_offset``, and there may be none (R18).
    Raises InvalidRequest for what a batch cannot express, LimitExceeded for what is too large.
    """
    base_offset = fields.get("base_offset", 0)
    if last_offset is None:
        if not records:
            raise InvalidRequest("a batch needs at least one record")
        deltas: Sequence[int] = range(len(records))
        last_delta = len(records) - 1
    else:
        deltas = [record.offset - base_offset for record in records]
        last_delta = last_offset - base_offset
        if any(low >= high for low, high in itertools.pairwise([-1, *deltas, last_delta + 1])):
            raise InvalidRequest(f"offsets of the records do not rise from {base_offset} to at most {last_offset}")
    base_timestamp_ms = records[0].timestamp_ms if records else wire_batch.NO_TIMESTAMP
    body = bytearray()
    for record, delta in zip(records, deltas, strict=True):
        _append_record(body, record, delta, base_timestamp_ms)
    return seal_batch(
        body,
        record_count=len(records),
        last_offset_delta=last_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max((record.timestamp_ms for record in records), default=wire_batch.NO_TIMESTAMP),
        **fields,
    )


def build_control_batch(
    kind: ControlType, *, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """The marker that ends a transaction of this producer."""
    marker = Record(
        key=_CONTROL_KEY.pack(0, kind), value=_CONTROL_VALUE.pack(0, coordinator_epoch), timestamp_ms=timestamp_ms
    )
    return build_batch(
        [marker], producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=True, is_control=True
    )


def seal_batch(
    body: BytesLike,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    codec: int = Codec.NONE,
    compression_level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = wire_batch.NO_LEADER_EPOCH,
    producer_id: int = wire_batch.NO_PRODUCER_ID,
    producer_epoch: int = wire_batch.NO_PRODUCER_EPOCH,
    base_sequence: int = wire_batch.NO_SEQUENCE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Compress encoded records and put a header with its CRC before them."""
    if record_count > MAX_RECORDS_PER_BATCH:
        raise LimitExceeded(f"a batch of {record_count} records is over the limit of {MAX_RECORDS_PER_BATCH}")
    if memoryview(body).nbytes > MAX_INFLATED_BATCH_BYTES:
        raise LimitExceeded(f"records of a batch are over the limit of {MAX_INFLATED_BATCH_BYTES} bytes")
    # Readers tell an empty batch by its count and would not know what to inflate.
    used_codec = codec_of(codec) if record_count else Codec.NONE
    payload = compress(used_codec, body, level=compression_level)
    size = wire_batch.HEADER_BYTES + memoryview(payload).nbytes
    if size > MAX_BATCH_BYTES:
        raise LimitExceeded(f"a batch of {size} bytes is over the limit of {MAX_BATCH_BYTES}")
    attributes = (
        used_codec
        | (wire_batch.LOG_APPEND_TIME_BIT if timestamp_type == TimestampType.LOG_APPEND_TIME else 0)
        | (wire_batch.TRANSACTIONAL_BIT if is_transactional else 0)
        | (wire_batch.CONTROL_BIT if is_control else 0)
    )
    return wire_batch.join_batch(
        payload,
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp_ms,
        max_timestamp=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def _append_record(out: bytearray, record: Record, offset_delta: int, base_timestamp_ms: int) -> None:
    timestamp_delta = record.timestamp_ms - base_timestamp_ms
    if not MIN_INT64 <= timestamp_delta <= MAX_INT64:
        raise InvalidRequest(
            f"timestamps {base_timestamp_ms} and {record.timestamp_ms} are too far apart for one batch"
        )
    if len(record.headers) > MAX_HEADERS_PER_RECORD:
        raise LimitExceeded(f"{len(record.headers)} headers are over the limit of {MAX_HEADERS_PER_RECORD} a record")
    inner = bytearray(1)
    append_varint(inner, timestamp_delta)
    append_varint(inner, offset_delta)
    _append_nullable(inner, record.key)
    _append_nullable(inner, record.value)
    append_varint(inner, len(record.headers))
    for header in record.headers:
        _append_nullable(inner, header.key.encode("utf-8", "replace"))
        _append_nullable(inner, header.value)
    if len(out) + len(inner) > MAX_INFLATED_BATCH_BYTES:
        raise LimitExceeded(f"records of a batch are over the limit of {MAX_INFLATED_BATCH_BYTES} bytes")
    append_varint(out, len(inner))
    out += inner


def _append_nullable(out: bytearray, value: bytes | None) -> None:
    if value is None:
        append_varint(out, -1)
    else:
        append_varint(out, len(value))
        out += value
