"""Which ranges are fetched for which entries: all bytes once, in order, none larger than a read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_compaction_plan import KEY, entry

from streamhouse.core.errors import CorruptSegment
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.formats.segment_v1 import BlockCodec, BlockInfo, Footer
from streamhouse.formats.segment_v1_index import make_index
from streamhouse.maintenance.compaction.sources import (
    IndexNeeded,
    SourceRead,
    block_reads,
    check_footer,
    damaged,
    source_reads,
)
from streamhouse.metadata.contract import Entry, EntryKind


@given(
    shapes=st.lists(
        st.tuples(st.sampled_from([EntryKind.WAL, EntryKind.SEGMENT]), st.integers(1, 50), st.integers(0, 2)),
        min_size=1,
        max_size=20,
    ),
    read_bytes=st.integers(1, 40),
)
def test_every_byte_of_every_slice_is_fetched_once_and_in_order(
    shapes: list[tuple[EntryKind, int, int]], read_bytes: int
) -> None:
    sources, at_byte = [], dict[str, int]()
    for number, (kind, size, blob) in enumerate(shapes):
        key = f"blob-{blob}" if kind is EntryKind.WAL else f"segment-{number}"
        start = at_byte.get(key, 5) if kind is EntryKind.WAL else 0
        sources.append(replace(entry(2 * number, size, kind=kind, object_key=key), byte_offset=start))
        at_byte[key] = start + size + number % 3
    fetched: list[tuple[Entry, int, int]] = []
    for read in source_reads(sources, read_bytes=read_bytes):
        if isinstance(read, IndexNeeded):
            assert read.source.byte_length > read_bytes
            fetched.append((read.source, 0, read.source.byte_length))
            continue
        assert {part.source.object_key for part in read.parts} == {read.object_key}
        assert read.size_bytes <= read_bytes
        fetched += [(part.source, part.range.offset, part.range.length) for part in read.parts]
    for source in sources:
        pieces = [(offset, length) for one, offset, length in fetched if one is source]
        assert pieces[0][0] == source.byte_offset
        assert sum(length for _, length in pieces) == source.byte_length
        assert all(offset + length == following[0] for (offset, length), following in itertools.pairwise(pieces))
    order = [one.base_offset for one, _, _ in fetched]
    assert order == sorted(order)


def block(at: int, size: int) -> BlockInfo:
    return BlockInfo(
        file_offset=at,
        stored_length=size,
        raw_length=size,
        codec=BlockCodec.RAW,
        base_offset=at,
        end_offset=at,
        record_count=1,
        max_timestamp_ms=0,
        crc32c=0,
    )


def test_neighbouring_blocks_share_a_read_and_a_very_large_one_has_its_own() -> None:
    sizes, at, blocks = [30, 30, 30, 200, 30], 8, list[BlockInfo]()
    for size in sizes:
        blocks.append(block(at, size))
        at += size
    source = entry(0, at, kind=EntryKind.SEGMENT)
    reads = list(block_reads(source, make_index(blocks), read_bytes=100))
    assert [read.size_bytes for read in reads] == [90, 200, 30]
    assert [each for read in reads for part in read.parts for each in part.blocks] == blocks


def footer(**changes: object) -> Footer:
    made = Footer(
        key=KEY,
        block_count=1,
        base_offset=4,
        end_offset=5,
        record_count=2,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        index_offset=8,
        index_length=10,
        index_crc=0,
        sparse=False,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_invariant_5_the_footer_must_be_that_of_the_entry() -> None:
    source = entry(4)
    check_footer(footer(), KEY, source)
    other = PartitionKey(TopicId(UUID(int=9)), 0)
    for wrong in ({"key": other}, {"base_offset": 3}, {"end_offset": 6}, {"record_count": 1}):
        for sparse in (False, True):
            with pytest.raises(CorruptSegment):
                check_footer(footer(sparse=sparse, **wrong), KEY, source)


def test_r18_a_thinned_segment_may_begin_later_and_end_earlier_than_its_entry() -> None:
    source = entry(4, count=10, records=2)
    check_footer(footer(base_offset=6, end_offset=9, sparse=True), KEY, source)
    with pytest.raises(CorruptSegment):
        check_footer(footer(base_offset=6, end_offset=9), KEY, source)


def test_damage_names_the_object_the_partition_and_the_offsets() -> None:
    error = damaged(KEY, entry(4, 70), "it is torn", missing=True)
    assert (error.where, error.object_key, error.base_offset, error.end_offset) == (str(KEY), "objects/4", 4, 5)
    assert (error.byte_offset, error.byte_length, error.missing) == (0, 70, True)
    assert "it is torn" in str(error)


def test_one_read_has_no_more_ranges_than_a_store_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamhouse.maintenance.compaction.sources.MAX_RANGES_PER_READ", 3)
    sources = [replace(entry(2 * n, 5, object_key="blob"), byte_offset=5 * n) for n in range(7)]
    reads = [read for read in source_reads(sources) if isinstance(read, SourceRead)]
    assert [len(read.parts) for read in reads] == [3, 3, 1]
