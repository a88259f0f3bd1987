"""Blocks: batches found by bisecting, taken whole, and no more memory kept than is counted."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import batches

from streamhouse.core.errors import CorruptBlob
from streamhouse.formats.segment_v1 import BlockCodec, BlockInfo
from streamhouse.log.reader.blocks import Block, segment_block, slice_block
from streamhouse.metadata.contract import KAFKA_BATCHES, Entry, EntryKind
from streamhouse.wire.batch import patch, read_header

COUNT, RECORDS, BASE = 9, 3, 100
MADE = batches(COUNT, at=BASE, records=RECORDS)
SIZE = len(MADE[0])


def block() -> Block:
    data = b"".join(MADE)
    info = BlockInfo(
        file_offset=8,
        stored_length=len(data),
        raw_length=len(data),
        codec=BlockCodec.RAW,
        base_offset=BASE,
        end_offset=BASE + COUNT * RECORDS - 1,
        record_count=COUNT * RECORDS,
        max_timestamp_ms=0,
        crc32c=0,
    )
    return segment_block(memoryview(data), info, sparse=False)


@given(offset=st.integers(BASE - 5, BASE + COUNT * RECORDS + 5), max_bytes=st.integers(0, 2 * COUNT * SIZE))
def test_taking_is_what_walking_would_find(offset: int, max_bytes: int) -> None:
    expected: list[bytes] = []
    for each in MADE:
        if read_header(each).next_offset > offset and (not expected or (len(expected) + 1) * SIZE <= max_bytes):
            expected.append(each)
    taken = block().take(offset, max_bytes)
    assert list(map(bytes, taken.batches)) == expected
    assert taken.size_bytes == len(expected) * SIZE
    assert taken.next_offset == (read_header(expected[-1]).next_offset if expected else offset)


def test_a_part_of_a_download_is_kept_only_on_honest_terms() -> None:
    whole = block()
    most = whole.cut_out(len(whole.data) + 50)
    assert most.data.obj is whole.data.obj, "a view of most of it stays a view"
    assert most.held_bytes == len(whole.data) + 50, "and counts for all that it keeps"
    part = whole.cut_out(4 * len(whole.data))
    assert part.data.obj is not whole.data.obj
    assert bytes(part.data) == bytes(whole.data)
    assert part.held_bytes == len(whole.data)
    assert part.memory_bytes < most.memory_bytes


def entry_of(data: bytes) -> Entry:
    return Entry(
        base_offset=70,
        end_offset=70 + COUNT * RECORDS - 1,
        kind=EntryKind.WAL,
        object_key="wal-shared/x",
        byte_offset=0,
        byte_length=len(data),
        record_count=COUNT * RECORDS,
        encoding=KAFKA_BATCHES,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        epoch=6,
        created_at_ms=0,
    )


def test_a_slice_is_placed_in_a_copy_of_its_own() -> None:
    stored = bytearray(b"".join(MADE))
    for at in range(0, len(stored), SIZE):
        patch(stored, at, base_offset=0, leader_epoch=-1)
    before = bytes(stored)
    placed = slice_block(memoryview(stored), entry_of(stored))
    assert bytes(stored) == before, "what the store handed out is not ours to change"
    headers = [read_header(placed.batch(at)) for at in range(COUNT)]
    assert [header.base_offset for header in headers] == [70 + RECORDS * number for number in range(COUNT)]
    assert {header.partition_leader_epoch for header in headers} == {6}
    assert placed.data.readonly


def test_a_slice_must_hold_a_record_for_each_of_its_offsets() -> None:
    stored = b"".join(MADE)
    with pytest.raises(CorruptBlob, match="for the offsets 70 to 99"):
        slice_block(memoryview(stored), dataclasses.replace(entry_of(stored), end_offset=99))
