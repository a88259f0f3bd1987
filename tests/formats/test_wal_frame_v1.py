"""The WAL's file header and frame: what goes in comes out, and no damaged byte passes."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from format_samples import START_MS, TOPIC, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from wal_samples import WAL, image

from streamhouse.core.errors import CorruptFrame, InvalidRequest, LimitExceeded, UnsupportedVersion
from streamhouse.core.ids import TopicId
from streamhouse.formats.wal_frame_v1 import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    FileHeader,
    FrameKind,
    encode_file_header,
    encode_frame_header,
    read_file_header,
    read_frame,
)
from streamhouse.formats.wal_scan_v1 import Ending, frames, scan
from streamhouse.wire.batch import read_header

GOLDEN = Path(__file__).parent / "golden" / "wal_v1.wal"
FIELDS = {
    "wal_id": WAL,
    "generation": 3,
    "lsn": 12,
    "last_synced_lsn": 9,
    "topic_id": TOPIC,
    "partition": 4,
    "epoch": 6,
    "base_offset": 1_000,
    "timestamp_ms": START_MS,
    "acks": 1,
}
HEADER = FileHeader(wal_id=WAL, generation=3, first_lsn=10, created_at_ms=START_MS)

unsigned = st.integers(0, 2**64 - 1)
signed = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)
@given(
    payload=st.binary(max_size=300),
    cut=st.integers(0, 300),
    before=st.binary(max_size=9),
    fields=st.fixed_dictionaries(
        {
            "wal_id": st.uuids(),
            "generation": unsigned,
            "lsn": st.integers(1, 2**64 - 1),
            "topic_id": st.uuids().map(TopicId),
            "partition": st.integers(-(2**31), 2**31 - 1),
            "epoch": signed,
            "base_offset": signed,
            "timestamp_ms": signed,
            "acks": st.sampled_from([-1, 0, 1]),
            "kind": st.sampled_from(FrameKind),
        }
    ),
    data=st.data(),
)
def test_a_frame_round_trips_with_its_payload_in_parts(payload, cut, before, fields, data) -> None:
    fields["last_synced_lsn"] = data.draw(st.integers(0, fields["lsn"] - 1))
    header = encode_frame_header(payload[:cut], memoryview(payload)[cut:], **fields)
    frame = read_frame(before + header + payload, len(before))
    assert len(header) == FRAME_HEADER_BYTES
    assert bytes(frame.payload) == payload
    assert {name: getattr(frame, name) for name in fields} == fields
    assert frame.end_position == len(before) + len(header) + len(payload)


@settings(deadline=None)
@given(wal_id=st.uuids(), generation=st.integers(1, 2**64 - 1), first_lsn=st.integers(1, 2**64 - 1), created=signed)
def test_a_file_header_round_trips(wal_id: UUID, generation: int, first_lsn: int, created: int) -> None:
    header = FileHeader(wal_id=wal_id, generation=generation, first_lsn=first_lsn, created_at_ms=created)
    encoded = encode_file_header(header)
    assert len(encoded) == FILE_HEADER_BYTES
    assert read_file_header(encoded + b"rest") == header


def test_s3_14_a_frame_carries_offset_epoch_timestamp_and_leaves_the_producer_to_its_batch() -> None:
    batch = make_batch(base_offset=1_000, producer_id=77, producer_epoch=2, base_sequence=5)
    frame = read_frame(encode_frame_header(batch, **FIELDS) + batch)
    assert (frame.base_offset, frame.epoch, frame.timestamp_ms, frame.acks) == (1_000, 6, START_MS, 1)
    producer = read_header(frame.payload)
    assert (producer.producer_id, producer.producer_epoch, producer.base_sequence) == (77, 2, 5)


def test_the_payload_is_not_copied() -> None:
    data = bytearray(encode_frame_header(b"abcd", **FIELDS) + b"abcd")
    frame = read_frame(data)
    data[-1:] = b"!"
    assert bytes(frame.payload) == b"abc!"


def test_r12_every_flipped_bit_of_a_frame_is_detected() -> None:
    whole = encode_frame_header(b"payload", **FIELDS) + b"payload"
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            read_frame(damaged)


def test_r12_every_truncation_of_a_frame_is_detected() -> None:
    whole = encode_frame_header(b"payload", **FIELDS) + b"payload"
    for length in range(len(whole)):
        with pytest.raises(CorruptFrame):
            read_frame(whole[:length])


def test_r12_every_flipped_bit_of_a_file_header_is_detected() -> None:
    whole = encode_file_header(HEADER)
    for bit in [*range(8 * 80), *range(8 * 80, 8 * FILE_HEADER_BYTES, 97)]:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFrame):
            read_file_header(damaged)
    with pytest.raises(CorruptFrame):
        read_file_header(whole[:-1])


def test_what_a_newer_build_wrote_is_refused_not_taken_for_damage() -> None:
    newer = bytearray(encode_file_header(HEADER))
    newer[8:10] = (2).to_bytes(2, "big")
    newer[4:8] = crc32c(newer[8:]).to_bytes(4, "big")
    with pytest.raises(UnsupportedVersion):
        read_file_header(newer)
    for place in (8, 11):  # kind, flags
        frame = bytearray(encode_frame_header(**FIELDS))
        frame[place] = 9
        frame[4:8] = crc32c(frame[8:]).to_bytes(4, "big")
        with pytest.raises(UnsupportedVersion):
            read_frame(frame)


def test_a_length_over_the_limit_is_refused_both_ways() -> None:
    with pytest.raises(LimitExceeded):
        encode_frame_header(memoryview(bytearray(MAX_PAYLOAD_BYTES + 1)), **FIELDS)
    huge = bytearray(encode_frame_header(**FIELDS))
    huge[12:16] = b"\xff" * 4
    huge[4:8] = crc32c(huge[8:]).to_bytes(4, "big")
    with pytest.raises(CorruptFrame):
        read_frame(huge)


@pytest.mark.parametrize("wrong", [{"last_synced_lsn": 12}, {"last_synced_lsn": -1}, {"acks": 2}])
def test_a_frame_that_makes_no_sense_is_not_encoded(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        encode_frame_header(**{**FIELDS, **wrong})


@pytest.mark.parametrize("wrong", [{"generation": 0}, {"first_lsn": 0}])
def test_a_file_that_makes_no_sense_is_not_encoded(wrong: dict[str, int]) -> None:
    fields = {"wal_id": WAL, "generation": 1, "first_lsn": 1, "created_at_ms": 0}
    with pytest.raises(InvalidRequest):
        encode_file_header(FileHeader(**{**fields, **wrong}))


def golden_bytes() -> bytes:
    made = image(
        [make_batch(base_offset=10 * number, count=number + 1) for number in range(5)], generation=4, first_lsn=9
    )
    made.add(b"", last_synced_lsn=made.next_lsn - 1, kind=FrameKind.SYNCED)
    return bytes(made.data) + bytes(200)


def test_golden_file_is_written_byte_for_byte() -> None:
    assert golden_bytes() == GOLDEN.read_bytes()


def test_golden_file_is_read() -> None:
    data = GOLDEN.read_bytes()
    result = scan(data, wal_id=WAL)
    assert (result.ending, result.frame_count, result.next_lsn) == (Ending.CLEAN, 6, 15)
    assert result.header == FileHeader(wal_id=WAL, generation=4, first_lsn=9, created_at_ms=START_MS)
    found = list(frames(data, result))
    assert [frame.lsn for frame in found] == [9, 10, 11, 12, 13, 14]
    assert [frame.last_synced_lsn for frame in found] == [8, 8, 8, 11, 11, 13]
    assert [read_header(frame.payload).record_count for frame in found[:5]] == [1, 2, 3, 4, 5]
    assert (found[5].kind, len(found[5].payload)) == (FrameKind.SYNCED, 0)
