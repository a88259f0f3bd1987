"""Which members may join a classic group, and which protocol they agree on, without IO."""

from __future__ import annotations

import pytest
from group_driver import Driver

from streamhouse.broker.groups import options as limits
from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.options import GroupOptions


@pytest.fixture
def d() -> Driver:
    return Driver()


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(d: Driver, session_ms: int) -> None:
    assert d.code(d.join(session_ms=session_ms)) == 26


def test_a_member_without_protocols_or_type_is_refused(d: Driver) -> None:
    assert d.code(d.join(protocols=())) == 23
    assert d.code(d.join(protocol_type="")) == 23


def test_another_type_or_nothing_in_common_is_refused(d: Driver) -> None:
    d.member()
    assert d.code(d.join(protocol_type="connect")) == 23
    assert d.code(d.join(protocols=(("sticky", b""),))) == 23
    assert d.state is GroupState.STABLE


def test_the_protocol_with_most_votes_among_the_common_ones_wins(d: Driver) -> None:
    a, b, c = (("x", b""), ("y", b""), ("z", b"")), (("z", b""), ("y", b"")), (("z", b""), ("y", b""))
    d.member(protocols=a)
    d.member(protocols=b)
    d.member(protocols=c)
    assert d.group.protocol_name == "z"


def test_a_group_at_its_size_takes_no_more() -> None:
    d = Driver(GroupOptions(max_size=2))
    d.member()
    d.member()
    assert d.code(d.join()) == 81
    assert d.state is GroupState.STABLE


def test_ids_given_out_count_for_the_size() -> None:
    d = Driver(GroupOptions(max_size=2))
    d.join(known_id_required=True)
    d.join(known_id_required=True)
    assert d.code(d.join(known_id_required=True)) == 81


def test_members_that_describe_themselves_without_end_are_refused(d: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamhouse.broker.groups.classic.MAX_ROSTER_BYTES", 1_000)
    assert d.code(d.join(protocols=(("range", bytes(1_000)),))) == 81
    assert limits.MAX_ROSTER_BYTES > 1_000
    assert len(d.group.roster) == 0
