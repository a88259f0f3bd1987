"""A runner's report: small, bounded, read back, empty where it cannot be read; and the lag in Spark's progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamhouse.spark.definitions.reports import (
    MAX_EVENTS,
    MAX_MESSAGE_CHARS,
    Event,
    Report,
    RunState,
    lag_of,
    read_report,
)


def test_reports_are_bounded_and_survive() -> None:
    report = Report(state=RunState.FAILED, error="x" * 10_000)
    for number in range(MAX_EVENTS + 20):
        report = report.telling(number, "y" * 10_000)
    again = read_report(report.to_json())
    assert len(again.events) == MAX_EVENTS
    assert again.events[-1].at_ms == MAX_EVENTS + 19
    assert len(report.to_json()) < 200_000
    assert read_report("nonsense") == read_report("") == Report()


def test_a_report_reads_back_whole() -> None:
    report = Report(
        state=RunState.RUNNING,
        runner="host/7",
        batch=3,
        rows=10,
        rows_per_second=4.26,
        lag=6,
        failures=2,
        error="größer",
        retry_at_ms=9,
        events=(Event(at_ms=1, what="started"),),
    )
    again = read_report(report.to_json())
    assert again.rows_per_second == 4.3
    assert (again.batch, again.lag, again.failures, again.error, again.retry_at_ms) == (3, 6, 2, "größer", 9)
    assert (again.state, again.runner, again.events) == (report.state, report.runner, report.events)


def test_the_oldest_events_and_the_ends_of_long_messages_are_cut() -> None:
    report = Report()
    for number in range(MAX_EVENTS + 1):
        report = report.telling(number, "x" * (MAX_MESSAGE_CHARS + 1))
    assert [report.events[0].at_ms, report.events[-1].at_ms] == [1, MAX_EVENTS]
    assert {len(event.what) for event in report.events} == {MAX_MESSAGE_CHARS}


@pytest.mark.parametrize("text", ["[]", '{"state": "dancing"}', '{"events": [[1]]}', '{"rows": "many"}', "null"])
def test_a_report_that_cannot_be_read_counts_as_an_empty_one(text: str) -> None:
    assert read_report(text) == Report()


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"endOffset": end, "latestOffset": latest}


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([], 0),
        ([source({"a": {"0": 5}, "$query": "x"}, {"a": {"0": 9, "1": 2}})], 6),
        ([source('{"a":{"0":1}}', '{"a":{"0":1}}')], 0),
        ([source({"a": {"0": 9}}, {"a": {"0": 5}})], 0),
        ([source({"a": {"0": 1}}, {"a": {"0": 2}}), source({"b": {"0": 1}}, {"b": {"0": 4}})], 4),
        ([source(None, None)], None),
        ([source({"a": {"0": 1}}, {"a": {"0": 2}}), source("nonsense", {})], None),
    ],
    ids=["none", "a partition that is new", "as text", "never negative", "two sources", "unknown", "one unknown"],
)
def test_lag_is_what_the_sources_have_beyond_the_query(sources: list[dict[str, Any]], lag: int | None) -> None:
    assert lag_of(json.loads(json.dumps({"sources": sources}))) == lag
