"""Which agent should lead which partition: consistent hashing with a load bound. Pure.

    0 ──────●───────────────●──────────────●──────────────●──── 2⁶⁴-1, and round to 0
       agent-1:vn0     agent-2:vn42   agent-3:vn87   agent-1:vn149
                ▲                ▲              ▲
            orders:0         orders:1       orders:2        each goes to the first virtual node clockwise

Every process computes the same answer from the same agents and partitions, without coordination. The answer is only a
wish: leases decide which agent really leads. Must not do IO, keep state between calls, or depend on the input's order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

VIRTUAL_NODES: Final = 150
"""The number for each agent. An agent's natural share then varies by about 8% (1/√150), well inside the load bound."""

TopicPartition = tuple[str, int]

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_FNV_OFFSET_BASIS: Final = 0xCBF2_9CE4_8422_2325
_FNV_PRIME: Final = 0x0000_0100_0000_01B3


def fnv1a_murmur64(data: bytes) -> int:
    """FNV-1a 64, then Murmur3's 64-bit finalizer: FNV alone leaves ``a:vn1`` and ``a:vn2`` side by side."""
    return _fmix64(_fnv1a(_FNV_OFFSET_BASIS, data))


def load_bound(*, agents: int, partitions: int) -> int:
    """The most partitions one agent may get: ceil(1.25 × average)."""
    return -(-5 * partitions // (4 * agents))


def assign(agents: Iterable[str], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """The agent of each partition; empty without agents.

    There are two rounds, so that an overloaded agent does not disturb the others. In the first, every agent keeps its
    natural partitions up to the bound, in ring order. In the second, each partition that found no room goes clockwise
    to the first agent with room. So a partition moves between two assignments only if its natural agent changed, or if
    it found no room in one of them. With a single round, overflow would displace partitions of agents that did not
    change.
    """
    names = sorted(set(agents))
    placed = _place(set(partitions))
    if not names or not placed:
        return {}
    points, owners = _ring(names)
    bound = load_bound(agents=len(names), partitions=len(placed))
    load = dict.fromkeys(names, 0)
    assigned: dict[TopicPartition, str] = {}
    overflow: list[tuple[int, TopicPartition]] = []
    for position, key in placed:
        at = bisect_left(points, position) % len(points)
        agent = owners[at]
        if load[agent] < bound:
            load[agent] += 1
            assigned[key] = agent
        else:
            overflow.append((at, key))
    for at, key in overflow:
        # Terminates: the bounds add up to at least 1.25 times the partitions, so some agent always has room.
        while load[owners[at]] >= bound:
            at = (at + 1) % len(owners)
        load[owners[at]] += 1
        assigned[key] = owners[at]
    return assigned


def _ring(names: list[str]) -> tuple[list[int], list[str]]:
    """The position and agent of every virtual node, in ring order; nodes at one position are in name order."""
    nodes: list[tuple[int, str]] = []
    for name in names:
        # FNV reads left to right: hash the shared prefix once and go on from there for each virtual node.
        prefix = _fnv1a(_FNV_OFFSET_BASIS, f"{name}:vn".encode())
        nodes.extend((_fmix64(_fnv1a(prefix, b"%d" % number)), name) for number in range(VIRTUAL_NODES))
    nodes.sort()
    return [position for position, _ in nodes], [name for _, name in nodes]


def _place(partitions: set[TopicPartition]) -> list[tuple[int, TopicPartition]]:
    """The position of every partition, in ring order. All processes place partitions in this order."""
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        by_topic[topic].append(partition)
    placed: list[tuple[int, TopicPartition]] = []
    for topic, numbers in by_topic.items():
        prefix = _fnv1a(_FNV_OFFSET_BASIS, f"{topic}:".encode())
        placed.extend((_fmix64(_fnv1a(prefix, b"%d" % number)), (topic, number)) for number in numbers)
    placed.sort()
    return placed


def _fnv1a(state: int, data: bytes) -> int:
    for byte in data:
        state = ((state ^ byte) * _FNV_PRIME) & _MASK
    return state


def _fmix64(value: int) -> int:
    value = ((value ^ (value >> 33)) * 0xFF51_AFD7_ED55_8CCD) & _MASK
    value = ((value ^ (value >> 33)) * 0xC4CE_B9FE_1A85_EC53) & _MASK
    return value ^ (value >> 33)
