"""Produce 3 to 13, both directions.

    request     transactional id · acks · timeout · [topic · [partition · records]]
    response    [topic · [partition · error · base offset · append time · log start ≥5 · errors, message ≥8
                · leader ≥10]] · throttle time · endpoints ≥10

A topic is a name, from version 13 on an id; from 9 on the encoding is compact. A topic is written back with the very
bytes it was named with. Records stay views into the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader, tagged_endpoints, tagged_leader
from streamhouse.gateway.kafka.wire.primitives import Reader, compact_string, put_string, uvarint_bytes

_FLEXIBLE: Final = 9
_BY_ID: Final = 13
_WITH_LOG_START: Final = 5
_WITH_MESSAGES: Final = 8
_WITH_LEADERS: Final = 10

_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_INT32: Final = Struct(">i")
_TWO_INT32: Final = Struct(">ii")
_PARTITION_V3: Final = Struct(">ihqq")
_PARTITION_V5: Final = Struct(">ihqqq")
_PARTITION_V8: Final = Struct(">ihqqqih")
_PARTITION_V9: Final = Struct(">ihqqqBBB")

_MAX_MESSAGE_CHARS: Final = 1000


class TopicData(NamedTuple):
    raw: bytes
    """Name or id as it came, with its length: how the response names it."""
    name: str | None
    topic_id: UUID | None
    partitions: list[tuple[int, memoryview | None]]
    """Index and records."""


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


def read_request(version: int, body: memoryview) -> ProduceRequest:
    """Raises MalformedRequest."""
    reader = Reader(body)
    flexible = version >= _FLEXIBLE
    transactional_id = reader.nullable_string(flexible)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, reader.take(6))
    topics: list[TopicData] = []
    for _ in range(reader.array_length(flexible, 3 if flexible else 6)):
        start = reader.pos
        name: str | None = None
        topic_id: UUID | None = None
        if version >= _BY_ID:
            topic_id = reader.uuid()
        else:
            name = reader.string(flexible)
        raw = bytes(body[start : reader.pos])
        partitions = _flexible_partitions(reader) if flexible else _plain_partitions(reader)
        topics.append(TopicData(raw, name, topic_id, partitions))
    if flexible:
        reader.skip_tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _flexible_partitions(reader: Reader) -> list[tuple[int, memoryview | None]]:
    """Index, records and tags without a call for each: this is where a batch is found."""
    count = reader.array_length(True, 6)
    data, end, pos = reader.data, reader.end, reader.pos
    partitions: list[tuple[int, memoryview | None]] = []
    for _ in range(count):
        if end - pos < 5:
            raise reader.cut_off(5)
        (index,) = _INT32.unpack_from(data, pos)
        reader.pos = pos + 4
        length = reader.uvarint() - 1
        pos = reader.pos
        if length > end - pos:
            raise reader.cut_off(length)
        if length >= 0:
            partitions.append((index, data[pos : pos + length]))
            pos += length
        else:
            partitions.append((index, None))
        if pos < end and not data[pos]:
            pos += 1
        else:
            reader.pos = pos
            reader.skip_tags()
            pos = reader.pos
    reader.pos = pos
    reader.skip_tags()
    return partitions


def _plain_partitions(reader: Reader) -> list[tuple[int, memoryview | None]]:
    count = reader.array_length(False, 8)
    data, end, pos = reader.data, reader.end, reader.pos
    partitions: list[tuple[int, memoryview | None]] = []
    for _ in range(count):
        if end - pos < 8:
            raise reader.cut_off(8)
        index, length = _TWO_INT32.unpack_from(data, pos)
        pos += 8
        if length > end - pos:
            raise reader.cut_off(length)
        if length < -1:
            raise MalformedRequest(f"records of {length} bytes are announced before byte {pos}")
        if length >= 0:
            partitions.append((index, data[pos : pos + length]))
            pos += length
        else:
            partitions.append((index, None))
    reader.pos = pos
    return partitions


def partition_ok(version: int, index: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> bytes:
    """One partition's part of the response."""
    if version >= _FLEXIBLE:
        return _PARTITION_V9.pack(index, 0, base_offset, log_append_time_ms, log_start_offset, 1, 0, 0)
    if version >= _WITH_MESSAGES:
        return _PARTITION_V8.pack(index, 0, base_offset, log_append_time_ms, log_start_offset, 0, -1)
    if version >= _WITH_LOG_START:
        return _PARTITION_V5.pack(index, 0, base_offset, log_append_time_ms, log_start_offset)
    return _PARTITION_V3.pack(index, 0, base_offset, log_append_time_ms)


def partition_error(version: int, index: int, code: int, message: str | None, leader: CurrentLeader | None) -> bytes:
    """The same for one that failed. ``leader``: who to ask instead; left out where the version cannot say it."""
    if version < _WITH_LOG_START:
        return _PARTITION_V3.pack(index, code, -1, -1)
    head = _PARTITION_V5.pack(index, code, -1, -1, -1)
    if version < _WITH_MESSAGES:
        return head
    text = None if message is None else message[:_MAX_MESSAGE_CHARS]
    if version < _FLEXIBLE:
        out = bytearray(head)
        out += _INT32.pack(0)
        put_string(out, text, False)
        return bytes(out)
    tags = b"\x00" if leader is None or version < _WITH_LEADERS else b"\x01" + tagged_leader(0, leader)
    return b"".join((head, b"\x01", compact_string(text), tags))


def write_response(
    version: int, topics: Sequence[tuple[bytes, Sequence[bytes]]], leaders: Iterable[CurrentLeader] = ()
) -> bytes:
    """``topics``: each one's raw name and its partitions' parts. ``leaders``: all that the partitions mention."""
    if version < _FLEXIBLE:
        parts = [_INT32.pack(len(topics))]
        for raw, partitions in topics:
            parts += (raw, _INT32.pack(len(partitions)), *partitions)
        parts.append(_INT32.pack(0))
        return b"".join(parts)
    parts = [uvarint_bytes(len(topics) + 1)]
    for raw, partitions in topics:
        parts += (raw, uvarint_bytes(len(partitions) + 1), *partitions, b"\0")
    parts.append(b"\0\0\0\0")
    parts.append(tagged_endpoints(leaders) if version >= _WITH_LEADERS and leaders else b"\0")
    return b"".join(parts)
