"""S3.15: the two ends of a segment, head and footer: what they say, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c
from segment_samples import BATCHES, KEY, build, reseal

from streamhouse.core.errors import CorruptSegment, UnsupportedVersion
from streamhouse.core.limits import MAX_SEGMENT_BYTES
from streamhouse.formats.segment_v1 import (
    FOOTER_BYTES,
    HEAD,
    HEAD_BYTES,
    Footer,
    check_head,
    encode_footer,
    parse_footer,
)
from streamhouse.formats.segment_v1_reader import (
    RangedReader,
)


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


def test_an_object_over_the_limit_is_refused_by_its_size() -> None:
    data, _ = build(BATCHES)
    with pytest.raises(CorruptSegment, match="over the limit"):
        parse_footer(data, MAX_SEGMENT_BYTES + 1)
    with pytest.raises(CorruptSegment, match="cannot hold"):
        parse_footer(b"", 0)
    empty = RangedReader(0)
    with pytest.raises(CorruptSegment):
        empty.feed(b"")


FOOTER = Footer(
    key=KEY,
    block_count=2,
    base_offset=100,
    end_offset=149,
    record_count=50,
    min_timestamp_ms=-1,
    max_timestamp_ms=2**62,
    index_offset=HEAD_BYTES + 1000,
    index_length=30,
    index_crc=0xCAFEF00D,
    sparse=False,
)
SIZE = FOOTER.index_range.end + FOOTER_BYTES


@pytest.mark.parametrize("footer", [FOOTER, replace(FOOTER, sparse=True, record_count=0)])
@pytest.mark.parametrize("before", [0, 1, 500])
def test_a_footer_is_read_from_the_last_bytes_however_many_were_fetched(footer: Footer, before: int) -> None:
    encoded = encode_footer(footer)
    assert len(encoded) == FOOTER_BYTES
    assert parse_footer(b"x" * before + encoded, SIZE) == footer


def test_the_fields_of_a_footer_lie_where_the_drawing_says() -> None:
    encoded = encode_footer(replace(FOOTER, sparse=True))
    assert encoded[:20] == KEY.topic_id.bytes + struct.pack(">i", KEY.partition)
    assert struct.unpack(">qqQqqQIIHH", encoded[28:88]) == (100, 149, 50, -1, 2**62, 1008, 30, 0xCAFEF00D, 1, 1)
    assert encoded[88:] == struct.pack(">I", crc32c(encoded[:88])) + b"STRM"


def test_every_flipped_bit_of_a_footer_is_detected() -> None:
    encoded = encode_footer(FOOTER)
    for bit in range(8 * FOOTER_BYTES):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptSegment):
            parse_footer(damaged, SIZE)


def test_a_footer_must_end_an_object_of_its_own_size() -> None:
    encoded = encode_footer(FOOTER)
    for size in (SIZE - 1, SIZE + 1):
        with pytest.raises(CorruptSegment, match=f"does not fit an object of {size}.*truncated"):
            parse_footer(encoded, size)
    with pytest.raises(CorruptSegment, match="95 bytes cannot hold its footer"):
        parse_footer(encoded[1:], SIZE)


def test_a_head_is_checked_and_a_newer_one_is_no_damage() -> None:
    check_head(HEAD)
    check_head(HEAD + b"and what follows")
    for damaged in (b"", HEAD[:-1], b"strm" + HEAD[4:]):
        with pytest.raises(CorruptSegment, match="segment: starts with"):
            check_head(damaged)
    with pytest.raises(UnsupportedVersion, match="version 2, flags 0x0"):
        check_head(b"STRM\0\2\0\0")
    with pytest.raises(UnsupportedVersion, match="flags 0x1"):
        check_head(b"STRM\0\1\0\1")
