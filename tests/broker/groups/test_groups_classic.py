"""The classic protocol, one test for each rule, without IO."""

from __future__ import annotations

import pytest
from group_driver import REBALANCE_MS, SESSION_MS, Driver

from streamhouse.broker.groups.contract import GroupState, JoinResult, MemberRef, SyncResult, TimerKind
from streamhouse.core.errors import MemberIdRequired, NotCoordinator


@pytest.fixture
def d() -> Driver:
    return Driver()


# Join.


def test_a_first_member_leads_generation_one(d: Driver) -> None:
    answer = d.answers[d.join()]
    assert isinstance(answer, JoinResult)
    assert (answer.generation, answer.leader, answer.protocol_name) == (1, answer.member_id, "range")
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert d.state is GroupState.COMPLETING_REBALANCE
    assert d.saves == 1


def test_a_new_client_is_told_to_come_again_with_its_id(d: Driver) -> None:
    required = d.answers[d.join(known_id_required=True)]
    assert isinstance(required, MemberIdRequired)
    assert d.state is GroupState.EMPTY
    again = d.answers[d.join(required.member_id, known_id_required=True)]
    assert again.member_id == required.member_id


def test_an_id_nobody_gave_out_is_unknown(d: Driver) -> None:
    assert d.code(d.join("made-up")) == 25
    d.member()
    assert d.code(d.join("made-up")) == 25


def test_an_unused_id_expires_with_its_session(d: Driver) -> None:
    required = d.answers[d.join(known_id_required=True)]
    assert not d.group.is_blank
    d.advance(SESSION_MS)
    assert d.group.is_blank
    assert d.code(d.join(required.member_id)) == 25


def test_the_leader_alone_hears_of_all_members(d: Driver) -> None:
    first = d.member(protocols=(("range", b"one"),))
    joining = d.join(protocols=(("range", b"two"),))
    assert d.waits(joining)
    leader = d.answers[d.join(first, protocols=(("range", b"one"),))]
    assert sorted(member.metadata for member in leader.members) == [b"one", b"two"]
    assert d.answers[joining].members == ()
    assert d.answers[joining].leader == first


def test_a_follower_that_joins_again_unchanged_in_a_stable_group_gets_the_present_generation(d: Driver) -> None:
    d.member()
    follower = d.member()
    answer = d.answers[d.join(follower)]
    assert answer.generation == d.group.generation
    assert d.state is GroupState.STABLE


def test_a_leader_that_joins_again_asks_for_a_rebalance(d: Driver) -> None:
    leader = d.member()
    d.member()
    assert d.waits(d.join(leader))
    assert d.state is GroupState.PREPARING_REBALANCE


def test_a_changed_subscription_rebalances(d: Driver) -> None:
    d.member()
    follower = d.member()
    assert d.waits(d.join(follower, protocols=(("range", b"other"),)))
    assert d.state is GroupState.PREPARING_REBALANCE


def test_a_lost_join_answer_is_given_again_before_the_assignment(d: Driver) -> None:
    first = d.answers[d.join()]
    again = d.answers[d.join(first.member_id)]
    assert again == first
    assert d.state is GroupState.COMPLETING_REBALANCE


def test_a_held_join_that_is_repeated_is_answered_once_each(d: Driver) -> None:
    leader = d.member()
    d.member()
    given_up = d.join(leader)
    again = d.join(leader)
    assert d.code(given_up) == 27
    assert d.waits(again)


# Sync.


def test_the_leaders_assignment_reaches_everybody(d: Driver) -> None:
    leader = d.member()
    joining = d.join()
    d.join(leader)
    follower = d.answers[joining].member_id
    waiting = d.sync(follower)
    assert d.waits(waiting)
    saves = d.saves
    leads = d.sync(leader, **{leader.replace("-", "_"): b"L", follower.replace("-", "_"): b"F"})
    assert d.answers[waiting] == SyncResult(protocol_type="consumer", protocol_name="range", assignment=b"F")
    assert d.answers[leads].assignment == b"L"
    assert d.state is GroupState.STABLE
    assert d.saves == saves + 1


def test_a_member_the_leader_forgot_has_nothing(d: Driver) -> None:
    leader = d.answers[d.join()].member_id
    assert d.answers[d.sync(leader)].assignment == b""


def test_a_sync_in_a_stable_group_repeats_the_assignment(d: Driver) -> None:
    member = d.member()
    assert d.answers[d.sync(member)].assignment == member.encode()


def test_a_sync_of_another_generation_member_or_protocol_is_refused(d: Driver) -> None:
    member = d.member()
    assert d.code(d.sync(member, 7)) == 22
    assert d.code(d.sync("stranger")) == 25
    assert d.code(d.sync(member, protocol_name="sticky")) == 23
    assert d.code(d.sync(member, protocol_type="connect")) == 23


def test_a_sync_while_members_join_is_told_to_join_too(d: Driver) -> None:
    member = d.member()
    d.join()
    assert d.code(d.sync(member)) == 27


