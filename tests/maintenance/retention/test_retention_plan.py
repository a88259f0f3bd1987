"""The plan of one partition: a table computed by hand from Kafka's rule, and random logs against a reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retention_logs import KEY, NOW_MS, Log, aged, entry, kafka_deletes, log_of, planned, sized

from streamhouse.maintenance.retention.holds import ReaderPlace
from streamhouse.maintenance.retention.plan import EntrySum, HeldBack, RetentionReason
from streamhouse.maintenance.retention.rule import RetentionRule
from streamhouse.metadata.contract import Entry


def rule(ms: int = -1, size: int = -1, hold_at_most_ms: int = 0) -> RetentionRule:
    return RetentionRule(retention_ms=ms, retention_bytes=size, hold_at_most_ms=hold_at_most_ms)


def deleted(entries: list[Entry], limits: RetentionRule, **options: Any) -> int:
    """How many entries the plan deletes."""
    item = planned(Log(entries), limits, **options)
    return 0 if item is None else item.freed.entries


FUTURE = -10_000
MIXED = log_of(
    {"at_ms": NOW_MS - 500, "size": 40},
    {"at_ms": NOW_MS - FUTURE, "size": 30},
    {"at_ms": NOW_MS - 500, "size": 20},
    {"at_ms": NOW_MS, "size": 10},
)


@pytest.mark.parametrize(
    ("entries", "ms", "size", "expected"),
    [
        # By time: from the oldest on, as long as each is more than 100 ms old.
        ([], 100, 0, 0),
        (aged(300, 200, 50), 100, -1, 2),
        (aged(101, 100, 99), 100, -1, 1),
        (aged(100, 300, 300), 100, -1, 0),  # the first that stays keeps what comes after it
        (aged(300, FUTURE, 300), 100, -1, 1),  # as does a record dated in the future
        (aged(300, 200, 150), 100, -1, 3),  # the newest entry too
        (aged(5, 1, 0), 0, -1, 2),
        (aged(10**6, 10**6), -1, -1, 0),
        # By size: while at least so much stays.
        (sized(10, 10, 10), -1, 20, 1),
        (sized(10, 10, 10), -1, 21, 0),
        (sized(10, 10, 10), -1, 19, 1),
        (sized(10, 10, 10), -1, 10, 2),
        (sized(10, 10, 10), -1, 30, 0),
        (sized(10, 10, 10), -1, 31, 0),
        (sized(10, 10, 10), -1, 1, 2),
        (sized(10, 10, 10), -1, 0, 3),
        (sized(100, 1, 1, 1), -1, 3, 1),
        (sized(1, 1, 1, 100), -1, 100, 3),
        (sized(1, 1, 1, 100), -1, 101, 2),
        # Both: 100 bytes; size deletes the first two of 70 bytes where 30 are to stay, and then time goes on.
        (MIXED, 100, -1, 1),
        (MIXED, -1, 30, 2),
        (MIXED, 100, 30, 3),
        (MIXED, 100, 31, 1),
        (MIXED, 1_000, 60, 1),
    ],
)
@pytest.mark.parametrize("page_entries", [1, 2, 100])
def test_s3_2_what_kafka_deletes_is_deleted(
    entries: list[Entry], ms: int, size: int, expected: int, page_entries: int
) -> None:
    assert kafka_deletes(entries, ms=ms, size=size) == expected, "the reference itself"
    assert deleted(entries, rule(ms, size), page_entries=page_entries) == expected


def test_s3_2_the_item_says_where_the_log_begins_what_goes_and_why() -> None:
    item = planned(Log(MIXED), rule(100, 30), page_entries=2)
    assert item is not None
    assert (item.key, item.topic, item.log_start_offset, item.new_log_start_offset) == (KEY, "orders", 0, 3)
    assert item.by_size == EntrySum(entries=2, records=2, size_bytes=70)
    assert item.by_time == EntrySum(entries=1, records=1, size_bytes=20)
    assert item.freed == EntrySum(entries=3, records=3, size_bytes=90)
    assert item.reasons == (RetentionReason.SIZE, RetentionReason.TIME)
    assert item.moves
    only_time = planned(Log(MIXED), rule(100))
    assert only_time is not None
    assert only_time.reasons == (RetentionReason.TIME,)


def test_records_below_the_log_start_and_records_that_key_compaction_removed_do_not_count() -> None:
    """The log start lies inside the first entry; the second has 4 records on 10 offsets (R18)."""
    entries = [entry(0, records=10), entry(10, records=4, end=19), entry(20, at_ms=NOW_MS)]
    item = planned(Log(entries, log_start=7), rule(100))
    assert item is not None
    assert (item.log_start_offset, item.new_log_start_offset) == (7, 20)
    assert item.freed == EntrySum(entries=2, records=3 + 4, size_bytes=20)


def test_r17_the_log_start_is_the_end_of_a_judged_entry_and_never_the_watermark_of_a_later_page() -> None:
    log = Log(aged(300, 200, 150))
    item = planned(log, rule(100), page_entries=2)
    assert item is not None
    log.entries += [entry(3, at_ms=NOW_MS)]  # committed after the walk
    assert item.new_log_start_offset == 3
    log.trim(item.new_log_start_offset)
    assert [one.base_offset for one in log.entries] == [3]


def held(entries: list[Entry], hold_offset: int, **options: Any) -> tuple[int, HeldBack | None]:
    item = planned(Log(entries), rule(100, hold_at_most_ms=200), hold_offset=hold_offset, **options)
    assert item is not None
    return item.new_log_start_offset, item.held


def created_when_dated(*ages_ms: int) -> list[Entry]:
    return log_of(*({"at_ms": NOW_MS - age_ms, "created_at_ms": NOW_MS - age_ms} for age_ms in ages_ms))


def test_a_plan_stops_at_what_a_reader_needs_and_says_what_it_holds_back() -> None:
    entries = created_when_dated(290, 280, 270, 50)
    two = EntrySum(entries=2, records=2, size_bytes=20)
    assert held(entries, 1) == (1, HeldBack(slowest=ReaderPlace(offset=1, reader="slow"), amount=two, complete=True))
    assert held(entries, 1, page_entries=2) == (
        1,
        HeldBack(
            slowest=ReaderPlace(offset=1, reader="slow"),
            amount=EntrySum(entries=1, records=1, size_bytes=10),
            complete=False,
        ),
    )
    assert held(entries, 3) == (3, None)
    assert held(entries, 1_000) == (3, None)


def test_a_hold_ends_entry_by_entry_when_they_are_too_old() -> None:
    entries = created_when_dated(400, 301, 300, 200, 50)
    two = EntrySum(entries=2, records=2, size_bytes=20)
    assert held(entries, 0) == (2, HeldBack(slowest=ReaderPlace(offset=0, reader="slow"), amount=two, complete=True))


def test_an_item_whose_every_entry_is_held_does_not_move_the_log() -> None:
    item = planned(Log(created_when_dated(200, 50)), rule(100, hold_at_most_ms=200), hold_offset=0)
    assert item is not None
    assert (item.moves, item.freed, item.reasons) == (False, EntrySum(), ())
    assert item.held is not None


RANDOM_LOGS = st.lists(
    st.fixed_dictionaries(
        {
            "records": st.integers(1, 3),
            "at_ms": st.one_of(st.just(-1), st.integers(NOW_MS - 12, NOW_MS + 3)),
            "created_at_ms": st.integers(NOW_MS - 12, NOW_MS),
            "size": st.integers(0, 5),
        }
    ),
    max_size=14,
)


@given(
    fields=RANDOM_LOGS,
    ms=st.integers(-1, 12),
    size=st.integers(-1, 45),
    page_entries=st.integers(1, 6),
    hold=st.one_of(st.none(), st.integers(0, 30)),
    slack=st.integers(0, 4),
)
def test_s3_2_any_log_in_pages_of_any_size_is_cut_where_the_reference_cuts_it(
    fields: list[dict[str, int]], ms: int, size: int, page_entries: int, hold: int | None, slack: int
) -> None:
    log = Log(log_of(*fields))
    limits = rule(ms, size, hold_at_most_ms=slack)
    options = {} if hold is None else {"hold": hold}
    expected = kafka_deletes(log.entries, ms=ms, size=size, slack=slack, **options)
    gone = log.entries[:expected]
    item = planned(log, limits, page_entries=page_entries, hold_offset=hold)
    if item is None:
        assert expected == 0
        return
    assert item.freed == EntrySum(
        entries=expected,
        records=sum(one.record_count for one in gone),
        size_bytes=sum(one.byte_length for one in gone),
    )
    assert item.new_log_start_offset == (gone[-1].end_offset + 1 if gone else 0)
    log.trim(item.new_log_start_offset)
    again = planned(log, limits, page_entries=page_entries, hold_offset=hold)
    assert again is None or not again.moves, "one plan does all there is to do"


@given(
    fields=RANDOM_LOGS,
    ms=st.integers(0, 12),
    size=st.integers(0, 45),
    merges=st.lists(st.tuples(st.integers(0, 13), st.integers(2, 4), st.integers(0, 8)), max_size=3),
    later=st.integers(0, 3),
)
def test_a_plan_applied_late_deletes_nothing_that_was_not_due(
    fields: list[dict[str, int]], ms: int, size: int, merges: list[tuple[int, int, int]], later: int
) -> None:
    """Meanwhile entries were compacted, and the log has grown."""
    log = Log(log_of(*fields))
    due = sum(one.record_count for one in log.entries[: kafka_deletes(log.entries, ms=ms, size=size)])
    item = planned(log, rule(ms, size), page_entries=3)
    for first, length, merged_size in merges:
        if len(log.entries[first : first + length]) > 1:
            log.compact(first, first + length, merged_size)
    watermark = log.state().high_watermark
    log.entries += [entry(watermark + number, at_ms=0) for number in range(later)]
    assert item is None or item.new_log_start_offset <= due
