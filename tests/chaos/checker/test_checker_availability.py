"""How long a partition was silent while a client waited: what counts, what is excluded, and what is told."""

from __future__ import annotations

from chaos_histories import Tale

from streamhouse.chaos.checker import AnomalyKind, Span
from streamhouse.chaos.checker.availability import measure, merge_spans


def test_a_silence_longer_than_the_limit(tale: Tale) -> None:
    tale.sent(1, at=1000)
    tale.acknowledged(0, 0, at=62_000)
    tale.log(0)
    verdict = tale.verdict()
    assert verdict.findings.counts == {AnomalyKind.UNAVAILABLE: 1}
    assert verdict.partitions[0].longest_gap_ms == 61_000


def test_time_in_which_nothing_was_asked_for_does_not_count(tale: Tale) -> None:
    tale.sent(1, at=1000)
    tale.acknowledged(0, 0, at=2000)
    tale.sent(1, at=90_000, first=1)
    tale.acknowledged(1, 1, at=91_500)
    tale.log(0, 1)
    verdict = tale.verdict()
    assert verdict.findings.total() == 0
    assert verdict.partitions[0].longest_gap_ms == 1500


def test_refusals_do_not_hide_a_silence(tale: Tale) -> None:
    for step in range(7):
        tale.sent(1, at=1000 + step * 10_000, first=step)
        tale.failed(step, at=11_000 + step * 10_000)
    tale.log()
    assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}


def test_time_without_any_agent_does_not_count(tale: Tale) -> None:
    tale.sent(1, at=1000)
    tale.acknowledged(0, 0, at=62_000)
    tale.log(0)
    spans = [Span(begin_ms=5_000, end_ms=9_000), Span(begin_ms=8_000, end_ms=12_000)]
    verdict = tale.verdict(without_agents=spans)
    assert verdict.findings.total() == 0
    assert verdict.partitions[0].longest_gap_ms == 54_000


def test_outages_of_the_stores_are_told_apart(tale: Tale) -> None:
    tale.sent(1, at=1000)
    tale.acknowledged(0, 0, at=62_000)
    tale.log(0)
    verdict = tale.verdict(outages=[Span(begin_ms=2_000, end_ms=12_000)])
    (partition,) = verdict.partitions
    assert verdict.findings.total() == 0
    assert (partition.longest_gap_ms, partition.longest_gap_outside_outages_ms) == (61_000, 51_000)


def test_a_record_that_is_never_answered_counts_to_the_end(tale: Tale) -> None:
    tale.sent(1, at=1000)
    tale.failed(0, at=80_000)
    tale.log()
    assert tale.found() == {AnomalyKind.UNAVAILABLE: 1}


def test_spans_are_sorted_and_joined_where_they_touch_and_empty_ones_are_left_out() -> None:
    spans = [(5, 9), (20, 20), (1, 3), (3, 4), (8, 12), (30, 29)]
    merged = merge_spans(Span(begin_ms=begin, end_ms=end) for begin, end in spans)
    assert [(span.begin_ms, span.end_ms) for span in merged] == [(1, 4), (5, 12)]


def test_a_silence_is_told_from_two_seconds_on(tale: Tale) -> None:
    tale.sent(3, at=1000)
    for number, at in enumerate((2_999, 4_999, 5_000)):
        tale.acknowledged(number, number, at=at)
    found = measure(tale.directory / "parts/t/0", [])
    assert [(silence.begin_ms, silence.end_ms) for silence in found.silences] == [(2_999, 4_999)]
    assert found.longest_ms == 2_000
    assert found.acknowledged_by_second == {2: 1, 4: 1, 5: 1}


def test_the_events_of_all_processes_are_seen_in_the_order_of_time(tale: Tale) -> None:
    tale.sent(1, at=1000)
    tale.acknowledged(0, 0, at=9000)
    tale.raw("parts/t/0/other.produce", "S 2000 q 0 1\nA 5000 q 0 1\n")
    assert measure(tale.directory / "parts/t/0", []).longest_ms == 4_000


def test_excluded_time_in_which_nothing_was_asked_for_is_not_taken_off_twice(tale: Tale) -> None:
    tale.sent(1, at=1000)
    tale.acknowledged(0, 0, at=2000)
    tale.sent(1, at=10_000, first=1)
    tale.acknowledged(1, 1, at=15_000)
    excluded = [Span(begin_ms=3_000, end_ms=11_000), Span(begin_ms=14_000, end_ms=99_000)]
    assert measure(tale.directory / "parts/t/0", excluded).longest_ms == 3_000
