"""Pages of entries, the fields of an entry, its epoch: each rule by itself (invariants 2, 3, 4)."""

from __future__ import annotations

import pytest
from verify_entries import KEY, OBJECT_ID, OTHER, entry, led, page, state
from verify_world import START_MS

from streamhouse.maintenance.verify import Finding, FindingKind
from streamhouse.maintenance.verify.entry_pages import can_be_read, check_entry, check_epochs, check_page
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.metadata.contract import Entry, EntryKind, EntryPage
from streamhouse.objectstore.keys import CompactedKey, SegmentKey

K = FindingKind


def told(found: EntryPage, from_offset: int = 0) -> list[tuple[FindingKind, int, int]]:
    return [(each.kind, each.base_offset, each.end_offset) for each in check_page(found, from_offset)]


def kinds(one: Entry) -> list[FindingKind]:
    return [each.kind for each in check_entry(KEY, one)]


# Pages.


def test_i2_dense_entries_up_to_the_watermark_are_healthy() -> None:
    assert told(page((0, 4), (5, 5), (6, 9), watermark=10)) == []
    assert told(page(watermark=0)) == []
    assert told(page((0, 4), (5, 5), watermark=10, more=True)) == [], "the next page will tell"


def test_i2_the_first_entry_must_hold_the_log_start() -> None:
    assert told(page((0, 4), (5, 9), watermark=10, log_start=3)) == [], "retention drops whole entries"
    assert told(page((5, 9), watermark=10, log_start=3)) == [(K.GAP, 3, 4)]
    assert told(page((5, 9), watermark=10, log_start=5)) == []
    assert told(page(watermark=10, log_start=10)) == [], "everything was trimmed"
    assert told(page(watermark=10, log_start=4)) == [(K.GAP, 4, 9)]


def test_i2_i3_gaps_and_overlaps_are_told_with_their_offsets() -> None:
    assert told(page((0, 4), (7, 9), watermark=10)) == [(K.GAP, 5, 6)]
    assert told(page((0, 4), (3, 9), watermark=10)) == [(K.OVERLAP, 3, 4)]
    assert told(page((3, 6), (0, 9), watermark=10)) == [(K.GAP, 0, 2), (K.OVERLAP, 0, 6)], "one within the other"


def test_i2_a_later_page_begins_with_the_entry_that_covers_its_offset() -> None:
    assert told(page((5, 9), (10, 12), watermark=13), 9) == []
    assert told(page((2, 12), watermark=13), 9) == [], "a compaction has joined it with its neighbours"
    assert told(page((11, 12), watermark=13, log_start=11), 9) == [], "retention has dropped it"
    assert told(page((10, 12), watermark=13), 9) == [(K.GAP, 9, 9)]
    assert told(page(watermark=13, log_start=13), 9) == []


def test_i2_the_watermark_is_the_offset_after_the_last_entry() -> None:
    assert told(page((0, 9), watermark=12)) == [(K.WATERMARK, 10, 11)]
    assert told(page((0, 9), watermark=9)) == [(K.WATERMARK, 9, 9)]


def test_i2_the_log_start_lies_within_the_log() -> None:
    assert told(page(watermark=10, log_start=11)) == [(K.LOG_START, 11, 10)]
    assert told(page((0, 9), watermark=10, log_start=-1)) == [(K.LOG_START, -1, -2)]


# Fields.


@pytest.mark.parametrize("kind", list(EntryKind))
def test_an_entry_as_writers_make_it_is_healthy(kind: EntryKind) -> None:
    assert kinds(entry(5, 9, kind)) == []


def test_r18_only_compacted_entries_may_have_fewer_records_than_offsets() -> None:
    for kind in (EntryKind.WAL, EntryKind.SEGMENT):
        assert kinds(entry(0, 9, kind, record_count=9)) == [K.RECORD_COUNT]
    assert kinds(entry(0, 9, EntryKind.COMPACTED, record_count=9)) == []
    assert kinds(entry(0, 9, EntryKind.COMPACTED, record_count=0)) == []
    for count in (-1, 11):
        assert kinds(entry(0, 9, EntryKind.COMPACTED, record_count=count)) == [K.RECORD_COUNT]


