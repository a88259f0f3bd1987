"""How a classic group gets from one generation to the next, without IO."""

from __future__ import annotations

import pytest
from group_driver import REBALANCE_MS, SESSION_MS, Driver

from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.options import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupOptions


@pytest.fixture
def d() -> Driver:
    return Driver()


def test_a_given_id_holds_the_rebalance_until_it_is_used_or_expires(d: Driver) -> None:
    first = d.member()
    d.join(known_id_required=True)
    rejoin = d.join(first)
    assert d.waits(rejoin)
    d.advance(SESSION_MS)
    assert d.code(rejoin) == 0


def test_the_first_rebalance_waits_for_more_members() -> None:
    d = Driver(GroupOptions(initial_rebalance_delay_ms=3_000))
    first = d.join()
    d.advance(2_000)
    second = d.join()
    d.advance(1_000)
    assert d.waits(first)  # a member came, so it waits once more
    d.advance(3_000)
    assert d.answers[first].generation == d.answers[second].generation == 1


def test_the_first_rebalance_waits_no_longer_than_its_members_allow() -> None:
    d = Driver(GroupOptions(initial_rebalance_delay_ms=3_000))
    first = d.join(rebalance_ms=7_000)
    for _ in range(6):
        d.advance(1_000)
        d.join(rebalance_ms=7_000)
    assert d.waits(first)
    d.advance(1_000)
    assert d.code(first) == 0


def test_who_does_not_join_in_time_is_out(d: Driver) -> None:
    late = d.member()
    joining = d.join()
    for _ in range(REBALANCE_MS // 5_000 - 1):
        d.advance(5_000)
        assert d.heartbeat(late) == 27
    assert d.waits(joining)
    d.advance(5_000)
    assert d.answers[joining].leader == d.answers[joining].member_id
    assert late not in d.group.roster


def test_a_first_join_is_not_held_for_ever(d: Driver) -> None:
    slow = d.member(rebalance_ms=2_000_000_000)
    joining = d.join()
    for _ in range(NEW_MEMBER_JOIN_TIMEOUT_MS // 5_000):
        assert d.heartbeat(slow) == 27
        d.advance(5_000)
    assert d.code(joining) == 25


def test_no_session_expires_while_a_join_is_held(d: Driver) -> None:
    first = d.member()
    second = d.member()
    d.join()
    held = d.join(first)
    for _ in range(5):
        assert d.heartbeat(second) == 27
        d.advance(SESSION_MS - 1)
    assert d.waits(held)
    assert first in d.group.roster


def test_waiting_syncs_end_when_the_group_rebalances(d: Driver) -> None:
    leader = d.member()
    joining = d.join()
    d.join(leader)
    waiting = d.sync(d.answers[joining].member_id)
    d.join()
    assert d.code(waiting) == 27
    assert d.state is GroupState.PREPARING_REBALANCE


def test_a_silent_member_is_out_and_the_others_rebalance(d: Driver) -> None:
    silent = d.member()
    lively = d.member()
    for _ in range(3):
        d.advance(SESSION_MS // 2)
        d.heartbeat(lively)
    assert silent not in d.group.roster
    assert d.state is GroupState.PREPARING_REBALANCE
    assert d.group.roster.leader == lively


def test_a_group_whose_last_member_falls_silent_is_empty_at_a_new_generation(d: Driver) -> None:
    d.member()
    generation, saves = d.group.generation, d.saves
    d.advance(SESSION_MS)
    assert (d.state, d.group.generation) == (GroupState.EMPTY, generation + 1)
    assert d.saves == saves + 1


def test_who_leaves_makes_the_others_rebalance(d: Driver) -> None:
    first = d.member()
    second = d.member()
    assert d.leave(first) == [0]
    assert d.state is GroupState.PREPARING_REBALANCE
    assert d.heartbeat(second) == 27
    answer = d.answers[d.join(second)]
    assert answer.leader == second


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends(d: Driver) -> None:
    away = d.member(instance="s", session_ms=200_000)
    joining = d.join()
    d.advance(REBALANCE_MS)
    assert d.code(joining) == 0
    assert away in d.group.roster
    leads = d.answers[joining].member_id
    assert d.group.roster.leader == leads


def test_static_members_that_are_all_away_end_with_their_sessions(d: Driver) -> None:
    d.member(instance="s", session_ms=200_000)
    other = d.member(session_ms=200_000)
    d.leave(other)
    d.advance(199_000)
    assert len(d.group.roster) == 1
    d.advance(1_000_000)
    assert d.state is GroupState.EMPTY
