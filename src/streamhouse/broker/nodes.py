"""An agent as clients see it: a broker with a number, an address and a zone. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from streamhouse.metadata.contract import KAFKA_LISTENER, RegisteredAgent


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A live agent."""

    node_id: int
    agent_id: str
    host: str
    port: int
    """0 if clients cannot connect to it: it leads partitions for the process that it runs in."""
    rack: str
    """Its availability zone."""

    @property
    def listens(self) -> bool:
        return self.port > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    node: Node
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    host: str
    port: int


def cluster_id_text(raw: bytes) -> str:
    """Kafka's spelling of a cluster id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def node_of(agent: RegisteredAgent) -> Node:
    """The node of an agent. Its port is 0 if the agent has no Kafka listener."""
    host, _, port = agent.listeners.get(KAFKA_LISTENER, "").rpartition(":")
    listens = bool(host) and port.isdecimal() and 0 < int(port) < 65_536
    return Node(
        node_id=agent.node_id,
        agent_id=agent.agent_id,
        host=host.strip("[]") if listens else "",
        port=int(port) if listens else 0,
        rack=agent.availability_zone,
    )
