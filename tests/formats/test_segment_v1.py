"""S3.15: the segment, written as batches come, read in ranges or whole, and damaged in every way."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import lz4.block
import pytest
from crc32c import crc32c
from format_samples import START_MS, TOPIC, batch_run, damages, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptBatch, CorruptSegment, InvalidRequest, LimitExceeded, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_BLOCK_BYTES, MAX_SEGMENT_BYTES, MIB, TARGET_BLOCK_BYTES
from streamhouse.formats import segment_v1_writer
from streamhouse.formats.segment_v1 import (
    FOOTER_BYTES,
    HEAD_BYTES,
    BlockCodec,
    BlockInfo,
    ByteRange,
    Footer,
    encode_footer,
    parse_footer,
)
from streamhouse.formats.segment_v1_index import encode_index, parse_index, range_of
from streamhouse.formats.segment_v1_reader import (
    RangedReader,
    decode_block,
    decode_run,
    read_segment,
    verify_segment,
)
from streamhouse.formats.segment_v1_writer import FinishedSegment, SegmentWriter, write_segment
from streamhouse.wire import batch as wire

Compression = Literal["none", "lz4"]
KEY = PartitionKey(TOPIC, 5)
DETECTED = (CorruptSegment, CorruptBatch, UnsupportedVersion)
GOLDEN = Path(__file__).parent / "golden"
BATCHES = batch_run(count=12, seed=3, base_offset=100, leader_epoch=7)


def build(
    batches: Iterable[bytes], *, compression: Compression = "none", target: int = 700, sparse: bool = False
) -> tuple[bytes, FinishedSegment]:
    writer = SegmentWriter(key=KEY, compression=compression, target_block_bytes=target, sparse=sparse)
    out = bytearray()
    for batch in batches:
        for buffer in writer.append(batch, wire.validate(batch, allow_compacted=sparse)):
            out += buffer
    finished = writer.finish()
    for buffer in finished.buffers:
        out += buffer
    return bytes(out), finished


def read_ranged(data: bytes, *, tail_bytes: int = 64) -> RangedReader:
    reader = RangedReader(len(data), tail_bytes=tail_bytes)
    while (need := reader.need()) is not None:
        reader.feed(data[need.offset : need.end])
    return reader


def reseal(data: bytes, finished: FinishedSegment, blocks: list[BlockInfo] | None = None, **changes: object) -> bytes:
    """The same blocks under another index and footer with right CRCs: what a faulty writer would make."""
    footer = finished.footer
    if blocks is not None:
        index = encode_index(blocks, base_offset=footer.base_offset, max_timestamp_ms=footer.max_timestamp_ms)
        footer = replace(footer, index_length=len(index), index_crc=crc32c(index), block_count=len(blocks))
    else:
        index = data[footer.index_offset : footer.index_range.end]
    return data[: footer.index_offset] + index + encode_footer(replace(footer, **changes))


compressions = st.sampled_from(["none", "lz4"])


@st.composite
def runs(draw: st.DrawFn) -> list[bytes]:
    base_offset = draw(st.integers(0, 2**40))
    epoch = draw(st.integers(0, 2**31 - 1))
    made = []
    for _ in range(draw(st.integers(1, 12))):
        count = draw(st.integers(1, 30))
        made.append(
            make_batch(
                base_offset=base_offset,
                count=count,
                payload=draw(st.one_of(st.binary(min_size=7 * count, max_size=400), st.just(b"a" * 400))),
                leader_epoch=epoch,
                first_ms=draw(st.integers(-(2**62), 2**62)),
            )
        )
        base_offset += count
    return made


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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30), st.integers(-60, 60))
def test_s3_15_a_timestamp_finds_the_first_block_that_reaches_it(times: list[int], wanted: int) -> None:
    """Producers' clocks go back and forth: the times of blocks are in no order."""
    batches = [make_batch(base_offset=n, count=1, first_ms=-100, max_ms=time) for n, time in enumerate(times)]
    data, _ = build(batches, target=1)
    index = read_segment(data).index
    expected = next((block for block in index.blocks if block.max_timestamp_ms >= wanted), None)
    assert index.block_for_timestamp(wanted) == expected


