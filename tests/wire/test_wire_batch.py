"""The header of a batch: read, checked and patched without a look at the records."""

from __future__ import annotations

import array
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_samples import CODECS, START_MS, record_lists, sample_batch, sample_records, with_crc

from streamhouse.core.errors import CorruptBatch, InvalidRequest, UnsupportedVersion
from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_RECORDS_PER_BATCH
from streamhouse.wire.batch import (
    HEADER_BYTES,
    TimestampType,
    iter_batches,
    join_batch,
    patch,
    read_header,
    stamp_log_append_time,
    validate,
)
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import build_batch, decode_records


def test_every_header_field_is_read_from_its_place() -> None:
    batch = build_batch(
        sample_records(4),
        codec=Codec.LZ4,
        base_offset=2**40,
        leader_epoch=9,
        producer_id=2**33,
        producer_epoch=5,
        base_sequence=77,
        is_transactional=True,
    )
    header = read_header(b"junk" + batch + b"more", 4)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (2**33, 5, 77)
    assert (header.last_offset, header.next_offset, header.record_count) == (2**40 + 3, 2**40 + 4, 4)
    assert (header.codec, header.timestamp_type) == (Codec.LZ4, TimestampType.CREATE_TIME)
    assert header.is_transactional
    assert header.has_producer
    assert not header.is_control
    assert header.size == len(batch)
    assert header.max_timestamp == max(record.timestamp_ms for record in sample_records(4))


def test_a_batch_without_producer_says_so() -> None:
    header = read_header(sample_batch())
    assert not header.has_producer
    assert not header.is_transactional


@pytest.mark.parametrize("codec", CODECS)
def test_validate_passes_what_build_batch_made(codec: Codec) -> None:
    batch = sample_batch(codec=codec)
    assert validate(batch) == read_header(batch)


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda data: memoryview(array.array("b", data))])
def test_any_bytes_like_will_do(wrap: type) -> None:
    batch = wrap(sample_batch())
    assert validate(batch).record_count == 20
    assert [pos for pos, _ in iter_batches(batch)] == [0]


def test_r18_a_count_that_differs_from_the_offsets_is_refused_unless_compacted() -> None:
    thinned = build_batch(sample_records(3), base_offset=0, last_offset=9)
    with pytest.raises(CorruptBatch, match="3 records for 10 offsets"):
        validate(thinned)
    assert validate(thinned, allow_compacted=True).next_offset == 10
    crowded = bytearray(sample_batch(4))
    struct.pack_into(">i", crowded, 23, 2)
    with pytest.raises(CorruptBatch, match="4 records for 3 offsets"):
        validate(with_crc(crowded), allow_compacted=True)


def test_r18_an_emptied_batch_keeps_its_offsets() -> None:
    empty = build_batch([], base_offset=40, last_offset=49, codec=Codec.ZSTD)
    header = validate(empty, allow_compacted=True)
    assert (header.record_count, header.base_offset, header.next_offset) == (0, 40, 50)
    assert decode_records(empty) == []
    with pytest.raises(CorruptBatch):
        validate(empty)


def test_a_count_its_bytes_cannot_hold_is_refused() -> None:
    batch = bytearray(sample_batch(4))
    struct.pack_into(">i", batch, 23, 999)
    struct.pack_into(">i", batch, 57, 1000)
    with pytest.raises(CorruptBatch, match="cannot fit"):
        validate(with_crc(batch))


def test_a_count_over_the_limit_is_refused_even_where_compression_hides_the_bytes() -> None:
    batch = bytearray(sample_batch(4, codec=Codec.ZSTD))
    struct.pack_into(">i", batch, 23, MAX_RECORDS_PER_BATCH)
    struct.pack_into(">i", batch, 57, MAX_RECORDS_PER_BATCH + 1)
    with pytest.raises(CorruptBatch, match="over the limit"):
        validate(with_crc(batch))


@pytest.mark.parametrize(
    ("at", "field", "value"),
    [
        pytest.param(0, ">q", -1, id="base offset below 0"),
        pytest.param(0, ">q", 2**63 - 3, id="offsets past 64 bits"),
        pytest.param(8, ">i", -1, id="negative length"),
        pytest.param(8, ">i", 48, id="length shorter than the header"),
        pytest.param(8, ">i", 2**31 - 1, id="length past the end"),
        pytest.param(16, ">b", 1, id="magic 1"),
        pytest.param(16, ">b", 3, id="magic 3"),
        pytest.param(23, ">i", -1, id="negative last offset delta"),
    ],
)
def test_impossible_headers_are_refused(at: int, field: str, value: int) -> None:
    batch = bytearray(sample_batch())
    struct.pack_into(field, batch, at, value)
    with pytest.raises(CorruptBatch, match="record batch at byte 0"):
        read_header(batch)


