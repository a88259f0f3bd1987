"""S3.15: a segment is written as its batches come, without copying them."""

from __future__ import annotations

import random

import pytest
from format_samples import START_MS, make_batch
from segment_samples import BATCHES, GOLDEN, KEY, Compression, build

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.limits import TARGET_BLOCK_BYTES
from streamhouse.formats import segment_v1_writer
from streamhouse.formats.batch_runs import PlacedBatches, run_of
from streamhouse.formats.segment_v1 import (
    HEAD_BYTES,
    BlockCodec,
)
from streamhouse.formats.segment_v1_reader import (
    read_segment,
    verify_segment,
)
from streamhouse.formats.segment_v1_writer import SegmentWriter, write_segment
from streamhouse.wire import batch as wire
from streamhouse.wire.codecs import Codec


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


def test_of_a_block_of_compressed_batches_a_sample_says_whether_lz4_is_tried() -> None:
    """LZ4 needs longest for what it cannot shrink. Small batches of similar records shrink, compressed or not."""
    noise = random.Random(2).randbytes(90_000)
    zstd, repeated = int(Codec.ZSTD), b"a record like the one before it " * 20
    for payloads, attributes, codec in (
        ([noise] * 2, zstd, BlockCodec.RAW),
        ([repeated] * 9, zstd, BlockCodec.LZ4),
        ([noise, repeated * 900], zstd, BlockCodec.RAW),  # it would shrink, but not where the sample is taken
        ([noise, repeated * 900], 0, BlockCodec.LZ4),  # the batches are plain: LZ4 is tried in any case
    ):
        batches = [
            make_batch(base_offset=at, count=1, payload=payload, attributes=attributes)
            for at, payload in enumerate(payloads)
        ]
        data, finished = build(batches, compression="lz4", target=1 << 20)
        assert [block.codec for block in finished.blocks] == [codec]
        assert b"".join(verify_segment(data).runs()) == b"".join(batches)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_run_of_batches_is_written_as_the_same_batches_are_one_by_one(compression: Compression) -> None:
    singly, _ = build(BATCHES, compression=compression, target=10_000)
    headers = [wire.validate(batch) for batch in BATCHES]
    whole = PlacedBatches(
        size=sum(header.size for header in headers),
        base_offset=headers[0].base_offset,
        end_offset=headers[-1].last_offset,
        record_count=sum(header.record_count for header in headers),
        min_timestamp_ms=min(run_of(header).min_timestamp_ms for header in headers),
        max_timestamp_ms=max(run_of(header).max_timestamp_ms for header in headers),
        has_plain_batches=any(run_of(header).has_plain_batches for header in headers),
    )
    writer = SegmentWriter(key=KEY, compression=compression, target_block_bytes=10_000)
    assert writer.room_bytes == 10_000
    assert writer.append_run(b"".join(BATCHES), whole) == ()
    assert writer.room_bytes == 10_000 - whole.size
    assert b"".join(writer.finish().buffers) == singly


def test_the_index_takes_about_fifteen_bytes_a_block() -> None:
    batches = [
        make_batch(base_offset=100 * n, count=100, payload=bytes(2000), first_ms=START_MS + n) for n in range(500)
    ]
    _, finished = build(batches, target=2000)
    assert len(finished.blocks) == 500
    assert finished.footer.index_length <= 15 * 500


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


def test_golden_raw_segment_is_written_byte_for_byte() -> None:
    assert build(BATCHES)[0] == (GOLDEN / "segment_v1_raw.strm").read_bytes()
