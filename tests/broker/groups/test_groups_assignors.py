"""Who gets what: even, sticky, complete."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.broker.groups.assignors import ASSIGNORS, Assignment, Subscriber, assign_range, assign_uniform
from streamhouse.core.ids import PartitionKey, TopicId

A, B, C = (TopicId(UUID(int=number)) for number in (1, 2, 3))


def readers(*topics: Sequence[TopicId], had: Assignment | None = None) -> list[Subscriber]:
    return [
        Subscriber(
            member_id=f"m{number}",
            instance_id=None,
            topics=frozenset(mine),
            had=(had or {}).get(f"m{number}", frozenset()),
        )
        for number, mine in enumerate(topics)
    ]


def sizes(assignment: Assignment) -> list[int]:
    return [len(mine) for _, mine in sorted(assignment.items())]


def test_range_gives_neighbours_of_each_topic() -> None:
    given_out = assign_range(readers([A, B], [A, B]), {A: 3, B: 2})
    assert given_out["m0"] == {PartitionKey(A, 0), PartitionKey(A, 1), PartitionKey(B, 0)}
    assert given_out["m1"] == {PartitionKey(A, 2), PartitionKey(B, 1)}


def test_range_orders_static_members_by_their_static_ids() -> None:
    def static(member_id: str, instance_id: str) -> Subscriber:
        return Subscriber(member_id=member_id, instance_id=instance_id, topics=frozenset({A}), had=frozenset())

    before = assign_range([static("x", "i1"), static("y", "i2")], {A: 2})
    after = assign_range([static("y", "i2"), static("a-new-id", "i1")], {A: 2})
    assert before["x"] == after["a-new-id"]


def test_uniform_is_even_over_all_topics() -> None:
    assert sizes(assign_uniform(readers([A, B], [A, B], [A, B]), {A: 4, B: 4})) == [3, 3, 2]


def test_uniform_moves_no_more_than_it_must() -> None:
    before = assign_uniform(readers([A], [A]), {A: 6})
    after = assign_uniform(readers([A], [A], [A], had=before), {A: 6})
    assert sizes(after) == [2, 2, 2]
    assert all(after[member] <= before[member] for member in before)
    gone = assign_uniform(readers([A], [A], had={name: after[name] for name in ("m0", "m1")}), {A: 6})
    assert all(after[member] <= gone[member] for member in gone)


def test_uniform_keeps_the_one_more_where_it_was() -> None:
    had = {"m1": frozenset(PartitionKey(A, number) for number in (0, 1)), "m0": frozenset({PartitionKey(A, 2)})}
    assert assign_uniform(readers([A], [A], had=had), {A: 3}) == had


def test_uniform_serves_members_that_read_different_topics() -> None:
    given_out = assign_uniform(readers([A, B], [A], [A]), {A: 6, B: 3})
    assert sizes(given_out) == [3, 3, 3]
    assert all(key.topic_id == B for key in given_out["m0"])


@pytest.mark.parametrize("name", list(ASSIGNORS))
def test_nobody_and_nothing(name: str) -> None:
    assert ASSIGNORS[name]([], {A: 3}) == {}
    assert ASSIGNORS[name](readers([A], []), {}) == {"m0": frozenset(), "m1": frozenset()}


topics = st.lists(st.sampled_from([A, B, C]), unique=True)
counts = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 12))


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(subscriptions=st.lists(topics, max_size=6), before=counts, after=counts)
def test_every_partition_with_a_reader_is_given_once_to_one_who_reads_it(
    name: str, subscriptions: list[list[TopicId]], before: dict[TopicId, int], after: dict[TopicId, int]
) -> None:
    assign = ASSIGNORS[name]
    members = readers(*subscriptions, had=assign(readers(*subscriptions), before))
    given_out = assign(members, after)
    for member in members:
        assert {key.topic_id for key in given_out[member.member_id]} <= member.topics
    every = [key for mine in given_out.values() for key in mine]
    wanted = {topic for member in members for topic in member.topics}
    expected = {PartitionKey(topic, n) for topic, count in after.items() if topic in wanted for n in range(count)}
    assert len(every) == len(expected)
    assert set(every) == expected


@given(members=st.integers(1, 8), before=counts, after=counts)
def test_uniform_is_even_and_sticky_for_equals(
    members: int, before: dict[TopicId, int], after: dict[TopicId, int]
) -> None:
    everything = [[A, B, C]] * members
    had = assign_uniform(readers(*everything), before)
    given_out = assign_uniform(readers(*everything, had=had), after)
    assert max(sizes(given_out)) - min(sizes(given_out)) <= 1
    if before == after:
        assert given_out == had
