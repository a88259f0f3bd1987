"""KIP-848 groups, one test for each rule, without IO."""

from __future__ import annotations

import pytest
from consumer_driver import Consumers, RealMember, keys, settle, topics

from streamhouse.broker.groups.contract import GroupState, MemberRef, Ticket
from streamhouse.broker.groups.options import GroupOptions
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


def test_a_pattern_matches_whole_names_and_topics_that_come_later(c: Consumers) -> None:
    c.topics = topics(orders=1)
    joined = c.beat("a", 0, topic_names=None, topic_pattern="^or.*")
    assert joined.assignment == keys("orders", 0)
    c.change_topics(orders=1, orbits=1, floor=1)
    assert c.beat("a", 1).assignment == keys("orders", 0) | keys("orbits", 0)
    assert c.beat("a", 2, topic_pattern="", topic_names=("floor",), owned=keys("orders", 0)).assignment is not None


# Commits.


def test_commits_are_checked_against_member_and_epoch(c: Consumers) -> None:
    c.group.check_commit("", -1)  # no members: any client may
    c.beat("a", 0)
    c.group.check_commit("a", 1)
    for member, epoch, code in (("x", 1, 25), ("a", 2, 113), ("a", 0, 113), ("", -1, 25)):
        with pytest.raises(StreamHouseError) as refused:
            c.group.check_commit(member, epoch)
        assert refused.value.kafka_code == code


# Taking over.


def test_what_is_shown_is_what_is(c: Consumers) -> None:
    c.beat("a", 0, rack_id="r1", client_id="me", client_host="/h")
    c.beat("b", 0)
    view = c.group.describe()
    assert (view.state, view.group_epoch, view.assignor) == (GroupState.RECONCILING, 2, "uniform")
    first = view.members[0]
    assert (first.member_id, first.rack_id, first.client_id, first.member_epoch) == ("a", "r1", "me", 1)
    assert len(first.assigned) == 4
    assert len(first.target) == 2
