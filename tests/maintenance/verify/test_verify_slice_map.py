"""No two entries name the same bytes of a blob: the memory of what was named, and its bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from verify_entries import KEY, OTHER, entry

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.verify import FindingKind
from streamhouse.maintenance.verify.slice_map import SliceMap
from streamhouse.metadata.contract import Entry, EntryKind


def piece(start: int, length: int, base: int = 0, blob: str = "wal-shared/a") -> Entry:
    return entry(base, base, EntryKind.WAL, byte_offset=start, byte_length=length, object_key=blob)


def test_slices_side_by_side_do_not_overlap() -> None:
    seen = SliceMap()
    assert [seen.add(KEY, piece(at, 10, at)) for at in (100, 120, 110, 90)] == [None] * 4
    assert seen.add(KEY, piece(100, 10, blob="wal-shared/b")) is None, "another blob"


def test_a_slice_that_is_met_again_is_no_overlap() -> None:
    seen = SliceMap()
    for _ in range(3):
        assert seen.add(KEY, piece(100, 10)) is None
    assert len(seen) == 1


def test_an_overlap_is_told_at_the_second_entry_and_names_the_first() -> None:
    seen = SliceMap()
    seen.add(KEY, piece(100, 10, 5))
    for start, length in ((109, 1), (95, 6), (100, 10), (90, 100), (105, 1)):
        found = seen.add(OTHER, piece(start, length, 8))
        assert found is not None
        assert (found.kind, found.key, found.base_offset) == (FindingKind.SLICE_OVERLAP, OTHER, 8)
        assert (found.byte_offset, found.byte_length) == (start, length)
    first = SliceMap()
    first.add(KEY, piece(100, 10, 5))
    found = first.add(OTHER, piece(105, 1, 8))
    assert found is not None
    assert f"of {KEY} at offset 5" in found.problem


def test_it_is_bounded_and_forgets_the_blob_that_was_not_seen_for_the_longest_time() -> None:
    seen = SliceMap(max_slices=3)
    for number, blob in enumerate("abacb"):
        seen.add(KEY, piece(number * 10, 10, number, blob))
    assert len(seen) <= 3
    assert seen.add(OTHER, piece(0, 10, 9, "a")) is None, "forgotten"
    assert seen.add(OTHER, piece(30, 10, 9, "c")) is not None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=30))
def test_the_first_overlap_of_a_blob_is_always_found(ranges: list[tuple[int, int]]) -> None:
    seen, named = SliceMap(), set[int]()
    for number, (start, length) in enumerate(ranges):
        taken = set(range(start, start + length))
        found = seen.add(PartitionKey(KEY.topic_id, number), piece(start, length))
        assert (found is not None) == bool(named & taken)
        if found is not None:
            return
        named |= taken
