"""The same answer everywhere, within the load bound, moving little."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.cluster.ring import TopicPartition, assign, fnv1a_murmur64, load_bound

names = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=12)
agent_sets = st.sets(names, min_size=1, max_size=12)
partition_sets = st.sets(st.tuples(names, st.integers(0, 100_000)), max_size=120)


def independent_hash(data: bytes) -> int:
    """The same function, from its two published definitions, on fixed-width machine integers."""
    state = ctypes.c_uint64(14695981039346656037)
    for byte in data:
        state.value ^= byte
        state.value *= 1099511628211
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state.value ^= state.value >> 33
        state.value *= multiplier
    state.value ^= state.value >> 33
    return state.value


@cache
def virtual_nodes(agent: str) -> list[int]:
    return [independent_hash(f"{agent}:vn{number}".encode()) for number in range(150)]


def natural_owner(agents: Sequence[str], key: TopicPartition) -> str:
    """Plain consistent hashing by brute force: the virtual node at the smallest clockwise distance."""
    position = independent_hash(f"{key[0]}:{key[1]}".encode())
    return min((min((node - position) % 2**64 for node in virtual_nodes(agent)), agent) for agent in agents)[1]


def make_partitions(count: int, topic: str = "orders") -> list[TopicPartition]:
    return [(topic, number) for number in range(count)]


def moved(before: dict[TopicPartition, str], after: dict[TopicPartition, str]) -> set[TopicPartition]:
    return {key for key in before if before[key] != after[key]}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEFD01F60BA992926),
        (b"a", 0x82A2A958A9BECE5B),
        (b"orders:0", 0x32BEA26AB73B199B),
        (b"agent-1:vn0", 0xEFDE67AD22A4D798),
        ("zürich-1:vn149".encode(), 0x35FA349BA9648C5D),
    ],
)
def test_s3_8_hash_vectors(data: bytes, expected: int) -> None:
    assert fnv1a_murmur64(data) == expected == independent_hash(data)


@settings(deadline=None)
@given(st.binary(max_size=64))
def test_s3_8_hash_agrees_with_an_independent_implementation(data: bytes) -> None:
    assert fnv1a_murmur64(data) == independent_hash(data)


def test_s3_8_every_process_gives_the_same_answer() -> None:
    script = (
        "from streamhouse.cluster.ring import assign;"
        "print(sorted(assign({'a', 'b', 'c'}, {('orders', n) for n in range(50)}).items()))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{sorted(assign(['c', 'a', 'b'], make_partitions(50)).items())}\n"}


def test_s3_7_vector_of_an_assignment() -> None:
    assigned = assign(["agent-1", "agent-2", "agent-3"], make_partitions(6))
    assert {number: agent for (_, number), agent in assigned.items()} == {
        0: "agent-1",
        1: "agent-3",
        2: "agent-1",
        3: "agent-1",
        4: "agent-2",
        5: "agent-2",
    }


def test_s3_7_goes_to_the_first_virtual_node_clockwise() -> None:
    agents = ["agent-1", "agent-2", "agent-3"]
    partitions = make_partitions(60, "events")
    natural = {key: natural_owner(agents, key) for key in partitions}
    assert max(Counter(natural.values()).values()) <= load_bound(agents=3, partitions=60), "pick names that fit"
    assert assign(agents, partitions) == natural


@settings(max_examples=100, deadline=None)
@given(agent_sets, partition_sets)
def test_s3_9_every_partition_once_and_no_agent_over_the_bound(
    agents: set[str], partitions: set[TopicPartition]
) -> None:
    assigned = assign(agents, partitions)
    assert set(assigned) == partitions
    assert set(assigned.values()) <= agents
    bound = -(-len(partitions) * 125 // (len(agents) * 100))
    assert all(count <= bound for count in Counter(assigned.values()).values())


@settings(max_examples=60, deadline=None)
@given(agent_sets, partition_sets, st.randoms(use_true_random=False))
def test_s3_8_order_and_repetition_of_the_input_do_not_matter(agents, partitions, random) -> None:
    shuffled_agents = list(agents) * 2
    shuffled_partitions = list(partitions) * 2
    random.shuffle(shuffled_agents)
    random.shuffle(shuffled_partitions)
    assert assign(shuffled_agents, shuffled_partitions) == assign(sorted(agents), sorted(partitions))


@pytest.mark.parametrize("count", [7, 25, 60])
def test_s3_9_overflow_never_pushes_out_a_natural_partition(count: int) -> None:
    partitions = make_partitions(count)
    overflowing = 0
    for fleet in range(12):
        agents = [f"f{fleet}-{number}" for number in range(5)]
        assigned = assign(agents, partitions)
        natural = {key: natural_owner(agents, key) for key in partitions}
        kept = Counter(natural[key] for key in partitions if assigned[key] == natural[key])
        bound = load_bound(agents=5, partitions=count)
        overflowing += max(Counter(natural.values()).values()) > bound
        assert kept == {agent: min(share, bound) for agent, share in Counter(natural.values()).items()}
    assert overflowing > 3, "these fleets show nothing"


@settings(max_examples=40, deadline=None)
@given(
    st.sets(st.sampled_from([f"agent-{number}" for number in range(12)]), min_size=2, max_size=5), st.integers(1, 40)
)
def test_s3_9_moves_only_what_changed_its_natural_agent_or_overflowed(agents: set[str], count: int) -> None:
    partitions = make_partitions(count)
    joining = max(agents)
    small, large = sorted(agents - {joining}), sorted(agents)
    before, after = assign(small, partitions), assign(large, partitions)
    natural_before = {key: natural_owner(small, key) for key in partitions}
    natural_after = {key: natural_owner(large, key) for key in partitions}
    may_move = {
        key
        for key in partitions
        if natural_before[key] != natural_after[key]
        or before[key] != natural_before[key]
        or after[key] != natural_after[key]
    }
    assert moved(before, after) <= may_move


@pytest.mark.parametrize(
    ("size_before", "size_after", "share"), [(3, 4, 1 / 4), (3, 2, 1 / 3), (4, 3, 1 / 4), (10, 11, 1 / 11)]
)
def test_s3_9_one_agent_more_or_less_moves_about_its_share(size_before: int, size_after: int, share: float) -> None:
    shares = []
    for fleet in range(12):
        agents = [f"fleet{fleet}-agent{number}" for number in range(max(size_before, size_after))]
        partitions = make_partitions(400, f"topic{fleet}")
        before, after = assign(agents[:size_before], partitions), assign(agents[:size_after], partitions)
        shares.append(len(moved(before, after)) / len(partitions))
    assert sum(shares) / len(shares) == pytest.approx(share, rel=0.15)
    assert max(shares) < share * 1.6


def test_s3_9_a_joining_agent_takes_and_nobody_else_does_when_nothing_overflows() -> None:
    partitions = make_partitions(300)
    before = assign(["agent-1", "agent-2", "agent-3"], partitions)
    after = assign(["agent-1", "agent-2", "agent-3", "agent-4"], partitions)
    assert {after[key] for key in moved(before, after)} == {"agent-4"}
    assert moved(before, after) == {key for key in partitions if after[key] == "agent-4"}


def test_s3_9_no_change_moves_nothing_and_a_new_topic_leaves_others_alone() -> None:
    agents = [f"agent-{number}" for number in range(5)]
    before = assign(agents, make_partitions(200))
    assert moved(before, assign(agents, make_partitions(200))) == set()
    grown = assign(agents, [*make_partitions(200), *make_partitions(40, "events")])
    assert moved(before, grown) == set()


def test_s3_9_small_clusters_stay_even() -> None:
    """Nine partitions on three agents: without the bound one agent could get seven; with it, at most four."""
    for fleet in range(50):
        assigned = assign([f"f{fleet}-{number}" for number in range(3)], make_partitions(9))
        assert max(Counter(assigned.values()).values()) <= 4


def test_fewer_partitions_than_agents_go_to_different_agents() -> None:
    assigned = assign([f"agent-{number}" for number in range(40)], make_partitions(30))
    assert len(set(assigned.values())) == 30


def test_no_agents_or_no_partitions_assign_nothing() -> None:
    assert assign([], make_partitions(3)) == {}
    assert assign(["agent-1"], []) == {}
    assert set(assign(["agent-1"], make_partitions(7)).values()) == {"agent-1"}