def test_fields_that_no_writer_makes_are_told() -> None:
    assert kinds(entry(5, 4)) == [K.ENTRY]
    assert kinds(entry(-1, 4)) == [K.ENTRY]
    assert kinds(entry(0, 4, EntryKind.WAL, encoding="parquet")) == [K.ENTRY]
    assert kinds(entry(0, 4, EntryKind.WAL, byte_offset=-1)) == [K.BYTE_RANGE]
    assert kinds(entry(0, 4, EntryKind.WAL, byte_length=0)) == [K.BYTE_RANGE]
    assert kinds(entry(0, 4, byte_offset=8)) == [K.BYTE_RANGE], "a segment is a whole object"


def test_the_smallest_time_is_a_hint_but_not_above_the_largest() -> None:
    assert kinds(entry(0, 4, min_timestamp_ms=-5)) == []
    assert kinds(entry(0, 4, min_timestamp_ms=START_MS + 5)) == [K.TIMESTAMPS]
    emptied = entry(0, 4, EntryKind.COMPACTED, record_count=0, min_timestamp_ms=START_MS + 5)
    assert kinds(emptied) == [], "an emptied entry has no times"


def test_i5_the_name_of_the_object_fits_the_entry() -> None:
    segment = {"created_ms": START_MS, "object_id": OBJECT_ID}
    assert kinds(entry(0, 4, EntryKind.WAL, object_key=entry(0, 4).object_key)) == [K.WRONG_OBJECT]
    assert kinds(entry(0, 4, object_key="objects/foreign")) == [K.WRONG_OBJECT]
    for other in ({"log": OTHER, "base_offset": 0}, {"log": KEY, "base_offset": 1}):
        name = str(SegmentKey(epoch=1, **other, **segment))
        assert kinds(entry(0, 4, object_key=name)) == [K.WRONG_OBJECT]
    for ends in ({"base_offset": 0, "end_offset": 5}, {"base_offset": 1, "end_offset": 4}):
        name = str(CompactedKey(log=KEY, **ends, **segment))
        assert kinds(entry(0, 4, EntryKind.COMPACTED, object_key=name)) == [K.WRONG_OBJECT]
    stale = str(SegmentKey(log=KEY, base_offset=0, epoch=2, **segment))
    assert kinds(entry(0, 4, object_key=stale)) == [K.EPOCH]


def test_bytes_that_cannot_be_placed_are_not_read() -> None:
    def found(kind: FindingKind) -> Finding:
        return Finding(kind=kind, key=KEY, base_offset=0, end_offset=0, problem="")

    assert not any(can_be_read([found(kind)]) for kind in (K.ENTRY, K.BYTE_RANGE, K.WRONG_OBJECT))
    assert can_be_read([found(K.EPOCH), found(K.RECORD_COUNT)])


# Epochs.


def epochs_of(one: Entry, *starts: tuple[int, int], reached: int = 9) -> list[FindingKind]:
    return [each.kind for each in check_epochs(state(100, epoch=reached), [one], EpochLine(led(*starts)))]


def test_i4_an_entry_has_the_epoch_that_led_at_its_offsets() -> None:
    starts = ((1, 0), (2, 10), (4, 20))
    assert epochs_of(entry(10, 19, epoch=2), *starts) == []
    assert epochs_of(entry(20, 29, epoch=4), *starts) == []
    assert epochs_of(entry(10, 19, epoch=1), *starts) == [K.EPOCH], "committed by a leader that was fenced"
    assert epochs_of(entry(10, 19, epoch=3), *starts) == [K.EPOCH], "never led"
    assert epochs_of(entry(5, 14, epoch=2), *starts) == [K.EPOCH], "a commit lies in one leadership"
    assert epochs_of(entry(20, 29, epoch=4), *starts, reached=3) == [K.EPOCH]


def test_i4_a_compaction_may_join_leaderships() -> None:
    starts = ((1, 0), (2, 10))
    for epoch in (1, 2):
        assert epochs_of(entry(5, 14, EntryKind.COMPACTED, epoch=epoch), *starts) == []
    assert epochs_of(entry(5, 14, EntryKind.COMPACTED, epoch=3), *starts) == [K.EPOCH]


def test_i4_a_leaderless_log_has_epoch_0() -> None:
    assert epochs_of(entry(0, 9, EntryKind.WAL, epoch=0), reached=0) == []
    assert epochs_of(entry(0, 9, EntryKind.WAL, epoch=1), reached=0) == [K.EPOCH]
