"""KIP-848 groups, one test for each rule, without IO."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_driver import REBALANCE_MS, Consumers, RealMember, keys, settle, topics

from streamhouse.broker.groups.contract import GroupState, MemberRef, Ticket, TimerKind
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.payload import decode, encode
from streamhouse.broker.groups.snapshot import ConsumerSnapshot
from streamhouse.core.errors import StreamHouseError


@pytest.fixture
def c() -> Consumers:
    return Consumers()


# Joining and epochs.


def test_the_first_member_gets_everything_at_once(c: Consumers) -> None:
    answer = c.beat("a", 0)
    assert (answer.member_epoch, answer.assignment) == (1, keys("orders", 0, 1, 2, 3))
    assert c.group.state is GroupState.STABLE
    assert c.last is not None
    assert c.last.after_save
    assert c.saves


def test_null_assignment_means_unchanged(c: Consumers) -> None:
    c.beat("a", 0)
    saves = c.saves
    assert c.beat("a", 1, owned=keys("orders", 0, 1, 2, 3)).assignment is None
    assert c.beat("a", 1).assignment is None
    assert c.saves == saves


def test_a_full_heartbeat_is_told_everything(c: Consumers) -> None:
    c.beat("a", 0)
    full = c.beat("a", 1, rebalance_timeout_ms=REBALANCE_MS, topic_names=("orders",), owned=keys("orders", 0))
    assert full.assignment == keys("orders", 0, 1, 2, 3)


def test_a_partition_goes_to_its_new_owner_only_after_the_old_ones_heartbeat_omits_it(c: Consumers) -> None:
    everything = keys("orders", 0, 1, 2, 3)
    c.beat("a", 0)
    assert c.beat("b", 0).assignment == frozenset()
    told = c.beat("a", 1)  # says nothing about what it owns
    kept = told.assignment
    assert kept is not None
    assert len(kept) == 2
    assert told.member_epoch == 1
    assert c.beat("b", 2).assignment is None
    c.beat("a", 1, owned=everything)  # it still has them all
    assert c.beat("b", 2).assignment is None
    assert c.beat("a", 1, owned=kept).member_epoch == 2
    assert c.beat("b", 2).assignment == everything - kept
    assert c.group.state is GroupState.STABLE


def test_who_does_not_let_go_in_time_is_out(c: Consumers) -> None:
    c.beat("a", 0, rebalance_timeout_ms=10_000)
    c.beat("b", 0)
    c.beat("a", 1)
    c.advance(9_999)
    assert c.code("a", 1) == 0
    c.advance(1)
    assert c.code("a", 1) == 25
    answer = c.beat("b", c.group.roster.get("b").member_epoch)  # type: ignore[union-attr]
    assert answer.assignment == keys("orders", 0, 1, 2, 3)


def test_a_newer_or_older_epoch_is_fenced(c: Consumers) -> None:
    c.beat("a", 0)
    c.change_topics(orders=5)
    c.change_topics(orders=6)
    assert c.beat("a", 1).member_epoch == 3
    assert c.code("a", 4) == 110
    assert c.code("a", 2, owned=frozenset()) == 110
    assert c.code("a", 1) == 110  # without saying what it owns
    assert c.code("a", 1, owned=keys("orders", 0, 99)) == 110


def test_the_previous_epoch_is_taken_when_the_last_answer_may_have_been_lost(c: Consumers) -> None:
    c.beat("a", 0)
    c.change_topics(orders=5)
    c.beat("a", 1)
    again = c.beat("a", 1, owned=keys("orders", 0, 1))
    assert (again.member_epoch, again.assignment) == (2, keys("orders", 0, 1, 2, 3, 4))


def test_a_member_that_joins_again_starts_over(c: Consumers) -> None:
    c.beat("a", 0)
    c.beat("b", 0)
    again = c.beat("a", 0)
    mine = again.assignment
    assert mine is not None
    assert len(mine) == 2
    assert c.beat("b", 2).assignment == keys("orders", 0, 1, 2, 3) - mine


def test_strangers_are_unknown(c: Consumers) -> None:
    c.beat("a", 0)
    assert c.code("x", 5) == 25
    assert c.code("x", -1) == 25


def test_a_group_at_its_size_takes_no_more() -> None:
    c = Consumers(GroupOptions(max_size=1))
    c.beat("a", 0)
    assert c.code("b", 0) == 81
    assert c.code("a", 0) == 0


def test_a_group_that_reads_too_much_is_refused_before_anything_changes(
    c: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamhouse.broker.groups.reconciling.MAX_ASSIGNED_PARTITIONS", 3)
    assert c.code("a", 0) == 81
    assert c.group.state is GroupState.EMPTY
    assert c.group.group_epoch == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, 42),
        ({"member_id": ""}, 42),
        ({"instance_id": ""}, 42),
        ({"rack_id": ""}, 42),
        ({"member_epoch": -3}, 42),
        ({"member_epoch": -2}, 42),
        ({"rebalance_timeout_ms": None}, 42),
        ({"owned": None}, 42),
        ({"owned": keys("orders", 0)}, 42),
        ({"topic_names": None}, 42),
        ({"topic_names": ("x",) * 10_001}, 42),
        ({"assignor": "mine"}, 112),
        ({"topic_pattern": "("}, 128),
        ({"topic_pattern": "x" * 2_000}, 128),
        ({"topic_pattern": r"(a)\1"}, 128),
    ],
)
def test_heartbeats_that_make_no_sense_are_refused(c: Consumers, changes: dict[str, Any], code: int) -> None:
    with pytest.raises(StreamHouseError) as refused:
        c.beat("a", 0, **changes)
    assert refused.value.kafka_code == code
    assert c.group.state is GroupState.EMPTY


# Leaving and expiry.


def test_who_leaves_frees_its_partitions(c: Consumers) -> None:
    a, b = RealMember(c, "a"), RealMember(c, "b")
    settle(a, b)
    assert c.beat("a", -1).member_epoch == -1
    settle(b)
    assert b.owned == keys("orders", 0, 1, 2, 3)


def test_a_silent_member_is_out_after_its_session(c: Consumers) -> None:
    c.beat("a", 0)
    c.advance(44_999)
    assert c.code("a", 1) == 0
    c.advance(45_000)
    assert c.code("a", 1) == 25
    assert c.group.state is GroupState.EMPTY
    assert c.group.group_epoch == 2
    assert not c.timers


def test_an_operator_removes_members(c: Consumers) -> None:
    c.beat("a", 0)
    c.beat("b", 0, instance_id="s")
    refs = [MemberRef(member_id="a"), MemberRef(member_id="", instance_id="s"), MemberRef(member_id="x")]
    c.take(c.group.leave(refs, c.topics, Ticket(7)))
    assert c.group.state is GroupState.EMPTY
    assert c.last is not None
    outcomes = c.last.result
    assert isinstance(outcomes, tuple)
    assert [0 if each.error is None else each.error.kafka_code for each in outcomes] == [0, 0, 25]


# Static members.


def test_a_static_id_in_use_is_not_given_twice(c: Consumers) -> None:
    c.beat("a", 0, instance_id="s")
    assert c.code("b", 0, instance_id="s") == 111
    assert c.code("b", 3, instance_id="s") == 82
    assert c.code("b", -1, instance_id="s") == 82


def test_a_static_member_that_is_away_for_a_while_keeps_its_partitions(c: Consumers) -> None:
    a, b = RealMember(c, "a", {"instance_id": "s"}), RealMember(c, "b")
    settle(a, b)
    epoch = c.group.group_epoch
    assert c.beat("a", -2, instance_id="s").member_epoch == -2
    settle(b)
    assert not a.owned & b.owned
    back = c.beat("a2", 0, instance_id="s")
    assert (back.assignment, c.group.group_epoch) == (a.owned, epoch)
    assert c.code("a", epoch, instance_id="s") == 82


def test_a_static_member_that_does_not_come_back_is_out_after_its_session(c: Consumers) -> None:
    a, b = RealMember(c, "a", {"instance_id": "s"}), RealMember(c, "b")
    settle(a, b)
    c.beat("a", -2, instance_id="s")
    for _ in range(5):
        c.advance(10_000)
        b.beat()
    settle(b)
    assert b.owned == keys("orders", 0, 1, 2, 3)


# Subscriptions and topics.


def test_a_changed_subscription_is_assigned_anew(c: Consumers) -> None:
    c.topics = topics(orders=2, bills=1)
    c.beat("a", 0)
    told = c.beat("a", 1, topic_names=("bills",), owned=keys("orders", 0, 1))
    assert told.assignment == frozenset()  # orders go first
    assert c.beat("a", 1, owned=frozenset()).assignment == keys("bills", 0)


def test_a_pattern_matches_whole_names_and_topics_that_come_later(c: Consumers) -> None:
    c.topics = topics(orders=1)
    joined = c.beat("a", 0, topic_names=None, topic_pattern="^or.*")
    assert joined.assignment == keys("orders", 0)
    c.change_topics(orders=1, orbits=1, floor=1)
    assert c.beat("a", 1).assignment == keys("orders", 0) | keys("orbits", 0)
    assert c.beat("a", 2, topic_pattern="", topic_names=("floor",), owned=keys("orders", 0)).assignment is not None


def test_topics_that_grow_come_and_go_are_noticed(c: Consumers) -> None:
    member = RealMember(c, "a", {"topic_names": ("orders", "later")})
    settle(member)
    c.change_topics(orders=5)
    settle(member)
    assert member.owned == keys("orders", 0, 1, 2, 3, 4)
    c.change_topics(orders=5, later=1)
    settle(member)
    assert member.owned == keys("orders", 0, 1, 2, 3, 4) | keys("later", 0)
    c.change_topics(later=1)
    settle(member)
    assert member.owned == keys("later", 0)


def test_topics_nobody_reads_change_nothing(c: Consumers) -> None:
    c.beat("a", 0)
    epoch, saves = c.group.group_epoch, c.saves
    c.change_topics(orders=4, other=9)
    assert (c.group.group_epoch, c.saves) == (epoch, saves)


def test_the_assignor_most_members_ask_for_is_used(c: Consumers) -> None:
    c.topics = topics(a=3, b=3)
    subscribes = {"topic_names": ("a", "b")}
    assert c.group.assignor == "uniform"
    one = RealMember(c, "m1", {**subscribes, "assignor": "range"})
    two = RealMember(c, "m2", {**subscribes, "assignor": "range"})
    settle(one, two)
    assert c.group.assignor == "range"
    assert one.owned == keys("a", 0, 1) | keys("b", 0, 1)


# Commits.


def test_commits_are_checked_against_member_and_epoch(c: Consumers) -> None:
    c.group.check_commit("", -1)  # no members: anybody may
    c.beat("a", 0)
    c.group.check_commit("a", 1)
    for member, epoch, code in (("x", 1, 25), ("a", 2, 113), ("a", 0, 113), ("", -1, 25)):
        with pytest.raises(StreamHouseError) as refused:
            c.group.check_commit(member, epoch)
        assert refused.value.kafka_code == code


# Taking over.


def test_another_coordinator_goes_on_in_the_middle_of_a_rebalance(c: Consumers) -> None:
    a, b = RealMember(c, "a"), RealMember(c, "b", {"instance_id": "s", "rack_id": "r1", "assignor": "uniform"})
    a.beat()
    b.beat()
    a.beat()
    saved = decode(encode(c.group.snapshot()))
    assert isinstance(saved, ConsumerSnapshot)
    successor = Consumers()
    successor.group.group_epoch = c.group.group_epoch
    successor.take(successor.group.restore(saved, c.now_ms))
    assert successor.group.snapshot() == c.group.snapshot()
    assert any(key.kind is TimerKind.REVOKE for key in successor.timers)
    successor.take(successor.group.topics_changed(successor.topics))
    a.group = b.group = successor
    settle(a, b)
    assert len(a.owned) == len(b.owned) == 2
    assert not a.owned & b.owned
    assert successor.group.group_epoch == c.group.group_epoch


def test_what_is_shown_is_what_is(c: Consumers) -> None:
    c.beat("a", 0, rack_id="r1", client_id="me", client_host="/h")
    c.beat("b", 0)
    view = c.group.describe()
    assert (view.state, view.group_epoch, view.assignor) == (GroupState.RECONCILING, 2, "uniform")
    first = view.members[0]
    assert (first.member_id, first.rack_id, first.client_id, first.member_epoch) == ("a", "r1", "me", 1)
    assert len(first.assigned) == 4
    assert len(first.target) == 2
