"""A group's state in versions 1 to 3: what earlier builds wrote is read for ever, and damage is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from payload_samples import GOLDENS, MIXED, SILENT, golden

from streamhouse.broker.groups import old_payload, payload
from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.old_payload import decode
from streamhouse.broker.groups.snapshot import ClassicSnapshot, ConsumerSnapshot, Reconciliation
from streamhouse.core.errors import CorruptDocument

OLD = sorted(name for name in GOLDENS if not name.endswith("v4"))
EMPTY_CLASSIC = b"\x01\x01" + b"\x00" + b"\0\0" + b"\0\0" + b"\0" + b"\0\0\0\0"
"""Version 1: state 0, no type, no protocol, no leader, no members."""


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize("name", OLD)
def test_what_an_earlier_build_wrote_is_read_for_ever(name: str) -> None:
    assert decode(golden(name)) == GOLDENS[name]
    assert payload.decode(golden(name)) == GOLDENS[name], "also through the front of all versions"
    assert golden(name)[0] in old_payload.VERSIONS


def test_each_version_has_the_fields_that_it_had() -> None:
    first, second, third = (decode(golden(f"group_{name}")) for name in ("consumer_v1", "consumer_v2", "mixed_v3"))
    assert isinstance(first, ConsumerSnapshot)
    assert isinstance(second, ConsumerSnapshot)
    assert isinstance(third, ConsumerSnapshot)
    assert (first.silent, second.silent) == ((), SILENT)
    assert [member.classic for member in (*first.members, *second.members)] == [None, None]
    assert [member.classic for member in third.members] == [member.classic for member in MIXED.members]


@pytest.mark.parametrize(
    ("number", "state"),
    [
        (0, GroupState.EMPTY),
        (1, GroupState.PREPARING_REBALANCE),
        (2, GroupState.COMPLETING_REBALANCE),
        (3, GroupState.STABLE),
    ],
)
def test_the_states_of_a_classic_group(number: int, state: GroupState) -> None:
    group = decode(changed(EMPTY_CLASSIC, 2, bytes([number])))
    assert isinstance(group, ClassicSnapshot)
    assert (group.state, group.members, group.leader) == (state, (), None)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x01\x03", "unknown kind 3"),
        (changed(EMPTY_CLASSIC, 2, b"\x04"), "cannot be read at byte 3"),
        (EMPTY_CLASSIC + b"\0", "1 bytes too many"),
        (EMPTY_CLASSIC[:-1], "ends too early, at byte 8"),
        (changed(EMPTY_CLASSIC, 3, b"\xff\xff"), "ends too early, at byte 5"),
        (b"\x01\x01\x00\0\x01\xff" + EMPTY_CLASSIC[5:], "cannot be read at byte 6"),
        (b"\x01", "ends too early, at byte 1"),
    ],
)
def test_damage_is_named_with_its_place(data: bytes, says: str) -> None:
    with pytest.raises(CorruptDocument, match=says):
        decode(data)


def test_a_consumer_in_a_state_that_never_was_is_refused() -> None:
    whole = golden("group_consumer_v1")
    after_epochs = whole.index(b"\xff\xff\xff\xfe") + 4  # behind its previous epoch, -2
    for state in Reconciliation:
        group = decode(changed(whole, after_epochs, bytes([state])))
        assert isinstance(group, ConsumerSnapshot)
        assert [member.state for member in group.members] == [state]
    with pytest.raises(CorruptDocument, match=f"cannot be read at byte {after_epochs + 1}"):
        decode(changed(whole, after_epochs, b"\x09"))


@pytest.mark.parametrize("name", OLD)
def test_every_cut_of_an_old_version_is_noticed(name: str) -> None:
    whole = golden(name)
    for length in range(1, len(whole)):
        with pytest.raises(CorruptDocument):
            decode(whole[:length])


@pytest.mark.parametrize(("whole", "at"), [(golden("group_consumer_v1"), 6), (EMPTY_CLASSIC, 8)])
def test_a_huge_count_makes_nothing(whole: bytes, at: int) -> None:
    with pytest.raises(CorruptDocument, match="claims 4294967295 items"):
        decode(changed(whole, at, b"\xff\xff\xff\xff"))


@given(st.sampled_from(OLD), st.integers(0, 10_000), st.integers(0, 255))
def test_any_damage_is_refused_or_harmless(name: str, place: int, value: int) -> None:
    whole = golden(name)
    with suppress(CorruptDocument):
        decode(changed(whole, place % len(whole), bytes([value])))