def test_batches_keep_their_offsets_and_leader_epochs() -> None:
    data, _ = build(BATCHES)
    found = [header for run in read_segment(data).runs() for _, header in wire.iter_batches(run)]
    assert found == [wire.read_header(batch) for batch in BATCHES]
    assert {header.partition_leader_epoch for header in found} == {7}


def test_blocks_come_out_as_they_fill_and_hold_whole_batches() -> None:
    writer = SegmentWriter(key=KEY, target_block_bytes=1000)
    batches = [make_batch(base_offset=n, count=1, payload=bytes(239)) for n in range(9)]  # 300 bytes each
    sizes = [sum(map(len, writer.append(batch, wire.validate(batch)))) for batch in batches]
    assert sizes == [0, 0, 0, HEAD_BYTES + 900, 0, 0, 900, 0, 0]
    assert writer.raw_bytes == 2700
    finished = writer.finish()
    assert [block.raw_length for block in finished.blocks] == [900, 900, 900]
    assert [block.file_offset for block in finished.blocks] == [8, 908, 1808]


def test_a_batch_larger_than_a_block_gets_one_of_its_own() -> None:
    batches = [
        make_batch(base_offset=0, count=1, payload=bytes(100)),
        make_batch(base_offset=1, count=1, payload=bytes(TARGET_BLOCK_BYTES + 5)),
        make_batch(base_offset=2, count=1, payload=bytes(100)),
    ]
    finished = write_segment([(batch, wire.validate(batch)) for batch in batches], key=KEY)
    assert [block.record_count for block in finished.blocks] == [1, 1, 1]
    assert verify_segment(b"".join(finished.buffers)).footer == finished.footer


def test_raw_blocks_are_not_copied_on_the_way_in_or_out() -> None:
    batch = bytearray(make_batch())
    finished = write_segment([(batch, wire.validate(batch))], key=KEY)
    assert any(memoryview(buffer).obj is batch for buffer in finished.buffers)
    data = bytearray(b"".join(finished.buffers))
    (run,) = read_segment(data).runs()
    assert run.obj is data


def test_raw_blocks_lie_end_to_end_so_that_a_run_of_them_is_a_run_of_batches() -> None:
    data, finished = build(BATCHES)
    assert len(finished.blocks) > 2
    assert data[HEAD_BYTES : finished.footer.index_offset] == b"".join(BATCHES)


def test_a_block_is_compressed_only_where_that_helps() -> None:
    noise = make_batch(base_offset=0, count=1, payload=random.Random(1).randbytes(1000))
    text = make_batch(base_offset=1, count=1, payload=b"the same again, " * 62)
    data, finished = build([noise, text], compression="lz4", target=900)
    assert [block.codec for block in finished.blocks] == [BlockCodec.RAW, BlockCodec.LZ4]
    assert finished.blocks[0].stored_length == len(noise)
    assert finished.blocks[1].stored_length < len(text) // 5
    assert b"".join(verify_segment(data).runs()) == noise + text
    raw, _ = build([noise, text], target=900)
    assert {block.codec for block in read_segment(raw).index.blocks} == {BlockCodec.RAW}


def test_the_index_takes_about_fifteen_bytes_a_block() -> None:
    batches = [
        make_batch(base_offset=100 * n, count=100, payload=bytes(2000), first_ms=START_MS + n) for n in range(500)
    ]
    _, finished = build(batches, target=2000)
    assert len(finished.blocks) == 500
    assert finished.footer.index_length <= 15 * 500


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


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (make_batch(base_offset=4), "at offset 4 where 3 is next"),
        (make_batch(base_offset=2), "at offset 2 where 3 is next"),
        (make_batch(base_offset=3, count=5, records=4), "4 records for 5 offsets"),
    ],
)
def test_r18_without_key_compaction_offsets_are_dense(second: bytes, message: str) -> None:
    writer = SegmentWriter(key=KEY)
    first = make_batch(base_offset=0)
    writer.append(first, wire.validate(first))
    with pytest.raises(InvalidRequest, match=message):
        writer.append(second, wire.read_header(second))
    follows = make_batch(base_offset=3)
    writer.append(follows, wire.validate(follows))
    assert writer.finish().footer.record_count == 6


