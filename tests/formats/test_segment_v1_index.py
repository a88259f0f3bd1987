"""S3.15: a segment's index finds blocks by offset and by time; one that does not fit its footer is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from format_samples import make_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from segment_samples import BATCHES, KEY, build, reseal

from streamhouse.core.errors import CorruptSegment
from streamhouse.core.limits import MAX_BLOCK_BYTES
from streamhouse.formats.segment_v1 import (
    HEAD_BYTES,
    MIN_INDEX_ENTRY_BYTES,
    BlockCodec,
    BlockInfo,
    ByteRange,
    Footer,
)
from streamhouse.formats.segment_v1_index import MAX_INDEX_ENTRY_BYTES, encode_index, make_index, parse_index, range_of
from streamhouse.formats.segment_v1_reader import (
    read_segment,
)


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


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30), st.integers(-60, 60))
def test_s3_15_a_timestamp_finds_the_first_block_that_reaches_it(times: list[int], wanted: int) -> None:
    """Producers' clocks go back and forth: the times of blocks are in no order."""
    batches = [make_batch(base_offset=n, count=1, first_ms=-100, max_ms=time) for n, time in enumerate(times)]
    data, _ = build(batches, target=1)
    index = read_segment(data).index
    expected = next((block for block in index.blocks if block.max_timestamp_ms >= wanted), None)
    assert index.block_for_timestamp(wanted) == expected


def test_an_index_comes_back_with_gaps_codecs_and_times_in_no_order() -> None:
    blocks = [
        block_at(HEAD_BYTES, stored=200, base=100, end=109, records=10, time_ms=5_000),
        block_at(208, stored=70, raw=900, base=110, end=110, records=1, time_ms=-2, codec=BlockCodec.LZ4),
        block_at(278, stored=2**20, base=500, end=2**40, records=3, time_ms=2**62),
    ]
    encoded = encode_index(blocks, base_offset=100, max_timestamp_ms=2**62)
    footer = footer_of(blocks, encoded)
    index = parse_index(encoded, footer)
    assert index.blocks == tuple(blocks)
    assert index.highest_times_ms == (5_000, 5_000, 2**62)


def test_an_offset_that_was_compacted_away_leads_to_the_next_block() -> None:
    blocks = [
        block_at(HEAD_BYTES, stored=100, base=10, end=19, records=10),
        block_at(108, stored=100, base=30, end=39, records=10),
    ]
    index = make_index(blocks)
    found = {offset: [block.base_offset for block in index.blocks_from(offset)] for offset in (0, 10, 19, 20, 39, 40)}
    assert found == {0: [10, 30], 10: [10, 30], 19: [10, 30], 20: [30], 39: [30], 40: []}
    assert index.block_for_timestamp(1) is None, "every record is older"


def test_neighbouring_blocks_are_fetched_with_one_range() -> None:
    _, finished = build(BATCHES)
    part = finished.blocks[1:3]
    assert range_of(part) == ByteRange(offset=part[0].file_offset, length=part[0].stored_length + part[1].stored_length)
    assert range_of(finished.blocks).end == finished.footer.index_offset


def test_an_index_of_another_length_or_crc_is_refused_before_it_is_parsed() -> None:
    data, finished = build(BATCHES)
    footer = finished.footer
    index = data[footer.index_offset : footer.index_range.end]
    with pytest.raises(CorruptSegment, match=f"{len(index) - 1} bytes, its footer says {len(index)}"):
        parse_index(index[:-1], footer)
    with pytest.raises(CorruptSegment, match="do not have the CRC-32C"):
        parse_index(bytes([index[0] ^ 1]) + index[1:], footer)


def test_an_entry_takes_no_more_than_the_writer_reserves_for_it() -> None:
    """The writer refuses a batch before the index could outgrow its limit, and counts with these two bounds."""
    largest = MAX_BLOCK_BYTES
    widest = block_at(
        HEAD_BYTES, stored=largest, raw=largest, base=2**62, end=2**63 - 2, records=2**62, time_ms=2**63 - 1
    )
    narrowest = block_at(HEAD_BYTES, stored=100, base=0, end=0, records=1)
    far = encode_index([replace(widest, codec=BlockCodec.LZ4, crc32c=2**32 - 1)], base_offset=0, max_timestamp_ms=0)
    assert len(far) <= MAX_INDEX_ENTRY_BYTES
    assert len(encode_index([narrowest], base_offset=0, max_timestamp_ms=0)) == MIN_INDEX_ENTRY_BYTES


def block_at(
    at: int,
    *,
    stored: int,
    base: int,
    end: int,
    records: int,
    raw: int | None = None,
    time_ms: int = 0,
    codec: BlockCodec = BlockCodec.RAW,
) -> BlockInfo:
    return BlockInfo(
        file_offset=at,
        stored_length=stored,
        raw_length=stored if raw is None else raw,
        codec=codec,
        base_offset=base,
        end_offset=end,
        record_count=records,
        max_timestamp_ms=time_ms,
        crc32c=0xDEADBEEF,
    )


def footer_of(blocks: list[BlockInfo], encoded: bytes) -> Footer:
    return Footer(
        key=KEY,
        block_count=len(blocks),
        base_offset=blocks[0].base_offset,
        end_offset=blocks[-1].end_offset,
        record_count=sum(block.record_count for block in blocks),
        min_timestamp_ms=0,
        max_timestamp_ms=max(block.max_timestamp_ms for block in blocks),
        index_offset=range_of(blocks).end,
        index_length=len(encoded),
        index_crc=crc32c(encoded),
        sparse=True,
    )
