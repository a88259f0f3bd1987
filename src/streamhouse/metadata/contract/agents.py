"""Agents: which are registered, and which are alive.

Atomicity asked of a backend: one agent's record per call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

JsonScalar = str | int | float | bool | None

KAFKA_LISTENER: Final = "kafka"
HTTP_LISTENER: Final = "http"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    agent_id: str
    incarnation: UUID
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Where clients reach the agent: protocol ("kafka", "http", "grpc") to "host:port"."""
    availability_zone: str = "default"
    agent_group: str = "default"
    metadata: Mapping[str, JsonScalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredAgent:
    agent_id: str
    incarnation: UUID | None
    """None for a row that an operator wrote by hand."""
    node_id: int
    """Kafka's int32 broker id: given once per agent id, kept through restarts and deregistration, never reused."""
    listeners: Mapping[str, str]
    """The registered addresses by protocol. An agent of the version before registers one address, as "kafka"."""
    availability_zone: str
    agent_group: str
    last_heartbeat_ms: int
    started_at_ms: int
    metadata: Mapping[str, JsonScalar]


class Agents(ABC):
    @abstractmethod
    async def register_agent(self, info: AgentInfo) -> RegisteredAgent:
        """Upsert. Another incarnation takes the id over and resets ``started_at``; the former one's heartbeats
        and acquisitions are refused from then on, and it cannot register again: an incarnation that has been replaced
        or deregistered (the last eight of an agent id are remembered) raises AgentSuperseded. Raises LimitExceeded,
        InvalidRequest.
        """

    @abstractmethod
    async def heartbeat(self, agent_id: str, incarnation: UUID) -> int:
        """Returns the store's time in ms. Raises AgentNotFound when no agent is registered under this id, and
        AgentSuperseded when another incarnation is."""

    @abstractmethod
    async def deregister_agent(self, agent_id: str, incarnation: UUID) -> bool:
        """Remove the row if it is this incarnation's, and remember that it is over: what it sent before and arrives
        late must not take a lease from its successor (R20). Leases are not touched."""

    @abstractmethod
    async def list_agents(
        self, *, alive_within_ms: int | None = None, agent_group: str | None = None
    ) -> list[RegisteredAgent]:
        """Return the agents, sorted by id; with ``alive_within_ms`` only those whose last heartbeat is that recent by
        the store's clock."""

    @abstractmethod
    async def expire_agents(self, *, silent_ms: int, limit: int) -> list[str]:
        """Drop up to ``limit`` rows of agents whose last heartbeat is longer ago than ``silent_ms`` by the store's
        clock and that hold no live lease; returns their ids. Rows written by hand are treated alike.

        An agent that comes back after all registers again, under the same number and even in the same incarnation: a
        store's clock that was set far forward makes the whole fleet look silent for a moment.
        """
