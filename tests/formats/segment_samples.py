"""Segments, honest and otherwise, for the tests of the format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from crc32c import crc32c
from format_samples import TOPIC, batch_run, make_batch
from hypothesis import strategies as st

from streamhouse.core.ids import PartitionKey
from streamhouse.formats.segment_v1 import (
    HEAD_BYTES,
    BlockCodec,
    BlockInfo,
    Footer,
    encode_footer,
)
from streamhouse.formats.segment_v1_index import encode_index
from streamhouse.formats.segment_v1_reader import (
    RangedReader,
)
from streamhouse.formats.segment_v1_writer import FinishedSegment, SegmentWriter
from streamhouse.wire import batch as wire

Compression = Literal["none", "lz4"]
KEY = PartitionKey(TOPIC, 5)
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
