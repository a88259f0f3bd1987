"""When an entry is due by time, when a hold ends, and which topics have a rule at all (S3.2)."""

from __future__ import annotations

import pytest
from retention_logs import NOW_MS, entry

from streamhouse.core.topic_config import effective
from streamhouse.maintenance.retention.rule import RetentionRule, retention_rule

DAY_MS = 86_400_000


def rule(ms: int = 100, size: int = -1, hold_at_most_ms: int = 0) -> RetentionRule:
    return RetentionRule(retention_ms=ms, retention_bytes=size, hold_at_most_ms=hold_at_most_ms)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, rule(DAY_MS)),
        ({"retention.ms": "5", "retention.bytes": "7"}, rule(5, 7)),
        ({"retention.ms": "-1", "retention.bytes": "0"}, rule(-1, 0)),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": "-1", "retention.bytes": "-7"}, None),
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "7"}, None),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, rule(5)),
        ({"cleanup.policy": "", "retention.ms": "5"}, None),
    ],
)
def test_s3_2_both_limits_need_delete_in_the_policy_and_24_hours_is_the_default(
    configs: dict[str, str], expected: RetentionRule | None
) -> None:
    assert retention_rule(effective(configs)) == expected


@pytest.mark.parametrize(
    ("retention_ms", "age_ms", "old"),
    [(100, 100, False), (100, 101, True), (0, 0, False), (0, 1, True), (100, -50, False), (-1, 10**9, False)],
)
def test_s3_2_an_entry_is_old_when_its_largest_timestamp_is_longer_ago_than_retention_ms(
    retention_ms: int, age_ms: int, old: bool
) -> None:
    assert rule(retention_ms).is_old(entry(0, at_ms=NOW_MS - age_ms), NOW_MS) is old


@pytest.mark.parametrize(("age_ms", "old"), [(100, False), (101, True)])
def test_s3_2_an_entry_without_timestamps_counts_from_its_creation(age_ms: int, old: bool) -> None:
    assert rule().is_old(entry(0, at_ms=-1, created_at_ms=NOW_MS - age_ms), NOW_MS) is old


@pytest.mark.parametrize(
    ("retention_ms", "age_ms", "held"), [(100, 150, True), (100, 151, False), (-1, 50, True), (-1, 51, False)]
)
def test_a_hold_ends_that_long_after_retention_would_have(retention_ms: int, age_ms: int, held: bool) -> None:
    one = entry(0, at_ms=NOW_MS - age_ms, created_at_ms=NOW_MS)
    assert rule(retention_ms, hold_at_most_ms=50).may_be_held(one, NOW_MS) is held


@pytest.mark.parametrize(("age_ms", "held"), [(150, True), (151, False)])
def test_a_record_dated_in_the_future_cannot_be_held_for_ever(age_ms: int, held: bool) -> None:
    one = entry(0, at_ms=10 * NOW_MS, created_at_ms=NOW_MS - age_ms)
    assert rule(hold_at_most_ms=50).may_be_held(one, NOW_MS) is held
