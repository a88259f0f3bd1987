"""S3.15: a segment is read whole or in ranges, by offset or by time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from format_samples import START_MS, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_samples import BATCHES, GOLDEN, KEY, Compression, build, read_ranged, runs

from streamhouse.core.errors import CorruptSegment, UnsupportedVersion
from streamhouse.formats.segment_v1 import (
    FOOTER_BYTES,
    BlockCodec,
    ByteRange,
    parse_footer,
)
from streamhouse.formats.segment_v1_index import parse_index, range_of
from streamhouse.formats.segment_v1_reader import (
    RangedReader,
    decode_block,
    decode_run,
    read_segment,
    verify_segment,
)
from streamhouse.wire import batch as wire

compressions = st.sampled_from(["none", "lz4"])


@settings(max_examples=80, deadline=None)
@given(runs(), compressions, st.integers(1, 2000), st.integers(0, 3000))
def test_s3_15_a_segment_round_trips(batches: list[bytes], compression: Compression, target: int, tail: int) -> None:
    data, finished = build(batches, compression=compression, target=target)
    assert finished.size == len(data)
    segment = verify_segment(data)
    headers = [wire.read_header(batch) for batch in batches]
    footer = segment.footer
    assert footer == finished.footer
    assert segment.index.blocks == finished.blocks
    assert (footer.key, footer.sparse) == (KEY, False)
    assert (footer.base_offset, footer.end_offset) == (headers[0].base_offset, headers[-1].last_offset)
    assert footer.record_count == sum(header.record_count for header in headers)
    assert footer.min_timestamp_ms == min(header.base_timestamp for header in headers)
    assert footer.max_timestamp_ms == max(header.max_timestamp for header in headers)
    assert b"".join(segment.runs()) == b"".join(batches)
    reader = read_ranged(data, tail_bytes=tail)
    assert (reader.footer, reader.index) == (footer, segment.index)


@settings(max_examples=40, deadline=None)
@given(runs(), compressions, st.data())
def test_s3_15_a_ranged_read_finds_every_offset(batches: list[bytes], compression: Compression, data) -> None:
    stored, finished = build(batches, compression=compression, target=600)
    reader = read_ranged(stored)
    offset = data.draw(st.integers(finished.footer.base_offset, finished.footer.end_offset))
    blocks = reader.index.blocks_from(offset)
    wanted = range_of(blocks)
    assert blocks[0].base_offset <= offset <= blocks[0].end_offset
    fetched = b"".join(decode_run(stored[wanted.offset : wanted.end], blocks))
    assert b"".join(batches).endswith(fetched)
    assert wire.read_header(fetched).base_offset == blocks[0].base_offset
    assert (
        decode_block(stored[wanted.offset :][: blocks[0].stored_length], blocks[0]) == fetched[: blocks[0].raw_length]
    )
    assert reader.index.blocks_from(finished.footer.end_offset + 1) == ()
    assert reader.index.blocks_from(0) == reader.index.blocks


def test_batches_keep_their_offsets_and_leader_epochs() -> None:
    data, _ = build(BATCHES)
    found = [header for run in read_segment(data).runs() for _, header in wire.iter_batches(run)]
    assert found == [wire.read_header(batch) for batch in BATCHES]
    assert {header.partition_leader_epoch for header in found} == {7}


def test_the_footer_and_a_small_index_take_one_read_and_a_large_index_two() -> None:
    data, finished = build(BATCHES)
    one = RangedReader(len(data))
    assert one.need() == ByteRange(offset=0, length=len(data))
    one.feed(data)
    assert one.need() is None
    two = RangedReader(len(data), tail_bytes=0)
    assert two.need() == ByteRange(offset=len(data) - FOOTER_BYTES, length=FOOTER_BYTES)
    two.feed(data[-FOOTER_BYTES:])
    assert two.need() == finished.footer.index_range
    with pytest.raises(ValueError, match="index"):
        _ = two.index
    with pytest.raises(CorruptSegment, match="were asked for"):
        two.feed(data[finished.footer.index_offset : finished.footer.index_range.end - 1])


def test_r18_key_compaction_keeps_offsets_while_records_go() -> None:
    """Records of the first batch are gone, the second is gone whole, and the last is empty at the hole's end."""
    batches = [
        make_batch(base_offset=10, count=10, records=4, payload=bytes(70)),
        make_batch(base_offset=30, count=5, records=5),
        make_batch(base_offset=60, count=40, records=0, payload=b""),
    ]
    data, finished = build(batches, sparse=True, target=1)
    footer = verify_segment(data).footer
    assert (footer.base_offset, footer.end_offset, footer.record_count, footer.sparse) == (10, 99, 9, True)
    index = read_segment(data).index
    assert [(block.base_offset, block.end_offset) for block in finished.blocks] == [(10, 19), (30, 34), (60, 99)]
    assert index.blocks_from(25)[0].base_offset == 30
    assert index.blocks_from(99)[0].base_offset == 60


def test_blocks_fetched_with_a_wrong_length_are_refused() -> None:
    data, finished = build(BATCHES)
    wanted = range_of(finished.blocks[:2])
    with pytest.raises(CorruptSegment, match="not"):
        list(decode_run(data[wanted.offset : wanted.end + 1], finished.blocks[:2]))
    assert list(decode_run(b"", [])) == []


def test_what_a_newer_build_wrote_is_refused_not_taken_for_damage() -> None:
    data, finished = build(BATCHES)
    for at, value in ((5, 2), (7, 1)):
        with pytest.raises(UnsupportedVersion):
            read_segment(data[:at] + bytes([value]) + data[at + 1 :])
    for at, value in ((85, 2), (87, 4)):
        fields = bytearray(data[-FOOTER_BYTES:-8])
        fields[at] = value
        tail = bytes(fields) + crc32c(fields).to_bytes(4, "big") + b"STRM"
        with pytest.raises(UnsupportedVersion):
            parse_footer(tail, len(data))
    index = bytearray(data[finished.footer.index_offset : finished.footer.index_range.end])
    codec_at = 1 if index[0] < 0x80 else 2
    index[codec_at] = 9
    with pytest.raises(UnsupportedVersion, match="codec 9"):
        parse_index(index, replace(finished.footer, index_crc=crc32c(index)))


@pytest.mark.parametrize("name", ["segment_v1_raw.strm", "segment_v1_lz4.strm"])
def test_golden_segments_are_read(name: str) -> None:
    """LZ4's output is no part of the format and may change with the library, so that file is read, not compared."""
    segment = verify_segment((GOLDEN / name).read_bytes())
    assert b"".join(segment.runs()) == b"".join(BATCHES)
    footer = segment.footer
    assert (footer.key, footer.base_offset, footer.end_offset, footer.record_count) == (KEY, 100, 149, 50)
    assert (footer.min_timestamp_ms - START_MS, footer.max_timestamp_ms - START_MS) == (-153, 4494)
    codecs = {block.codec for block in segment.index.blocks}
    assert codecs == ({BlockCodec.LZ4} if "lz4" in name else {BlockCodec.RAW})
