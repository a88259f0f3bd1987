"""The size of a log: a count that never leads to a deletion too much, and an estimate that says when to count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retention_logs import NO_HOLD, NOW_MS, Log, entry, kafka_deletes, sized

from streamhouse.maintenance.retention import sizes
from streamhouse.maintenance.retention.sizes import CutPage, SizeCount, SizeEstimate, find_cut

HOUR_MS = 3_600_000


def counted(log: Log, limit_bytes: int, *, page_entries: int) -> SizeCount:
    count = SizeCount(limit_bytes)
    while True:
        page = log.page(count.next_offset, page_entries)
        count.take(page.entries)
        if not page.more:
            return count


def test_the_page_of_the_cut_is_the_last_one_behind_which_enough_stays() -> None:
    log = Log(sized(*[10] * 9))
    count = counted(log, 45, page_entries=2)
    assert (count.total_bytes, count.entries, count.next_offset) == (90, 9, 9)
    cut = count.cut_page()
    assert cut == CutPage(from_offset=4, to_offset=6, bytes_behind=30)
    assert find_cut(cut, log.page(4, 2, 6).entries, limit_bytes=45) == 4
    assert counted(log, 40, page_entries=2).cut_page() == CutPage(from_offset=4, to_offset=6, bytes_behind=30)
    assert find_cut(cut, log.page(4, 2, 6).entries, limit_bytes=40) == 5
    assert find_cut(cut, log.page(4, 2, 6).entries, limit_bytes=30) == 6
    assert counted(log, 91, page_entries=2).cut_page() is None
    assert counted(Log([]), 1, page_entries=2).cut_page() is None


def test_the_marks_of_what_is_to_go_are_forgotten_while_the_count_goes_on() -> None:
    count = counted(Log(sized(*[10] * 500)), 100, page_entries=1)
    assert len(count._marks) == 10


def test_an_entry_that_compaction_put_over_what_was_counted_is_left_out() -> None:
    log = Log(sized(10, 10, 10, 10))
    count = SizeCount(0)
    count.take(log.page(0, 2).entries)
    log.compact(1, 4, 25)
    count.take(log.page(count.next_offset, 2).entries)
    assert (count.total_bytes, count.next_offset) == (20, 4)


def test_the_page_of_the_cut_is_judged_by_what_stands_there_now() -> None:
    """Counted were four entries of 10 bytes. Compaction then made three of them 6 bytes."""
    log = Log(sized(10, 10, 10, 10))
    cut = counted(log, 20, page_entries=100).cut_page()
    assert cut is not None
    assert find_cut(cut, log.entries, limit_bytes=20) == 2
    log.compact(0, 3, 6)
    assert find_cut(cut, log.entries, limit_bytes=20) == 0
    log.compact(0, 2, 12)
    assert find_cut(cut, log.entries, limit_bytes=20) == 0


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=16),
    limit=st.integers(0, 50),
    page_entries=st.integers(1, 4),
    merges=st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 15), st.integers(2, 4), st.integers(0, 24)), max_size=5
    ),
)
def test_compaction_during_a_count_never_makes_it_delete_more_than_before(
    lengths: list[int], limit: int, page_entries: int, merges: list[tuple[int, int, int, int]]
) -> None:
    """``merges``: before this call to the store, these entries become one that is no larger."""
    original = sized(*lengths)
    log, calls = Log(list(original)), 0

    def scan(start: int, end: int = NO_HOLD) -> tuple[tuple, bool]:  # type: ignore[type-arg]
        nonlocal calls
        for when, first, length, size in merges:
            sources = log.entries[first : first + length]
            if when == calls and len(sources) > 1:
                log.compact(first, first + length, min(size, sum(one.byte_length for one in sources)))
        calls += 1
        page = log.page(start, page_entries, end)
        return page.entries, page.more

    count, more = SizeCount(limit), True
    while more:
        entries, more = scan(count.next_offset)
        count.take(entries)
    page = count.cut_page()
    cut = 0 if page is None else find_cut(page, scan(page.from_offset, page.to_offset)[0], limit_bytes=limit)
    scan(0)
    kept = [one for one in log.entries if one.end_offset >= cut]
    start = kept[0].base_offset if kept else len(original)
    assert start <= kafka_deletes(original, size=limit)
    if not merges:
        assert start == kafka_deletes(original, size=limit)


def estimate(total_bytes: int, entries: int = 10) -> SizeEstimate:
    return SizeEstimate(total_bytes=total_bytes, entries=entries, next_offset=entries, counted_at_ms=NOW_MS)


@pytest.mark.parametrize(
    ("total", "entries", "needed"),
    [
        (1_099, 10, False),
        (1_100, 10, True),
        (1_100, sizes._FEW_ENTRIES, True),
        (1_100, sizes._FEW_ENTRIES + 1, False),
        (1_114, sizes._FEW_ENTRIES + 1, False),
        (1_115, sizes._FEW_ENTRIES + 1, True),
    ],
)
def test_a_log_is_counted_when_its_oldest_entry_is_due_and_a_long_one_a_64th_later(
    total: int, entries: int, needed: bool
) -> None:
    asked = estimate(total, entries).needs_count(limit_bytes=1_000, oldest_bytes=100, now_ms=NOW_MS)
    assert asked is needed


def test_a_log_is_counted_again_after_hours_in_case_it_has_grown_unnoticed() -> None:
    old = estimate(5)
    assert not old.needs_count(limit_bytes=1_000, oldest_bytes=1, now_ms=NOW_MS + 6 * HOUR_MS)
    assert old.needs_count(limit_bytes=1_000, oldest_bytes=1, now_ms=NOW_MS + 6 * HOUR_MS + 1)


def test_an_estimate_follows_what_comes_and_goes() -> None:
    one = estimate(100)
    one.add([entry(10, size=7), entry(11, records=4, size=5)])
    assert (one.total_bytes, one.entries, one.next_offset) == (112, 12, 15)
    one.subtract(entries=3, size_bytes=30)
    assert (one.total_bytes, one.entries, one.next_offset) == (82, 9, 15)
