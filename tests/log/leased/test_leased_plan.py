"""When a flush is due, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from streamhouse.log.leased.plan import FlushPlan, FlushRules, plan_flush

RULES = FlushRules(segment_max_bytes=1000, busy_segment_bytes=8000, segment_max_age_ms=60_000, flush_interval_ms=50)


@dataclass(kw_only=True)
class Held:
    """What the plan looks at of a partition."""

    pending_bytes: int
    oldest_pending_ms: int = 0
    wanted: bool = False
    urgent: bool = False


def plan(*held: Held, now_ms: int = 100, last_flush_ms: int = 0, busy: bool = False, rules: FlushRules = RULES) -> Any:
    found: FlushPlan = plan_flush(held, rules, now_ms=now_ms, last_flush_ms=last_flush_ms, busy=busy)  # type: ignore[arg-type]
    return found


def test_a_segment_s_worth_is_taken_by_itself() -> None:
    large, small = Held(pending_bytes=1000), Held(pending_bytes=999)
    found = plan(large, small)
    assert (found.large, found.small, found.next_due_ms) == ((large,), (), 60_000)


def test_once_a_small_one_is_due_all_that_have_something_go_with_it() -> None:
    old, young, large = Held(pending_bytes=1), Held(pending_bytes=1, oldest_pending_ms=59_999), Held(pending_bytes=1000)
    found = plan(old, young, large, now_ms=60_000)
    assert (found.large, found.small) == ((large,), (old, young))


@pytest.mark.parametrize(("now_ms", "due"), [(149, False), (150, True)])
def test_who_waits_is_served_once_every_flush_interval(now_ms: int, due: bool) -> None:
    found = plan(Held(pending_bytes=1, oldest_pending_ms=120, wanted=True), now_ms=now_ms, last_flush_ms=100)
    assert bool(found.small) is due


def test_what_is_urgent_does_not_wait() -> None:
    assert plan(Held(pending_bytes=1, wanted=True, urgent=True), last_flush_ms=100).small


def test_nothing_buffered_is_nothing_due() -> None:
    assert plan().next_due_ms is None


def test_while_a_flush_is_under_way_the_next_one_waits_for_more() -> None:
    first, second = Held(pending_bytes=7999), Held(pending_bytes=1000)
    assert plan(first, second, busy=True) == FlushPlan(large=(), small=(), next_due_ms=60_000)
    assert plan(first, second, busy=False).large == (first, second)
    first.pending_bytes = 8000
    assert plan(first, second, busy=True).large == (first, second), "what is large enough goes along"


def test_waiting_for_more_ends_with_its_age_and_with_whoever_waits() -> None:
    aged = Held(pending_bytes=1000)
    assert plan(aged, now_ms=60_000, busy=True).large == (aged,)
    wanted = Held(pending_bytes=1000, oldest_pending_ms=90, wanted=True)
    assert plan(wanted, busy=True).large == (wanted,)


def test_where_commits_are_waited_for_a_busy_log_flushes_as_ever() -> None:
    rules = FlushRules(segment_max_bytes=1000, segment_max_age_ms=60_000, flush_interval_ms=50)
    assert plan(Held(pending_bytes=1000), busy=True, rules=rules).large
