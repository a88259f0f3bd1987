"""Where the batches of a segment lie when one of its ends is damaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from verify_entries import KEY, OTHER, batch, entry
from verify_world import segment_of

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import DamagedObject, UnsupportedVersion
from streamhouse.formats.segment_v1 import FOOTER_BYTES, HEAD_BYTES, ByteRange
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.maintenance.repair.layout import SegmentLayout, find_index, read_layout
from streamhouse.metadata.contract import Entry, EntryKind
from streamhouse.objectstore.memory import MemoryStore

DATA = segment_of(KEY, [batch(0), batch(2), batch(4), batch(6)], compression="lz4", block_bytes=150)
SEGMENT = read_segment(DATA)
INDEX = SEGMENT.footer.index_range


def entry_of(data: bytes, **changes: object) -> Entry:
    footer = SEGMENT.footer
    made = entry(0, 7, EntryKind.COMPACTED, byte_length=len(data), max_timestamp_ms=footer.max_timestamp_ms)
    return replace(made, **changes)


def flipped(position: int, data: bytes = DATA) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0x04
    return bytes(changed)


async def layout_of(data: bytes, **changes: object) -> SegmentLayout:
    store, of = MemoryStore(clock=ManualClock()), entry_of(DATA, **changes)
    await store.put(of.object_key, data)
    return await read_layout(KEY, of, store)


async def test_whole_ends_tell_all() -> None:
    assert len(SEGMENT.index.blocks) == 4
    found = await layout_of(DATA)
    assert found.index == SEGMENT.index
    assert (found.is_exact, found.is_sparse) == (True, False)
    assert found.batch_bytes == ByteRange(offset=HEAD_BYTES, length=INDEX.offset - HEAD_BYTES)


async def test_a_damaged_head_changes_nothing() -> None:
    assert (await layout_of(flipped(2))).index == SEGMENT.index


async def test_i5_behind_a_damaged_footer_the_index_is_found_wherever_one_field_is_damaged() -> None:
    """Every byte of the footer in turn. The number of blocks and the index's CRC stand nowhere else."""
    lost = []
    for position in range(FOOTER_BYTES):
        found = await layout_of(flipped(len(DATA) - FOOTER_BYTES + position))
        assert not found.is_exact
        if found.index is None:
            lost.append(position)
        else:
            assert found.index == SEGMENT.index
            assert found.batch_bytes.end == INDEX.offset
    assert lost == [20, 21, 22, 23, 80, 81, 82, 83]


async def test_without_footer_and_index_the_batches_may_reach_the_footer() -> None:
    found = await layout_of(flipped(INDEX.offset + 2, flipped(len(DATA) - 1)))
    assert (found.index, found.is_exact) == (None, False)
    assert found.batch_bytes.end == len(DATA) - FOOTER_BYTES


async def test_a_whole_footer_bounds_the_batches_before_a_damaged_index() -> None:
    found = await layout_of(flipped(INDEX.offset + 2))
    assert (found.index, found.is_exact, found.batch_bytes.end) == (None, True, INDEX.offset)


def test_an_index_that_contradicts_the_entry_is_not_taken() -> None:
    tail = memoryview(DATA)
    assert find_index(tail, KEY, entry_of(DATA)) == SEGMENT.index
    for changes in ({"record_count": 7}, {"end_offset": 8}):
        assert find_index(tail, KEY, entry_of(DATA, **changes)) is None
    assert find_index(tail[INDEX.offset + 1 :], KEY, entry_of(DATA)) is None, "not all of it is in the tail"


async def test_i5_another_segment_than_the_entry_says_is_refused() -> None:
    other = segment_of(OTHER, [batch(0), batch(2), batch(4), batch(6)], compression="lz4", block_bytes=150)
    with pytest.raises(DamagedObject, match="its entry says otherwise"):
        await layout_of(other)
    with pytest.raises(DamagedObject, match="its entry says otherwise"):
        await layout_of(DATA, base_offset=1, record_count=7)


async def test_i5_what_is_missing_or_cut_off_is_refused() -> None:
    store = MemoryStore(clock=ManualClock())
    with pytest.raises(DamagedObject):
        await read_layout(KEY, entry_of(DATA), store)
    await store.put(entry_of(DATA).object_key, DATA[:50])
    with pytest.raises(DamagedObject):
        await read_layout(KEY, entry_of(DATA), store)
    with pytest.raises(DamagedObject, match="cannot hold a segment"):
        await read_layout(KEY, entry_of(DATA, byte_length=80), store)


async def test_a_newer_footer_is_no_damage() -> None:
    data = bytearray(DATA)
    data[-11] = 2
    data[-8:-4] = crc32c(data[-FOOTER_BYTES:-8]).to_bytes(4, "big")
    with pytest.raises(UnsupportedVersion):
        await layout_of(bytes(data))


async def test_r18_holes_are_known_from_the_footer_or_from_the_entry() -> None:
    sparse = segment_of(KEY, [batch(0), batch(4)], sparse=True)
    of = entry(0, 5, EntryKind.COMPACTED, byte_length=len(sparse), record_count=4)
    for data in (sparse, flipped(len(sparse) - 1, sparse)):
        store = MemoryStore(clock=ManualClock())
        await store.put(of.object_key, data)
        assert (await read_layout(KEY, of, store)).is_sparse
