"""How much one micro-batch takes."""

from __future__ import annotations

from entry_samples import entry
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.metadata.contract import Entry
from streamhouse.spark.admission import holds_back, limit_bytes, limit_rows, rows_between
from streamhouse.spark.offsets import TopicPartition
from streamhouse.spark.options import RateLimits

A, B, C = (TopicPartition("t", number) for number in range(3))


def at_least(rows: int) -> RateLimits:
    return RateLimits(max_rows=None, max_bytes=None, min_rows=rows, max_delay_ms=1000)


class TestRows:
    def test_shares_are_by_how_far_each_is_behind(self) -> None:
        assert limit_rows({A: 10, B: 0}, {A: 110, B: 300}, 40) == {A: 20, B: 30}

    def test_a_small_partition_does_not_starve(self) -> None:
        limited = limit_rows({}, {A: 1_000_000, B: 1}, 100)
        assert limited[B] == 1

    def test_what_fits_is_not_cut(self) -> None:
        assert limit_rows({A: 1}, {A: 5, B: 5}, 9) == {A: 5, B: 5}

    @given(
        backlog=st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 10_000), min_size=1),
        max_rows=st.integers(1, 5000),
    )
    def test_a_limited_stream_comes_to_its_end(self, backlog: dict[TopicPartition, int], max_rows: int) -> None:
        at = dict.fromkeys(backlog, 0)
        for _ in range(20_000):
            if at == backlog:
                break
            end = limit_rows(at, backlog, max_rows)
            assert all(at[each] <= end[each] <= backlog[each] for each in backlog)
            assert 0 < rows_between(at, end) <= max_rows + len(backlog)
            at = end
        assert at == backlog


class TestWaitingForMore:
    def test_too_little_waits_but_not_for_ever(self) -> None:
        assert holds_back({}, {A: 9}, at_least(10), since_last_ms=999)
        assert not holds_back({}, {A: 10}, at_least(10), since_last_ms=0)
        assert not holds_back({}, {A: 9}, at_least(10), since_last_ms=1000)


def entries_of(sizes: list[tuple[int, int]]) -> list[Entry]:
    found, base = [], 0
    for count, size_bytes in sizes:
        found.append(entry(base, count, size_bytes))
        base += count
    return found


class TestBytes:
    def test_what_one_does_not_need_goes_to_the_others(self) -> None:
        entries = {A: entries_of([(10, 100)]), B: entries_of([(100, 10_000)])}
        assert limit_bytes({}, {A: 10, B: 100}, entries, 5_100) == {A: 10, B: 50}

    def test_one_row_at_least(self) -> None:
        assert limit_bytes({A: 3}, {A: 10}, {A: entries_of([(10, 10_000)])}, 1) == {A: 4}

    def test_what_fits_is_not_cut(self) -> None:
        assert limit_bytes({A: 5}, {A: 10}, {A: entries_of([(10, 1_000)])}, 500) == {A: 10}

    def test_bytes_that_were_not_looked_up_do_not_fit(self) -> None:
        """Entries are asked for only as far as the limit could reach."""
        seen = {A: entries_of([(10, 1_000)])}
        assert limit_bytes({}, {A: 1_000}, seen, 1_000) == {A: 10}

    @given(
        sizes=st.lists(
            st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5_000)), min_size=1, max_size=5),
            min_size=1,
            max_size=3,
        ),
        max_bytes=st.integers(1, 20_000),
    )
    @settings(deadline=None)
    def test_a_limited_stream_comes_to_its_end(self, sizes: list[list[tuple[int, int]]], max_bytes: int) -> None:
        names = [A, B, C][: len(sizes)]
        entries = {name: entries_of(each) for name, each in zip(names, sizes, strict=True)}
        end = {name: entries[name][-1].end_offset + 1 for name in names}
        at = dict.fromkeys(names, 0)
        for _ in range(1000):
            if at == end:
                break
            limited = limit_bytes(at, end, entries, max_bytes)
            assert all(at[name] <= limited[name] <= end[name] for name in names)
            assert rows_between(at, limited) > 0
            at = limited
        assert at == end
