"""How partitions move between the members of a consumer group, without IO."""

from __future__ import annotations

import pytest
from consumer_driver import Consumers, RealMember, keys, settle, topics

from streamhouse.broker.groups.contract import GroupState, TimerKind
from streamhouse.broker.groups.payload import decode, encode
from streamhouse.broker.groups.snapshot import ConsumerSnapshot


@pytest.fixture
def c() -> Consumers:
    return Consumers()


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


def test_a_group_that_reads_too_much_is_refused_before_anything_changes(
    c: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamhouse.broker.groups.reconciling.MAX_ASSIGNED_PARTITIONS", 3)
    assert c.code("a", 0) == 81
    assert c.group.state is GroupState.EMPTY
    assert c.group.group_epoch == 0


def test_a_changed_subscription_is_assigned_anew(c: Consumers) -> None:
    c.topics = topics(orders=2, bills=1)
    c.beat("a", 0)
    told = c.beat("a", 1, topic_names=("bills",), owned=keys("orders", 0, 1))
    assert told.assignment == frozenset()  # orders go first
    assert c.beat("a", 1, owned=frozenset()).assignment == keys("bills", 0)


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


def test_topics_that_no_member_reads_change_nothing(c: Consumers) -> None:
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
