"""The walk over record batches: which fault has which kind, what ends the walk, what is told once."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from verify_entries import batch, entry, led
from verify_world import START_MS

from streamhouse.maintenance.verify import FindingKind
from streamhouse.maintenance.verify.batches import BatchFault, BatchWalk
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.metadata.contract import EntryKind
from streamhouse.wire.batch import patch
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch

K = FindingKind


def walk(
    kind: EntryKind = EntryKind.SEGMENT,
    *,
    deep: bool = True,
    sparse: bool = False,
    starts: tuple[tuple[int, int], ...] = ((1, 0),),
    **fields: int,
) -> BatchWalk:
    return BatchWalk(entry(0, 5, kind, **fields), EpochLine(led(*starts)), sparse=sparse, deep=deep)


def faults(walk: BatchWalk, *made: bytes) -> list[BatchFault]:
    return list(walk.take(memoryview(b"".join(made)), 0, 5))


def kinds(walk: BatchWalk, *made: bytes) -> list[FindingKind]:
    return [fault.kind for fault in faults(walk, *made)]


def unplaced(made: bytes) -> bytes:
    data = bytearray(made)
    patch(data, 0, base_offset=0, leader_epoch=-1)
    return bytes(data)


def changed(made: bytes, position: int, value: bytes, *, seal: bool = True) -> bytes:
    """With other bytes; under a right CRC if ``seal``."""
    data = bytearray(made)
    data[position : position + len(value)] = value
    if seal:
        data[17:21] = struct.pack(">I", crc32c(data[21:]))
    return bytes(data)


def test_healthy_batches_are_counted() -> None:
    healthy = walk()
    assert faults(healthy, batch(0), batch(2, 3), batch(5, 1)) == []
    assert (healthy.next_offset, healthy.record_count) == (6, 6)
    assert (healthy.smallest_ms, healthy.largest_ms) == (START_MS, START_MS + 5)
    in_blob = walk(EntryKind.WAL)
    assert faults(in_blob, unplaced(batch(0)), unplaced(batch(2, 4))) == []
    assert (in_blob.next_offset, in_blob.record_count) == (6, 6)


@pytest.mark.parametrize("codec", list(Codec))
def test_compressed_records_are_decoded(codec: Codec) -> None:
    assert kinds(walk(), batch(0, codec=codec), batch(2, codec=codec)) == []


def test_a_batch_without_its_crc_ends_the_walk_because_its_length_may_be_wrong() -> None:
    first, bad, last = batch(0), changed(batch(2), 70, b"x", seal=False), batch(4)
    lost = walk()
    (fault,) = faults(lost, first, bad, last)
    assert lost.lost
    assert (fault.kind, fault.base_offset, fault.end_offset) == (K.BATCH, 2, 5)
    assert (fault.position, fault.length) == (len(first), len(bad))


def test_a_malformed_header_ends_the_walk() -> None:
    (fault,) = faults(walk(), batch(0), changed(batch(2), 16, b"\1", seal=False), batch(4))
    assert (fault.kind, fault.position) == (K.BATCH, len(batch(0)))
    assert fault.length == len(batch(2)) + len(batch(4)), "up to the end: nothing there has a known place"
    assert fault.problem == "magic is 1, only 2 is supported", "its place is told elsewhere"


def test_an_unknown_codec_is_told_and_the_walk_goes_on() -> None:
    assert kinds(walk(), changed(batch(0), 22, b"\7"), batch(3)) == [K.BATCH, K.OFFSETS]


def test_r18_a_count_that_differs_from_the_offsets_is_allowed_in_sparse_segments_alone() -> None:
    thin = build_batch([Record(value=b"x", timestamp_ms=START_MS, offset=1)], base_offset=0, last_offset=3)
    thin = bytes(thin[:12]) + b"\0\0\0\1" + bytes(thin[16:])
    assert kinds(walk(), thin, batch(4)) == [K.RECORD_COUNT]
    assert kinds(walk(EntryKind.COMPACTED, sparse=True), thin, batch(4)) == []


def test_offsets_must_follow_each_other_and_may_be_skipped_in_sparse_segments_alone() -> None:
    assert kinds(walk(), batch(0), batch(3)) == [K.OFFSETS]
    assert kinds(walk(EntryKind.COMPACTED, sparse=True), batch(0), batch(3)) == []
    assert kinds(walk(EntryKind.COMPACTED, sparse=True), batch(2), batch(1)) == [K.OFFSETS], "backwards"


def test_the_epoch_of_a_batch_is_that_of_its_segment() -> None:
    assert kinds(walk(), batch(0), batch(2, epoch=2), batch(4)) == [K.EPOCH]


def test_the_epoch_of_a_compacted_batch_is_that_of_its_offsets() -> None:
    starts = ((1, 0), (2, 2))
    good = walk(EntryKind.COMPACTED, starts=starts, epoch=2)
    assert kinds(good, batch(0, epoch=1), batch(2, epoch=2)) == []
    assert kinds(walk(EntryKind.COMPACTED, starts=starts, epoch=2), batch(0, epoch=2)) == [K.EPOCH]


def test_batches_of_a_blob_have_no_place() -> None:
    assert kinds(walk(EntryKind.WAL), unplaced(batch(0)), changed(unplaced(batch(2)), 7, b"\2")) == [K.OFFSETS]
    assert kinds(walk(EntryKind.WAL), changed(unplaced(batch(0)), 12, b"\0\0\0\1")) == [K.EPOCH]


def test_a_time_above_the_entrys_maximum_is_told_of_slices() -> None:
    """Of segments, the footer and the index are compared."""
    assert kinds(walk(EntryKind.WAL, max_timestamp_ms=START_MS), unplaced(batch(0))) == [K.TIMESTAMPS]
    assert kinds(walk(EntryKind.WAL, max_timestamp_ms=START_MS + 1), unplaced(batch(0))) == []
    assert kinds(walk(max_timestamp_ms=START_MS), batch(0)) == []


def test_what_all_batches_repeat_is_told_once() -> None:
    (fault,) = faults(walk(), batch(0, epoch=4), batch(2, epoch=4), batch(4, epoch=4))
    assert (fault.kind, fault.base_offset, fault.end_offset) == (K.EPOCH, 0, 1)


def test_records_are_decoded_only_when_that_was_asked() -> None:
    garbled = changed(batch(0), 61, b"\x7f")
    assert kinds(walk(deep=False), garbled) == []
    assert kinds(walk(), garbled) == [K.RECORDS]


def test_fewer_and_more_records_than_the_header_counts_are_told() -> None:
    two = batch(0, 2)
    one = changed(changed(two, 60, b"\1"), 26, b"\0")
    three = changed(changed(two, 60, b"\3"), 26, b"\2")
    assert kinds(walk(), one) == [K.RECORDS]
    assert K.RECORDS in kinds(walk(), three)


def test_a_record_that_is_newer_than_its_batch_says_is_told() -> None:
    made = changed(batch(0), 35, struct.pack(">q", START_MS))
    (fault,) = faults(walk(), made)
    assert (fault.kind, fault.problem) == (
        K.RECORD_TIMES,
        f"a record is of {START_MS + 1}, its batch says {START_MS} at most",
    )
