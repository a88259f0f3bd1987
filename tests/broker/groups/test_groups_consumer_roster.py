"""What a heartbeat must look like, and which member holds which partition, without IO."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_driver import REBALANCE_MS, Consumers, keys

from streamhouse.broker.groups.consumer_roster import ConsumerMember, ConsumerRoster
from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.snapshot import ClassicTraits
from streamhouse.core.errors import StreamHouseError


@pytest.fixture
def c() -> Consumers:
    return Consumers()


def test_a_full_heartbeat_is_told_everything(c: Consumers) -> None:
    c.beat("a", 0)
    full = c.beat("a", 1, rebalance_timeout_ms=REBALANCE_MS, topic_names=("orders",), owned=keys("orders", 0))
    assert full.assignment == keys("orders", 0, 1, 2, 3)


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


def member(name: str, *assigned: int, classic: tuple[str, ...] = (), instance: str | None = None) -> ConsumerMember:
    traits = ClassicTraits(session_timeout_ms=1, protocols=tuple((each, b"") for each in classic)) if classic else None
    return ConsumerMember(member_id=name, instance_id=instance, assigned=keys("orders", *assigned), classic=traits)


def test_a_partition_has_one_holder() -> None:
    roster = ConsumerRoster()
    first, second = member("a", 0, 1), member("b", 2)
    roster.add(first)
    roster.add(second)
    (zero,), (one,) = keys("orders", 0), keys("orders", 1)
    assert roster.holder(zero) == "a"
    roster.hold(first, assigned=frozenset({one}), revoking=frozenset({zero}))
    assert roster.holder(zero) == "a", "it may still read what it gives up"
    with pytest.raises(AssertionError):
        roster.hold(second, assigned=frozenset({zero}), revoking=frozenset())
    roster.remove(first)
    assert roster.holder(zero) is None


def test_only_classic_members_are_left() -> None:
    roster = ConsumerRoster()
    assert not roster.only_classic
    new, old = member("new"), member("old", classic=("range",))
    roster.add(old)
    assert roster.only_classic
    roster.add(new)
    assert not roster.only_classic
    roster.remove(new)
    assert roster.only_classic
    roster.set_classic(old, None)
    assert not roster.only_classic


def test_an_assignor_in_common_with_all_other_classic_members() -> None:
    roster = ConsumerRoster()
    range_only, sticky = (("range", b""),), (("sticky", b""),)
    assert roster.has_in_common(range_only, without=None)
    both, new = member("a", classic=("range", "sticky")), member("new")
    roster.add(both)
    roster.add(new)
    assert roster.has_in_common(sticky, without=None)
    roster.add(member("b", classic=("range",)))
    assert not roster.has_in_common(sticky, without=None)
    assert not roster.has_in_common(sticky, without=both)
    assert roster.has_in_common(range_only, without=both)


def test_a_static_member_is_found_by_its_instance_id() -> None:
    roster = ConsumerRoster()
    static = member("a", instance="s")
    roster.add(static)
    assert roster.static("s") is static
    roster.remove(static)
    assert roster.static("s") is None