def test_a_leader_that_never_assigns_is_out(d: Driver) -> None:
    leader = d.member()
    joining = d.join()
    d.join(leader)
    follower = d.answers[joining].member_id
    waiting = d.sync(follower)
    for _ in range(REBALANCE_MS // 5_000):
        d.heartbeat(leader)
        d.advance(5_000)
    assert d.code(waiting) == 27
    assert leader not in d.group.roster


def test_an_assignment_without_end_is_refused(d: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamhouse.broker.groups.classic.MAX_ASSIGNMENT_BYTES", 10)
    leader = d.answers[d.join()].member_id
    assert d.code(d.sync(leader, **{leader.replace("-", "_"): bytes(11)})) == 10


# Heartbeat.


def test_heartbeat_is_27_only_while_members_join(d: Driver) -> None:
    member = d.answers[d.join()].member_id
    assert d.state is GroupState.COMPLETING_REBALANCE
    assert d.heartbeat(member) == 0
    d.settle()
    assert d.heartbeat(member) == 0
    d.join()
    assert d.state is GroupState.PREPARING_REBALANCE
    assert d.heartbeat(member) == 27


def test_heartbeat_of_another_generation_or_nobody_is_refused(d: Driver) -> None:
    member = d.member()
    assert d.heartbeat(member, 99) == 22
    assert d.heartbeat("stranger") == 25
    assert Driver().heartbeat("stranger") == 25


# Leave.


def test_several_leave_at_once_each_with_its_own_answer(d: Driver) -> None:
    first, static = d.member(), d.member(instance="s")
    refs = (MemberRef(member_id=first), MemberRef(member_id="", instance_id="s"), MemberRef(member_id="who"))
    assert d.leave(*refs) == [0, 0, 25]
    assert d.state is GroupState.EMPTY
    assert d.leave(MemberRef(member_id=static, instance_id="s")) == [25]


def test_a_static_member_leaves_under_its_own_id_only(d: Driver) -> None:
    d.member(instance="s")
    assert d.leave(MemberRef(member_id="other", instance_id="s")) == [82]
    assert d.leave(MemberRef(member_id="x", instance_id="nobody")) == [25]


def test_an_id_given_out_can_be_given_back(d: Driver) -> None:
    required = d.answers[d.join(known_id_required=True)]
    assert d.leave(required.member_id) == [0]
    assert d.group.is_blank
    assert not d.timers


def test_leaving_ends_the_leavers_own_waiting(d: Driver) -> None:
    first = d.member()
    d.member()
    held = d.join(first)
    d.leave(first)
    assert d.code(held) == 25
    assert not d.has_timer(TimerKind.SESSION, first)


# Static members.


def test_a_static_member_that_restarts_takes_its_place_without_a_rebalance(d: Driver) -> None:
    d.member()
    old = d.member(instance="s")
    generation, saves = d.group.generation, d.saves
    answer = d.answers[d.join(instance="s")]
    assert answer.member_id != old
    assert (answer.generation, d.state, answer.members) == (generation, GroupState.STABLE, ())
    assert d.answers[d.sync(answer.member_id, instance="s")].assignment == old.encode()
    assert d.saves == saves + 1
    assert d.heartbeat(old, instance="s") == 82
    assert d.commit(old, generation, instance="s") == 82


def test_a_static_leader_that_restarts_is_told_to_skip_the_assignment(d: Driver) -> None:
    d.member(instance="s")
    answer = d.answers[d.join(instance="s")]
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 1


def test_an_older_static_leader_is_told_that_its_former_self_leads(d: Driver) -> None:
    old = d.member(instance="s")
    answer = d.answers[d.join(instance="s", can_skip=False)]
    assert (answer.leader, answer.skip_assignment, answer.members) == (old, False, ())


def test_a_static_member_that_changes_the_protocol_rebalances(d: Driver) -> None:
    both = (("range", b""), ("sticky", b""))
    d.member(protocols=both)
    d.member(instance="s", protocols=both)
    assert d.group.protocol_name == "range"
    assert d.waits(d.join(instance="s", protocols=(("sticky", b""),)))
    assert d.state is GroupState.PREPARING_REBALANCE


def test_two_processes_with_one_static_id_the_later_wins(d: Driver) -> None:
    d.member()
    first = d.join(instance="s")
    second = d.join(instance="s")
    assert d.code(first) == 82
    assert d.waits(second)


def test_a_static_member_that_restarts_before_the_assignment_rebalances(d: Driver) -> None:
    leader = d.member()
    d.join(instance="s")
    d.join(leader)
    assert d.state is GroupState.COMPLETING_REBALANCE
    assert d.waits(d.join(instance="s"))
    assert d.state is GroupState.PREPARING_REBALANCE


# Commits.


def test_offset_commit_is_27_only_before_the_assignment(d: Driver) -> None:
    member = d.answers[d.join()].member_id
    assert d.commit(member, 1) == 27
    d.settle()
    assert d.commit(member, 1) == 0
    d.join()
    assert d.state is GroupState.PREPARING_REBALANCE
    assert d.commit(member, 1) == 0


def test_commits_are_checked_against_generation_and_member(d: Driver) -> None:
    member = d.member()
    assert d.commit(member, 99) == 22
    assert d.commit("stranger", 1) == 25
    assert d.commit() == 25  # a simple commit while there are members


def test_a_simple_commit_needs_an_empty_group(d: Driver) -> None:
    assert d.commit() == 0
    d.leave(d.member())
    assert d.commit() == 0


def test_a_commit_keeps_the_session(d: Driver) -> None:
    member = d.member()
    for _ in range(4):
        d.advance(SESSION_MS - 1)
        assert d.commit(member, d.group.generation) == 0
    assert member in d.group.roster


# The end.


def test_nobody_is_left_waiting_when_the_slot_is_lost(d: Driver) -> None:
    leader = d.member()
    joining = d.join()
    d.take(d.group.end(NotCoordinator("lost")))
    assert d.code(joining) == 16
    d = Driver()
    leader = d.member()
    joining = d.join()
    d.join(leader)
    syncing = d.sync(d.answers[joining].member_id)
    d.take(d.group.end(NotCoordinator("lost")))
    assert d.code(syncing) == 16
