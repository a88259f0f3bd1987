"""Metadata responses, written by hand: with ten thousand partitions they are the largest answer that is not records.

A topic's block depends on its leaders and its own version alone, so it is kept until one of them changes.

    response    [throttle i32, v3] brokers [cluster id, v2] [controller i32, v1] topics
                [cluster operations i32, v8–10] [error i16, v13] [tags, v9]
    broker      id i32, host, port i32 [rack, v1] [tags]
    topic       error i16, name [id, v10] [internal, v1] partitions [operations i32, v8] [tags]
    partition   error i16, index i32, leader i32 [epoch i32, v7] replicas, in sync [offline, v5] [tags]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.primitives import put_array_length, put_string

FLEXIBLE_FROM: Final = 9
_MAX_CACHE_BYTES: Final = 32 * 1024 * 1024  # a million partitions; above it the blocks are made anew

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_ERROR_AND_INDEX: Final = Struct(">hi")
_NO_LEADER: Final = -1

NO_OPERATIONS: Final = -(2**31)
"""The client did not ask what it may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    node_id: int
    host: str
    port: int
    rack: str | None


WITHOUT_LEADER: Final = (_NO_LEADER, -1)
"""Leader id and epoch of a partition that has no leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    name: str | None
    topic_id: UUID
    error: int = 0
    operations: int = NO_OPERATIONS
    partitions: Sequence[tuple[int, int]] = ()
    """The leader id and the leader epoch of every partition."""


def encode_topic(version: int, topic: TopicRow) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    out = bytearray(_INT16.pack(topic.error))
    put_string(out, topic.name, flexible)
    if version >= 10:
        out += topic.topic_id.bytes
    if version >= 1:
        out.append(0)  # no topic is internal: groups and transactions are no topics here
    put_array_length(out, len(topic.partitions), flexible)
    tails: dict[tuple[int, int], tuple[int, bytes]] = {}
    pack, pieces = _ERROR_AND_INDEX.pack, list[bytes]()
    for index, led in enumerate(topic.partitions):
        found = tails.get(led)
        if found is None:
            found = tails[led] = _partition_tail(version, *led)
        pieces += (pack(found[0], index), found[1])
    out += b"".join(pieces)
    if version >= 8:
        out += _INT32.pack(topic.operations)
    if flexible:
        out.append(0)
    return bytes(out)


def _partition_tail(version: int, leader_id: int, leader_epoch: int) -> tuple[int, bytes]:
    """The error, and everything after the index."""
    flexible = version >= FLEXIBLE_FROM
    nodes = [] if leader_id == _NO_LEADER else [leader_id]
    out = bytearray(_INT32.pack(leader_id))
    if version >= 7:
        out += _INT32.pack(leader_epoch)
    for _ in ("replicas", "in sync"):
        put_array_length(out, len(nodes), flexible)
        for node in nodes:
            out += _INT32.pack(node)
    if version >= 5:
        put_array_length(out, 0, flexible)
    if flexible:
        out.append(0)
    return (0 if nodes else ErrorCode.LEADER_NOT_AVAILABLE), bytes(out)


def encode_response(
    version: int,
    *,
    brokers: Sequence[BrokerRow],
    cluster_id: str,
    controller_id: int,
    topics: Sequence[bytes],
    cluster_operations: int = NO_OPERATIONS,
) -> list[bytes]:
    flexible = version >= FLEXIBLE_FROM
    head = bytearray()
    if version >= 3:
        head += _INT32.pack(0)
    _put_brokers(head, version, brokers)
    if version >= 2:
        put_string(head, cluster_id, flexible)
    if version >= 1:
        head += _INT32.pack(controller_id)
    put_array_length(head, len(topics), flexible)
    tail = bytearray()
    if 8 <= version <= 10:
        tail += _INT32.pack(cluster_operations)
    if version >= 13:
        tail += _INT16.pack(0)
    if flexible:
        tail.append(0)
    return [bytes(head), *topics, bytes(tail)]


def _put_brokers(out: bytearray, version: int, brokers: Iterable[BrokerRow]) -> None:
    flexible = version >= FLEXIBLE_FROM
    rows = list(brokers)
    put_array_length(out, len(rows), flexible)
    for row in rows:
        out += _INT32.pack(row.node_id)
        put_string(out, row.host, flexible)
        out += _INT32.pack(row.port)
        if version >= 1:
            put_string(out, row.rack, flexible)
        if flexible:
            out.append(0)


class TopicBlocks:
    """Encoded topics by (topic id, version, operations), each good for one generation. Bounded by bytes."""

    def __init__(self, max_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._blocks: dict[tuple[UUID, int, int], tuple[object, bytes]] = {}

    def get(self, key: tuple[UUID, int, int], generation: object) -> bytes | None:
        found = self._blocks.get(key)
        return found[1] if found is not None and found[0] == generation else None

    def put(self, key: tuple[UUID, int, int], generation: object, block: bytes) -> None:
        old = self._blocks.pop(key, None)
        self._bytes += len(block) - (len(old[1]) if old is not None else 0)
        if self._bytes > self._max_bytes:
            self._blocks.clear()
            self._bytes = len(block)
        self._blocks[key] = (generation, block)