def test_a_writer_is_used_once_and_not_for_nothing() -> None:
    writer = SegmentWriter(key=KEY)
    with pytest.raises(InvalidRequest, match="at least one batch"):
        writer.finish()
    batch = make_batch()
    with pytest.raises(InvalidRequest, match="header for"):
        writer.append(batch + b"\0", wire.read_header(batch))
    writer.append(batch, wire.validate(batch))
    writer.finish()
    with pytest.raises(InvalidRequest, match="finished"):
        writer.finish()
    with pytest.raises(InvalidRequest, match="finished"):
        writer.append(batch, wire.validate(batch))


def test_r11_a_full_segment_refuses_before_it_takes_and_can_still_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_v1_writer, "MAX_SEGMENT_BYTES", 2000)
    writer = SegmentWriter(key=KEY)
    batches = [make_batch(base_offset=n, count=1, payload=bytes(239)) for n in range(9)]
    for batch in batches[:5]:
        writer.append(batch, wire.validate(batch))
    with pytest.raises(LimitExceeded):
        writer.append(batches[5], wire.validate(batches[5]))
    finished = writer.finish()
    assert finished.footer.record_count == 5
    assert finished.size <= 2000


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_flipped_bit_of_a_segment_is_detected(compression: Compression) -> None:
    data, _ = build(BATCHES[:3], compression=compression, target=300)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DETECTED):
            verify_segment(damaged)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_truncation_of_a_segment_is_detected(compression: Compression) -> None:
    data, _ = build(BATCHES, compression=compression)
    for length in range(len(data)):
        with pytest.raises(CorruptSegment):
            verify_segment(data[:length])
        with pytest.raises(CorruptSegment):
            read_ranged(data[:length])
    with pytest.raises(CorruptSegment):
        verify_segment(data + b"\0")


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_every_flipped_bit_in_the_ranges_a_read_touches_is_detected(compression: Compression) -> None:
    data, finished = build(BATCHES, compression=compression)
    block = finished.blocks[1]
    touched = [*range(block.file_offset, block.file_offset + block.stored_length)]
    touched += range(finished.footer.index_offset, len(data))

    def read(damaged: bytes | bytearray) -> memoryview:
        found = read_ranged(bytes(damaged)).index.blocks_from(block.base_offset)[0]
        return decode_block(damaged[found.file_offset : found.file_offset + found.stored_length], found)

    assert wire.read_header(read(data)).base_offset == block.base_offset
    for at in touched:
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises((CorruptSegment, UnsupportedVersion)):
            read(damaged)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_ten_thousand_damaged_segments_are_all_detected(compression: Compression) -> None:
    data, _ = build(BATCHES[:6], compression=compression)
    for kind, damaged in damages(data, count=10_000, seed=15):
        try:
            verify_segment(damaged)
        except DETECTED:
            continue
        pytest.fail(f"{kind} passed")


@pytest.mark.parametrize(
    "changes",
    [
        {"index_offset": 0},
        {"index_offset": 2**63},
        {"index_length": 2**32 - 1},
        {"block_count": 0},
        {"block_count": 2**32 - 1},
        {"record_count": 2**64 - 1},
        {"record_count": 1},
        {"base_offset": -1, "sparse": True},
        {"end_offset": 2**63 - 1, "sparse": True},
        {"base_offset": 150, "record_count": 0},
    ],
)
def test_a_footer_that_makes_no_sense_under_a_right_crc_is_refused(changes: dict[str, int]) -> None:
    data, finished = build(BATCHES)
    with pytest.raises(CorruptSegment):
        parse_footer(reseal(data, finished, **changes), len(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"block_count": 5},
        {"base_offset": 101, "record_count": 49},
        {"end_offset": 148, "record_count": 49},
        {"index_crc": 1},
        {"sparse": True, "record_count": 3},
    ],
)
def test_a_footer_at_odds_with_its_index_is_refused(changes: dict[str, int]) -> None:
    data, finished = build(BATCHES)
    with pytest.raises(CorruptSegment, match="segment index"):
        read_segment(reseal(data, finished, **changes))