def test_a_length_over_the_limit_is_refused_even_if_the_bytes_are_there() -> None:
    batch = bytearray(MAX_BATCH_BYTES + 1)
    batch[:HEADER_BYTES] = sample_batch()[:HEADER_BYTES]
    struct.pack_into(">i", batch, 8, MAX_BATCH_BYTES + 1 - 12)
    with pytest.raises(CorruptBatch, match="over the limit"):
        read_header(batch)


@pytest.mark.parametrize("pos", [-1, 1, HEADER_BYTES, 10**9])
def test_a_position_without_a_header_is_refused(pos: int) -> None:
    with pytest.raises(CorruptBatch):
        read_header(sample_batch()[: HEADER_BYTES + 0], pos)


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_an_unknown_codec_is_an_unsupported_version_not_corruption(codec_id: int) -> None:
    batch = bytearray(sample_batch())
    batch[22] |= codec_id
    with pytest.raises(UnsupportedVersion, match=f"codec {codec_id}"):
        validate(with_crc(batch))


@given(record_lists, st.integers(0, 2**62), st.integers(-1, 2**31 - 1), st.sampled_from(CODECS))
def test_patching_moves_a_batch_and_leaves_it_valid(
    records: list[object], base_offset: int, leader_epoch: int, codec: Codec
) -> None:
    batch = build_batch(records, codec=codec)  # type: ignore[arg-type]
    patched = bytearray(b"\0" * 7 + batch)
    patch(patched, 7, base_offset=base_offset, leader_epoch=leader_epoch)
    header = validate(patched, 7)
    assert (header.base_offset, header.partition_leader_epoch) == (base_offset, leader_epoch)
    assert patched[7 + 16 :] == batch[16:]
    assert [record.offset for record in decode_records(patched, 7)] == [base_offset + i for i in range(len(records))]


def test_patching_needs_a_header_and_a_writable_buffer() -> None:
    with pytest.raises(CorruptBatch):
        patch(bytearray(60), 0, base_offset=1, leader_epoch=1)
    with pytest.raises((TypeError, BufferError)):
        patch(memoryview(sample_batch()), 0, base_offset=1, leader_epoch=1)


def test_log_append_time_stamps_every_record_and_renews_the_crc() -> None:
    records = sample_records(6)
    run = bytearray(build_batch(records) * 2)
    half = len(run) // 2
    stamp_log_append_time(run, half, timestamp_ms=START_MS + 9999)
    header = validate(run, half)
    assert header.timestamp_type == TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == START_MS + 9999
    assert {record.timestamp_ms for record in decode_records(run, half)} == {START_MS + 9999}
    assert [record.timestamp_ms for record in decode_records(run)] == [record.timestamp_ms for record in records]


def test_a_run_is_walked_batch_by_batch() -> None:
    batches = [sample_batch(count, base_offset=count * 10, codec=codec) for count, codec in enumerate(CODECS, 1)]
    found = list(iter_batches(memoryview(b"".join(batches))))
    assert [header.base_offset for _, header in found] == [10, 20, 30, 40, 50]
    assert [pos for pos, _ in found] == [sum(map(len, batches[:index])) for index in range(5)]
    assert list(iter_batches(b"")) == []


def test_a_run_that_ends_within_a_batch_is_refused_where_it_breaks() -> None:
    first, second = sample_batch(3), sample_batch(5)
    walk = iter_batches(first + second[:-1])
    assert next(walk)[0] == 0
    with pytest.raises(CorruptBatch, match=f"at byte {len(first)}"):
        next(walk)


def test_a_run_vouched_for_elsewhere_is_walked_without_its_crc() -> None:
    batch = bytearray(sample_batch())
    batch[-1] ^= 1
    assert len(list(iter_batches(batch, check_crc=False))) == 1
    assert validate(batch, check_crc=False).record_count == 20
    with pytest.raises(CorruptBatch, match="CRC-32C"):
        list(iter_batches(batch))


def test_a_field_that_does_not_fit_its_bytes_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidRequest, match="cannot hold"):
        join_batch(
            b"",
            base_offset=2**63,
            partition_leader_epoch=0,
            attributes=0,
            last_offset_delta=0,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=1,
        )
