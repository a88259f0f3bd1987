"""A group's state as bytes: read back what was written, for ever; refuse the rest."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from payload_samples import CONSUMER, GOLDENS, TOPIC, golden, replace

from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.payload import decode, encode
from streamhouse.broker.groups.snapshot import (
    ClassicMemberSnapshot,
    ClassicSnapshot,
    ClassicTraits,
    ConsumerMemberSnapshot,
    ConsumerSnapshot,
    Reconciliation,
)
from streamhouse.core.errors import CorruptDocument, UnsupportedVersion
from streamhouse.core.ids import PartitionKey, TopicId


@pytest.mark.parametrize("name", GOLDENS)
def test_what_any_version_wrote_is_read_for_ever(name: str) -> None:
    assert decode(golden(name)) == GOLDENS[name]


@pytest.mark.parametrize("name", [name for name in GOLDENS if name.endswith("v4")])
def test_version_4_is_written(name: str) -> None:
    assert encode(GOLDENS[name]) == golden(name)


def test_a_target_that_is_equal_to_the_assignment_is_stored_once() -> None:
    held = frozenset(PartitionKey(TOPIC, number) for number in range(100))
    moving = replace(CONSUMER.members[0], assigned=held, target=frozenset(sorted(held)[1:]), encoded=[])
    resting = replace(moving, target=held, encoded=[])
    small, large = (encode(replace(CONSUMER, members=(member,))) for member in (resting, moving))
    assert len(small) < len(large) - 100
    decoded = decode(small)
    assert isinstance(decoded, ConsumerSnapshot)
    assert decoded.members == (resting,)


def test_a_group_of_simple_commits_has_no_state() -> None:
    empty = decode(b"")
    assert isinstance(empty, ClassicSnapshot)
    assert (empty.state, empty.members) == (GroupState.EMPTY, ())


def test_a_newer_version_is_named_as_such() -> None:
    with pytest.raises(UnsupportedVersion, match="version 5; this agent reads 1 to 4") as refused:
        decode(b"\x05\x01")
    assert refused.value.hint == "upgrade this agent"


@pytest.mark.parametrize("name", GOLDENS)
def test_every_cut_is_noticed(name: str) -> None:
    whole = golden(name)
    for length in range(1, len(whole)):
        with pytest.raises(CorruptDocument):
            decode(whole[:length])
    with pytest.raises(CorruptDocument):
        decode(whole + b"\0")


@given(st.sampled_from(sorted(GOLDENS)), st.integers(0, 10_000), st.integers(0, 255))
def test_damage_is_refused_or_harmless_but_never_worse(name: str, place: int, value: int) -> None:
    damaged = bytearray(golden(name))
    damaged[place % len(damaged)] = value
    with suppress(CorruptDocument, UnsupportedVersion):
        decode(bytes(damaged))


def test_a_huge_count_makes_nothing() -> None:
    with pytest.raises(CorruptDocument, match="truncated"):
        decode(b"\x04\x95\x02\x07\xdd\xff\xff\xff\xff")


texts = st.text(max_size=20)
blobs = st.binary(max_size=30)
numbers = st.integers(-(2**31), 2**31 - 1)
partition_keys = st.frozensets(st.builds(PartitionKey, st.uuids().map(TopicId), st.integers(0, 2**31 - 1)), max_size=5)


@given(
    st.builds(
        ClassicSnapshot,
        state=st.sampled_from(
            [
                GroupState.EMPTY,
                GroupState.PREPARING_REBALANCE,
                GroupState.COMPLETING_REBALANCE,
                GroupState.STABLE,
            ]
        ),
        protocol_type=texts,
        protocol_name=texts,
        leader=st.none() | texts,
        members=st.lists(
            st.builds(
                ClassicMemberSnapshot,
                member_id=texts,
                instance_id=st.none() | texts,
                client_id=texts,
                client_host=texts,
                session_timeout_ms=numbers,
                rebalance_timeout_ms=numbers,
                protocols=st.lists(st.tuples(texts, blobs), max_size=3).map(tuple),
                assignment=blobs,
            ),
            max_size=4,
        ).map(tuple),
    )
)
def test_any_classic_group_comes_back(group: ClassicSnapshot) -> None:
    assert decode(encode(group)) == group


@given(
    st.builds(
        ConsumerSnapshot,
        assignment_epoch=numbers,
        partitions=st.lists(st.tuples(st.uuids().map(TopicId), st.integers(0, 2**31)), max_size=3).map(tuple),
        members=st.lists(
            st.builds(
                ConsumerMemberSnapshot,
                member_id=texts,
                instance_id=st.none() | texts,
                rack_id=st.none() | texts,
                client_id=texts,
                client_host=texts,
                rebalance_timeout_ms=numbers,
                topic_names=st.lists(texts, max_size=3).map(tuple),
                topic_pattern=st.none() | texts,
                assignor=st.none() | texts,
                member_epoch=numbers,
                previous_epoch=numbers,
                state=st.sampled_from(Reconciliation),
                assigned=partition_keys,
                revoking=partition_keys,
                target=partition_keys,
                classic=st.none()
                | st.builds(
                    ClassicTraits,
                    session_timeout_ms=numbers,
                    protocols=st.lists(st.tuples(texts, blobs), max_size=3).map(tuple),
                ),
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_any_consumer_group_comes_back(group: ConsumerSnapshot) -> None:
    assert decode(encode(group)) == group