@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"end_offset": 2**40},
        {"record_count": 1},
        {"record_count": 10**6},
        {"max_timestamp_ms": 2**50},
        {"stored_length": 1},
        {"stored_length": 2**60},
        {"codec": BlockCodec.LZ4, "raw_length": MAX_BLOCK_BYTES + 1},
        {"codec": BlockCodec.LZ4, "raw_length": MAX_BLOCK_BYTES},
        {"codec": BlockCodec.LZ4, "raw_length": 10},
    ],
)
def test_an_index_that_makes_no_sense_under_a_right_crc_is_refused(
    changes: dict[str, int], sparse: bool, at: int
) -> None:
    data, finished = build(BATCHES, sparse=sparse)
    blocks = list(finished.blocks)
    blocks[at] = replace(blocks[at], **changes)
    if at == 0 and "end_offset" in changes:
        blocks = blocks[:1]
    with pytest.raises(CorruptSegment, match="segment index"):
        read_segment(reseal(data, finished, blocks))


def test_an_index_that_leaves_bytes_unaccounted_is_refused() -> None:
    data, finished = build(BATCHES)
    footer, blocks = finished.footer, list(finished.blocks)
    blocks[-1] = replace(blocks[-1], stored_length=blocks[-1].stored_length - 1)
    with pytest.raises(CorruptSegment, match="blocks end at byte"):
        read_segment(reseal(data, finished, blocks))
    index = data[footer.index_offset : footer.index_range.end] + b"\0"
    with pytest.raises(CorruptSegment, match="blocks end at byte"):
        parse_index(index, replace(footer, index_length=len(index), index_crc=crc32c(index)))


def test_r18_a_gap_between_blocks_is_refused_unless_keys_were_compacted() -> None:
    batches = [make_batch(base_offset=10, count=3), make_batch(base_offset=20, count=3)]
    data, finished = build(batches, sparse=True, target=1)
    read_segment(data)
    dense = replace(finished.footer, sparse=False, end_offset=22)
    with pytest.raises(CorruptSegment, match="after 12"):
        parse_index(data[dense.index_offset : dense.index_range.end], dense)


@pytest.mark.parametrize(
    "changes",
    [
        {"crc32c": 1},
        {"codec": BlockCodec.LZ4},
        {"max_timestamp_ms": 5},
    ],
)
def test_a_block_at_odds_with_the_index_is_refused(changes: dict[str, int]) -> None:
    data, finished = build(BATCHES)
    blocks = [*finished.blocks[:-1], replace(finished.blocks[-1], **changes)]
    damaged = reseal(data, finished, blocks)
    read_segment(damaged)
    with pytest.raises(CorruptSegment, match="segment block"):
        verify_segment(damaged)


def test_a_footers_times_are_verified() -> None:
    data, finished = build(BATCHES)
    with pytest.raises(CorruptSegment, match="the index says"):
        verify_segment(reseal(data, finished, max_timestamp_ms=0))
    with pytest.raises(CorruptSegment, match="earliest"):
        verify_segment(reseal(data, finished, min_timestamp_ms=0))


def test_batches_out_of_order_inside_a_block_are_refused() -> None:
    """As many records as offsets, and the right first and last one: only the order gives it away."""
    jumbled = b"".join(make_batch(base_offset=base, count=count) for base, count in ((0, 3), (1, 1), (4, 2)))
    good, finished = build([make_batch(base_offset=0, count=6, payload=bytes(len(jumbled) - 61))], target=10_000)
    block = replace(finished.blocks[0], crc32c=crc32c(jumbled))
    data = good[:HEAD_BYTES] + jumbled + good[finished.footer.index_offset :]
    with pytest.raises(CorruptSegment, match="at offset 1 where 3 is next"):
        verify_segment(reseal(data, finished, [block]))


