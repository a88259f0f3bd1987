"""What a broker is to clients: a number, an address, a zone. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from streamhouse.metadata.contract import KAFKA_LISTENER, Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A live agent that clients can connect to."""

    node_id: int
    agent_id: str
    host: str
    port: int
    rack: str
    """Its availability zone."""


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


def node_of(agent: Agent) -> Node | None:
    """None for an agent without a Kafka listener."""
    host, _, port = agent.listeners.get(KAFKA_LISTENER, "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        return None
    return Node(
        node_id=agent.node_id,
        agent_id=agent.agent_id,
        host=host.strip("[]"),
        port=int(port),
        rack=agent.availability_zone,
    )
