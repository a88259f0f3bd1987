"""Which agent should lead what, and what this agent has to do: takes the ring and the leases, returns a plan. Pure.

Every agent group has a ring of its own. A topic belongs to one group: the one its config ``agent.group`` names, else
``default``. The coordinator slots belong to ``default``. So every partition and every slot is on exactly one ring, and
an agent only takes what is on its own ring. A group without live agents leads nothing, and the health reports it: to
give its topics to other groups would end their isolation when it matters most.

The plan starts from the leases as they are, not from the last plan: what failed last time is planned again. Must not do
IO, and keeps nothing between two plans but the last ring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from streamhouse.cluster.ring import TopicPartition, assign
from streamhouse.core.limits import COORDINATOR_SLOTS
from streamhouse.metadata.contract import (
    AgentInfo,
    HeldLease,
    Lease,
    LeaseKey,
    RegisteredAgent,
    SlotKey,
    Topic,
    WriteMode,
)

DEFAULT_GROUP: Final = "default"
GROUP_CONFIG: Final = "agent.group"
DRAINING: Final = "draining"
"""A key in an agent's metadata: the agent is alive but about to leave, so it gets no more leases."""

_SLOTS: Final = "coordinator/slot"  # no topic can have this name: '/' is not allowed in one


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The ring's answer, for everything that can be led."""

    leader_of: Mapping[LeaseKey, str | None]
    """None where the key's group has no live agent."""

    def led_by(self, agent_id: str) -> list[LeaseKey]:
        return [key for key, leader in self.leader_of.items() if leader == agent_id]

    def without_leader(self) -> int:
        return sum(leader is None for leader in self.leader_of.values())


NO_WISH: Final = Wish(leader_of={})


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePlan:
    acquire: list[LeaseKey] = field(default_factory=list)
    hand_over: dict[LeaseKey, str] = field(default_factory=dict)
    """The agent that each key is handed over to."""
    release: list[LeaseKey] = field(default_factory=list)
    """The leases that this agent holds and can hand over to no agent."""
    give_back: list[HeldLease] = field(default_factory=list)
    """The store says that this agent holds them, but it does not, nor should it: the answer of a call was lost."""


class Assigner:
    """Computes the ring again only when agents or topics have changed."""

    def __init__(self) -> None:
        self._asked: object = None
        self._answer = NO_WISH

    def wish(self, members: Collection[tuple[str, str]], topics: Sequence[Topic]) -> Wish:
        """``members`` are (group, agent id)."""
        leased = [topic for topic in topics if topic.write_mode is WriteMode.LEASED]
        asked = (
            frozenset(members),
            [(topic.topic_id, topic.name, topic.partition_count, group_of(topic)) for topic in leased],
        )
        if asked != self._asked:
            self._asked, self._answer = asked, _wish(asked[0], leased)
        return self._answer


def group_of(topic: Topic) -> str:
    return topic.configs.get(GROUP_CONFIG, DEFAULT_GROUP)


def members_of(agents: Iterable[RegisteredAgent], me: AgentInfo, *, leaving: bool) -> set[tuple[str, str]]:
    """(group, agent id) of every agent that may get leases.

    Unless it is leaving, this agent is one of them, whatever the store says: it knows that it is alive.
    """
    members = {
        (agent.agent_group, agent.agent_id)
        for agent in agents
        if agent.agent_id != me.agent_id and not is_draining(agent)
    }
    return members if leaving else members | {(me.agent_group, me.agent_id)}


def is_draining(agent: RegisteredAgent) -> bool:
    return agent.metadata.get(DRAINING) is True


def plan(
    wish: Wish,
    leases: Mapping[LeaseKey, Lease],
    *,
    agent_id: str,
    incarnation: UUID,
    held: Container[LeaseKey],
    busy: Container[LeaseKey],
) -> LeasePlan:
    """``held`` keys are served here. A task runs for each of the ``busy`` keys; they are skipped this time."""
    made = LeasePlan()
    for key, leader in wish.leader_of.items():
        if key in busy:
            continue
        if key in held:
            if leader is None:
                made.release.append(key)
            elif leader != agent_id:
                made.hand_over[key] = leader
            continue
        lease = leases.get(key)
        if leader == agent_id:
            # Another agent's unexpired lease is that agent's to hand over. One of an earlier run of this agent is not.
            if lease is None or lease.expired or lease.agent_id == agent_id:
                made.acquire.append(key)
        elif lease is not None and not lease.expired and lease.incarnation == incarnation:
            made.give_back.append(HeldLease(key=key, epoch=lease.epoch))
    return made


def plan_single_node(topics: Sequence[Topic], *, held: Container[LeaseKey], busy: Container[LeaseKey]) -> LeasePlan:
    """Acquire everything, whatever the store says: the lock on the directory decides who leads (R2)."""
    return LeasePlan(acquire=[key for key in all_keys(topics) if key not in held and key not in busy])


def all_keys(topics: Iterable[Topic]) -> list[LeaseKey]:
    """Everything that can be led: the partitions of leased topics, and the slots."""
    keys: list[LeaseKey] = [SlotKey(slot) for slot in range(COORDINATOR_SLOTS)]
    for topic in topics:
        if topic.write_mode is WriteMode.LEASED:
            keys.extend(topic.partition_keys())
    return keys


def soonest_death_ms(
    agents: Iterable[RegisteredAgent], *, except_agent: str, now_ms: int, liveness_timeout_ms: int
) -> int | None:
    """The time until the next other agent counts as dead if it stays silent. ``now_ms`` is the store's time."""
    dead_at_ms = [agent.last_heartbeat_ms + liveness_timeout_ms for agent in agents if agent.agent_id != except_agent]
    return max(0, min(dead_at_ms) - now_ms) if dead_at_ms else None


def _wish(members: frozenset[tuple[str, str]], topics: Sequence[Topic]) -> Wish:
    agents: defaultdict[str, list[str]] = defaultdict(list)
    for group, agent_id in members:
        agents[group].append(agent_id)
    partitions: defaultdict[str, list[TopicPartition]] = defaultdict(list)
    for topic in topics:
        partitions[group_of(topic)].extend((topic.name, number) for number in range(topic.partition_count))
    placed: dict[TopicPartition, str] = {}
    for group, keys in partitions.items():
        placed.update(assign(agents[group], keys))
    # Slots are placed by themselves: under a common load bound one agent could get all of them and few partitions.
    slots = assign(agents[DEFAULT_GROUP], [(_SLOTS, slot) for slot in range(COORDINATOR_SLOTS)])
    leader_of: dict[LeaseKey, str | None] = {}
    for topic in topics:
        for key in topic.partition_keys():
            leader_of[key] = placed.get((topic.name, key.partition))
    for slot in range(COORDINATOR_SLOTS):
        leader_of[SlotKey(slot)] = slots.get((_SLOTS, slot))
    return Wish(leader_of=leader_of)
