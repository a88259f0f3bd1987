"""Chunks become objects: which object each lands in, what the commit says of it, and what is copied on the way."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from node import TOPIC, a_partition, batch, pending, values_in

from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.formats.shared_blob_v1 import place_slice, verify_blob
from streamhouse.log.leased import pack as module
from streamhouse.log.leased.pack import PackedObject, Placed, packing
from streamhouse.log.leased.partition import Chunk
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, EntryKind
from streamhouse.objectstore.keys import SegmentKey, SharedBlobKey

CREATED_MS = 1_700_000_000_000


def chunk(number: int, *batches: bytes, at: int = 0) -> Chunk:
    """A chunk of partition ``number``; its first batch is at offset ``at``."""
    partition = a_partition(number, high_watermark=at)
    for each in batches:
        partition.take(pending(each, at=partition.next_offset))
    return partition.freeze(1 << 40)


def packed(large: Sequence[Chunk], small: Sequence[Chunk]) -> tuple[list[PackedObject], int]:
    """The objects, and in how many steps they were made."""
    steps = packing(large, small, created_ms=CREATED_MS, new_id=SeededRandomness(1).uuid)
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as done:
            objects: list[PackedObject] = done.value
            return objects, count


def stored(made: PackedObject) -> bytes:
    data = b"".join(made.buffers)
    assert len(data) == made.object.size_bytes
    return data


def records(placed: Placed, data: bytes) -> list[tuple[int, str]]:
    """The records of one slice of a blob, as a reader of its entry finds them."""
    piece = placed.slice
    buffer = bytearray(data[piece.byte_offset : piece.byte_offset + piece.byte_length])
    count = sum(run.record_count for run in piece.batches)
    place_slice(
        buffer,
        byte_length=piece.byte_length,
        record_count=count,
        base_offset=piece.base_offset,
        leader_epoch=piece.epoch,
    )
    return values_in(buffer)


def test_a_large_chunk_is_a_segment_of_its_own() -> None:
    mine, other = chunk(4, batch("a", "b"), batch("c"), at=70), chunk(5, batch("d"))
    (one, two), _ = packed([mine, other], [])
    (placed,) = one.placed
    assert placed.chunk is mine
    piece = placed.slice
    assert (piece.key, piece.epoch, piece.base_offset) == (mine.partition.key, 3, 70)
    assert (piece.kind, piece.encoding) == (EntryKind.SEGMENT, SEGMENT_V1)
    assert (piece.object, piece.byte_offset, piece.byte_length) == (one.object, 0, one.object.size_bytes)
    assert values_in(*read_segment(stored(one)).runs()) == [(70, "a"), (71, "b"), (72, "c")]
    name = SegmentKey(
        log=mine.partition.key, base_offset=70, epoch=3, created_ms=CREATED_MS, object_id=SeededRandomness(1).uuid()
    )
    assert one.object.key == str(name)
    assert one.object.created_at_ms == CREATED_MS, "by which vacuum judges it (R6)"
    assert two.object.key != one.object.key


def test_small_chunks_share_one_blob_and_each_slice_is_found_in_it() -> None:
    chunks = [chunk(0, batch("a")), chunk(1, batch("b", "c"), batch("d"), at=50), chunk(2, batch("e"), at=9)]
    (blob,), _ = packed([], chunks)
    assert blob.object.key == str(SharedBlobKey(created_ms=CREATED_MS, object_id=SeededRandomness(1).uuid()))
    assert [each.chunk for each in blob.placed] == chunks
    assert {(each.slice.kind, each.slice.encoding) for each in blob.placed} == {(EntryKind.WAL, KAFKA_BATCHES)}
    data = stored(blob)
    verify_blob(data)
    assert [records(each, data) for each in blob.placed] == [
        [(0, "a")],
        [(50, "b"), (51, "c"), (52, "d")],
        [(9, "e")],
    ]


def test_s2_31_an_object_says_how_many_bytes_each_topic_has_in_it() -> None:
    (whole,), _ = packed([chunk(0, batch("a"))], [])
    assert whole.bytes_by_topic == {TOPIC: whole.object.size_bytes}
    (blob,), _ = packed([], [chunk(1, batch("b", "c")), chunk(2, batch("d"), batch("e"))])
    assert blob.bytes_by_topic == {TOPIC: len(batch("b", "c")) + len(batch("d")) + len(batch("e"))}


def test_r9_the_commit_lists_the_batches_of_producers_by_themselves() -> None:
    batches = (batch("a"), batch("b"), batch("c", producer=(9, 0, 0)), batch("d"))
    for large in (True, False):
        mine = chunk(0, *batches)
        (made,), _ = packed([mine] if large else [], [] if large else [mine])
        (placed,) = made.placed
        assert [(run.record_count, run.producer_id) for run in placed.slice.batches] == [(2, -1), (1, 9), (1, -1)]


def test_a_blob_never_exceeds_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(batch("x" * 1000))
    monkeypatch.setattr(module, "MAX_BLOB_BYTES", 2 * 3 * size)
    chunks = [chunk(number, batch("x" * 1000)) for number in range(8)]
    chunks.insert(3, chunk(99, batch("y" * 5000)))
    blobs, _ = packed([], chunks)
    assert [[each.chunk.partition.key.partition for each in blob.placed] for blob in blobs] == [
        [0, 1, 2],
        [99],
        [3, 4, 5],
        [6, 7],
    ]


def test_nothing_to_write_makes_no_object() -> None:
    assert packed([], []) == ([], 0)


def test_large_batches_are_not_copied_and_tiny_ones_are_joined() -> None:
    noise = random.Random(1).randbytes(50_000).hex()
    large = chunk(0, batch(noise), batch(noise))
    tiny = chunk(1, *(batch("v") for _ in range(1000)))
    (segment, blob), _ = packed([large], [tiny])
    kept = {id(memoryview(buffer).obj) for buffer in segment.buffers}
    assert {id(each.data) for each in large.batches} <= kept
    assert len(blob.buffers) < 30, "and not two for each batch"


@pytest.mark.parametrize("large", [True, False])
def test_the_event_loop_gets_its_turn_while_thousands_of_batches_are_packed(large: bool) -> None:
    many = [chunk(number, *(batch("v") for _ in range(400))) for number in range(4)]
    few = [chunk(0, batch("a"), batch("b"))]
    _, steps = packed(many if large else [], [] if large else many)
    assert 50 < steps < 250
    assert packed(few if large else [], [] if large else few)[1] == 0
