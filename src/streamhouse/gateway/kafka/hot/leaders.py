"""How an answer names the partition's real leader and where it is (KIP-951), the same in Produce and Fetch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from streamhouse.gateway.kafka.wire.primitives import compact_string, put_uvarint

_NODE_ID: Final = Struct(">i")
_LEADER: Final = Struct(">BBiiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentLeader:
    leader_epoch: int
    endpoint: NodeEndpoint


def tagged_leader(tag: int, leader: CurrentLeader) -> bytes:
    """One tagged field: its tag, its size, leader id, leader epoch, no tags of its own."""
    return _LEADER.pack(tag, 9, leader.endpoint.node_id, leader.leader_epoch, 0)


def tagged_endpoints(leaders: Iterable[CurrentLeader]) -> bytes:
    """Encode the tagged fields of a response: the endpoints under tag 0, each node once, or none."""
    nodes = {leader.endpoint.node_id: leader.endpoint for leader in leaders}
    if not nodes:
        return b"\0"
    field = bytearray()
    put_uvarint(field, len(nodes) + 1)
    for node in nodes.values():
        field += _NODE_ID.pack(node.node_id)
        field += compact_string(node.host)
        field += _NODE_ID.pack(node.port)
        field += compact_string(node.rack)
        field.append(0)
    out = bytearray(b"\x01\x00")
    put_uvarint(out, len(field))
    return bytes(out + field)
