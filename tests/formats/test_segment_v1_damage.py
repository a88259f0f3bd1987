"""S3.15: no damaged segment passes, whether by accident or with right CRCs."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import lz4.block
import pytest
from crc32c import crc32c
from format_samples import damages, make_batch
from segment_samples import BATCHES, Compression, build, lz4_segment, read_ranged, reseal

from streamhouse.core.errors import CorruptBatch, CorruptSegment, UnsupportedVersion
from streamhouse.core.limits import MAX_BLOCK_BYTES, MIB
from streamhouse.formats.segment_v1 import (
    HEAD_BYTES,
    BlockCodec,
    BlockInfo,
)
from streamhouse.formats.segment_v1_reader import (
    decode_block,
    read_segment,
    verify_segment,
)
from streamhouse.wire import batch as wire

DETECTED = (CorruptSegment, CorruptBatch, UnsupportedVersion)


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
    """There are as many records as offsets, and the first and last one are right: only the order is wrong."""
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
