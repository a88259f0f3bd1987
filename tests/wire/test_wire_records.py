"""Records as objects: round trips, control markers, and a refusal for every way a record can be malformed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_samples import CODECS, START_MS, record_lists, sample_batch, sample_records, with_body

from streamhouse.core.errors import CorruptBatch, InflatedTooLarge, InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_HEADERS_PER_RECORD
from streamhouse.wire.batch import HEADER_BYTES, TimestampType, read_header, validate
from streamhouse.wire.codecs import Codec, compress
from streamhouse.wire.records import (
    ControlType,
    Header,
    Record,
    build_batch,
    build_control_batch,
    decode_records,
    read_control_marker,
)
from streamhouse.wire.varint import RecordFault, append_varint


@settings(deadline=None)
@given(record_lists, st.sampled_from(CODECS), st.integers(0, 2**40))
def test_round_trip(records: list[Record], codec: Codec, base_offset: int) -> None:
    batch = build_batch(records, codec=codec, base_offset=base_offset)
    assert validate(batch).record_count == len(records)
    decoded = decode_records(memoryview(b"before" + batch), 6)
    assert [(r.key, r.value, r.timestamp_ms, r.headers) for r in decoded] == [
        (r.key, r.value, r.timestamp_ms, r.headers) for r in records
    ]
    assert [r.offset for r in decoded] == list(range(base_offset, base_offset + len(records)))


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -1, 0, 2**63 - 1])
def test_extreme_times_round_trip_alone(timestamp_ms: int) -> None:
    assert decode_records(build_batch([Record(timestamp_ms=timestamp_ms)]))[0].timestamp_ms == timestamp_ms


def test_times_too_far_apart_for_one_batch_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="too far apart"):
        build_batch([Record(timestamp_ms=-(2**63)), Record(timestamp_ms=2**63 - 1)])


def test_offsets_come_from_the_caller_when_it_knows_better() -> None:
    assert [r.offset for r in decode_records(sample_batch(3), base_offset=700)] == [700, 701, 702]


def test_every_record_of_a_log_append_batch_has_its_max_timestamp() -> None:
    records = sample_records(5)
    batch = build_batch(records, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert {r.timestamp_ms for r in decode_records(batch)} == {max(r.timestamp_ms for r in records)}


def test_a_header_key_that_is_not_utf8_reads_as_kafkas_client_reads_it() -> None:
    batch = build_batch([Record(headers=(Header("abcd", b"x"),))])
    latin = with_body(batch, batch[HEADER_BYTES:].replace(b"abcd", b"ab\xe9d"))
    assert decode_records(latin)[0].headers == (Header("ab�d", b"x"),)


@pytest.mark.parametrize("kind", [ControlType.ABORT, ControlType.COMMIT])
@pytest.mark.parametrize("base_offset", [0, 12])
def test_control_batches_are_recognised_and_read(kind: ControlType, base_offset: int) -> None:
    batch = bytearray(
        build_control_batch(kind, producer_id=9, producer_epoch=3, coordinator_epoch=7, timestamp_ms=START_MS)
    )
    struct.pack_into(">q", batch, 0, base_offset)
    header = validate(batch)
    assert header.is_control
    assert header.is_transactional
    marker = read_control_marker(batch)
    assert (marker.type, marker.offset) == (kind, base_offset)
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (9, 3, 7)


def test_a_control_type_of_the_future_is_unknown_not_an_error() -> None:
    batch = build_batch([Record(key=struct.pack(">hh", 0, 4), value=struct.pack(">hi", 0, 1))], is_control=True)
    assert read_control_marker(batch).type == ControlType.UNKNOWN


@pytest.mark.parametrize(
    ("records", "is_control", "complaint"),
    [
        ([Record(key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")], False, "not a control batch"),
        ([Record(key=b"\0\0\0", value=b"\0\0\0\0\0\0")], True, "too short"),
        ([Record(key=b"\0\0\0\1", value=None)], True, "too short"),
        ([Record(key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")] * 2, True, "holds one record"),
    ],
)
def test_what_is_no_control_marker_is_refused(records: list[Record], is_control: bool, complaint: str) -> None:
    with pytest.raises(CorruptBatch, match=complaint):
        read_control_marker(build_batch(records, is_control=is_control))


# One record: length 20, attributes, timestamp delta, offset delta, key "k", value "vv", one header ("h", "w").
FIELDS = {
    "attributes": b"\0",
    "timestamp": b"\0",
    "offset": b"\0",
    "key": b"\x02k",
    "value": b"\x04vv",
    "count": b"\x02",
    "header key": b"\x02h",
    "header value": b"\x02w",
}


def record_with(length: int | None = None, tail: bytes = b"", **changed: bytes) -> bytes:
    inner = b"".join({**FIELDS, **{name.replace("_", " "): data for name, data in changed.items()}}.values())
    out = bytearray()
    append_varint(out, len(inner) if length is None else length)
    return bytes(out + inner + tail)


MALFORMED = {
    "length cut off": (b"\x80", RecordFault.VARINT),
    "length too long": (b"\xff\xff\xff\xff\xff\x0f", RecordFault.VARINT),
    "length of 33 bits": (b"\xff\xff\xff\xff\x1f", RecordFault.VARINT),
    "length negative": (record_with(length=-1), RecordFault.RECORD_LENGTH),
    "length past the end": (record_with(length=100), RecordFault.RECORD_LENGTH),
    "length huge": (record_with(length=2**31 - 1), RecordFault.RECORD_LENGTH),
    "length 0": (record_with(length=0), RecordFault.RECORD_CUT),
    "length too small": (record_with(length=1), RecordFault.VARINT),
    "timestamp of 65 bits": (record_with(timestamp=b"\xff" * 9 + b"\x02"), RecordFault.VARINT),
    "timestamp past 64 bits": (record_with(timestamp=b"\xfe" + b"\xff" * 8 + b"\x01"), RecordFault.TIMESTAMP),
    "offset negative": (record_with(offset=b"\x01"), RecordFault.OFFSET_DELTA),
    "offset past the last": (record_with(offset=b"\x02"), RecordFault.OFFSET_DELTA),
    "key below null": (record_with(key=b"\x03"), RecordFault.KEY_LENGTH),
    "key past its record": (record_with(key=b"\x40k"), RecordFault.KEY_LENGTH),
    "value below null": (record_with(value=b"\x03"), RecordFault.VALUE_LENGTH),
    "value past its record": (record_with(value=b"\x40vv", tail=b"x" * 60), RecordFault.VALUE_LENGTH),
    "headers negative": (record_with(count=b"\x01"), RecordFault.HEADER_COUNT),
    "headers more than bytes": (record_with(count=b"\x06"), RecordFault.HEADER_COUNT),
    "header key null": (record_with(header_key=b"\x01"), RecordFault.HEADER_KEY_LENGTH),
    "header key past its record": (record_with(header_key=b"\x10h"), RecordFault.HEADER_KEY_LENGTH),
    "header value below null": (record_with(header_value=b"\x03w"), RecordFault.HEADER_VALUE_LENGTH),
    "header value past its record": (record_with(header_value=b"\x08w"), RecordFault.HEADER_VALUE_LENGTH),
    "headers fewer than bytes": (record_with(count=b"\0"), RecordFault.RECORD_TRAILING),
    "more bytes than records": (record_with(tail=b"\0"), RecordFault.BATCH_TRAILING),
    "no bytes": (b"", RecordFault.VARINT),
}


@pytest.mark.parametrize(("body", "fault"), MALFORMED.values(), ids=MALFORMED)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_each_malformed_record_is_named_for_what_is_wrong(body: bytes, fault: RecordFault, codec: Codec) -> None:
    template = build_batch([Record(key=b"k", timestamp_ms=2**62)], codec=codec)
    batch = with_body(template, bytes(compress(codec, body)))
    if codec == Codec.NONE and len(body) < 7:
        with pytest.raises(CorruptBatch, match="cannot fit"):
            decode_records(batch)
        return
    index = 1 if fault == RecordFault.BATCH_TRAILING else 0
    with pytest.raises(CorruptBatch) as refusal:
        decode_records(batch)
    assert refusal.value.message == f"record batch at byte 0: record {index}: {fault.text}"


def test_offset_deltas_must_rise() -> None:
    batch = build_batch([Record(), Record()])
    body = batch[HEADER_BYTES:]
    half = len(body) // 2
    with pytest.raises(CorruptBatch, match="record 1: its offset delta does not rise"):
        decode_records(with_body(batch, body[:half] * 2))


def test_headers_over_the_limit_are_refused_both_ways() -> None:
    many = (Header("", None),) * (MAX_HEADERS_PER_RECORD + 1)
    with pytest.raises(LimitExceeded, match="headers"):
        build_batch([Record(headers=many)])
    most = build_batch([Record(headers=many[1:])])
    assert len(decode_records(most)[0].headers) == MAX_HEADERS_PER_RECORD
    inner = b"\0\0\0\x01\x01" + _varint(MAX_HEADERS_PER_RECORD + 1) + b"\0\x01" * (MAX_HEADERS_PER_RECORD + 1)
    with pytest.raises(CorruptBatch, match="header count"):
        decode_records(with_body(most, _varint(len(inner)) + inner))


def test_the_cap_on_inflation_holds_here_too() -> None:
    with pytest.raises(InflatedTooLarge):
        decode_records(sample_batch(50, codec=Codec.ZSTD), max_inflated_bytes=100)


def test_what_a_batch_cannot_express_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one record"):
        build_batch([])
    for offsets, last in (([3, 3], 9), ([4, 3], 9), ([3, 10], 9), ([-1], 9)):
        with pytest.raises(InvalidRequest, match="do not rise"):
            build_batch([Record(offset=offset) for offset in offsets], last_offset=last)


def test_r18_a_compacted_batch_keeps_offsets_base_and_end() -> None:
    kept = [record for record in sample_records(30) if record.offset in (3, 4, 17)]
    batch = build_batch(kept, base_offset=2, last_offset=29, codec=Codec.LZ4)
    assert decode_records(batch) == kept
    assert (read_header(batch).base_offset, read_header(batch).last_offset) == (2, 29)


def _varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)