def test_a_block_that_would_inflate_over_the_limit_is_not_inflated() -> None:
    stored = lz4.block.compress(bytes(100), store_size=False)
    block = BlockInfo(
        file_offset=HEAD_BYTES,
        stored_length=len(stored),
        raw_length=MAX_BLOCK_BYTES + 1,
        codec=BlockCodec.LZ4,
        base_offset=0,
        end_offset=0,
        record_count=1,
        max_timestamp_ms=0,
        crc32c=crc32c(stored),
    )
    with pytest.raises(CorruptSegment, match=f"{MAX_BLOCK_BYTES + 1} bytes inflated"):
        decode_block(stored, block)


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


def lz4_segment(stored: bytes, raw_length: int) -> tuple[bytes, Footer]:
    """One LZ4 block of any content, under right CRCs all the way up."""
    block = BlockInfo(
        file_offset=HEAD_BYTES,
        stored_length=len(stored),
        raw_length=raw_length,
        codec=BlockCodec.LZ4,
        base_offset=0,
        end_offset=0,
        record_count=1,
        max_timestamp_ms=0,
        crc32c=crc32c(stored),
    )
    index = encode_index([block], base_offset=0, max_timestamp_ms=0)
    footer = Footer(
        key=KEY,
        block_count=1,
        base_offset=0,
        end_offset=0,
        record_count=1,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        index_offset=HEAD_BYTES + len(stored),
        index_length=len(index),
        index_crc=crc32c(index),
        sparse=False,
    )
    return b"STRM\0\1\0\0" + stored + index + encode_footer(footer), footer


def test_hostile_lz4_blocks_cost_no_more_than_they_state() -> None:
    honest = lz4.block.compress(bytes(4 * MIB), store_size=False)
    hostile = [
        lz4_segment(honest, 2 * MIB)[0],  # inflates to more than it says
        lz4_segment(honest[: len(honest) // 2], 4 * MIB)[0],  # cut
        lz4_segment(random.Random(2).randbytes(5000), MIB)[0],
        lz4_segment(b"\0" * 100, 25_000)[0],
        lz4_segment(b"\0" * 100, MAX_BLOCK_BYTES)[0],  # cannot come out of 100 bytes
        lz4_segment(bytes(MIB), MAX_BLOCK_BYTES + 1)[0],
        lz4_segment(lz4.block.compress(bytes(70), store_size=False), 71)[0],  # inflates to less than it says
    ]
    tracemalloc.start()
    try:
        for data in hostile:
            with pytest.raises(CorruptSegment):
                verify_segment(data)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_a_number_without_end_in_the_index_is_refused() -> None:
    data, finished = build(BATCHES)
    for index in (b"\xff" * finished.footer.index_length, b"\x80" * (finished.footer.index_length - 1) + b"\1"):
        with pytest.raises(CorruptSegment):
            parse_index(index, replace(finished.footer, index_crc=crc32c(index)))
    for cut in range(1, 40):
        index = data[finished.footer.index_offset :][: finished.footer.index_length - cut]
        shorter = replace(finished.footer, index_length=len(index), index_crc=crc32c(index))
        with pytest.raises(CorruptSegment):
            parse_index(index, shorter)


def test_an_object_over_the_limit_is_refused_by_its_size() -> None:
    data, _ = build(BATCHES)
    with pytest.raises(CorruptSegment, match="over the limit"):
        parse_footer(data, MAX_SEGMENT_BYTES + 1)
    with pytest.raises(CorruptSegment, match="cannot hold"):
        parse_footer(b"", 0)
    empty = RangedReader(0)
    with pytest.raises(CorruptSegment):
        empty.feed(b"")


def test_blocks_fetched_with_a_wrong_length_are_refused() -> None:
    data, finished = build(BATCHES)
    wanted = range_of(finished.blocks[:2])
    with pytest.raises(CorruptSegment, match="not"):
        list(decode_run(data[wanted.offset : wanted.end + 1], finished.blocks[:2]))
    assert list(decode_run(b"", [])) == []


def test_golden_raw_segment_is_written_byte_for_byte() -> None:
    assert build(BATCHES)[0] == (GOLDEN / "segment_v1_raw.strm").read_bytes()


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
