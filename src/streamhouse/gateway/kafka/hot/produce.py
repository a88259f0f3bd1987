"""Produce 3 to 13, both directions.

    request     transactional id · acks · timeout · [topic · [partition · records]]
    response    [topic · [partition · error · base offset · append time · log start ≥5 · errors, message ≥8
                · leader ≥10]] · throttle time · endpoints ≥10

A topic is a name, from version 13 on an id; from 9 on the encoding is compact. A topic is written back with the very
bytes it was named with. Records stay views into the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from streamhouse.core.errors import MalformedRequest, RecordError
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader, tagged_endpoints, tagged_leader
from streamhouse.gateway.kafka.hot.topic_ids import topic_id_of
from streamhouse.gateway.kafka.wire.primitives import Reader, compact_string, put_string, uvarint_bytes

_FLEXIBLE: Final = 9
_BY_ID: Final = 13
_WITH_LOG_START: Final = 5
_WITH_MESSAGES: Final = 8
_WITH_LEADERS: Final = 10

_ACKS_AND_TIMEOUT: Final = Struct(">hi")
_HEAD_V9: Final = Struct(">xhiBB")
_PARTITION_HEAD_V9: Final = Struct(">BiB")
_LEAST_USUAL_BYTES: Final = 20
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
    """The partitions, each as its index and its records."""


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


def read_request(version: int, body: memoryview) -> ProduceRequest:
    """Raises MalformedRequest."""
    usual = _read_usual(version, body) if version >= _FLEXIBLE else None
    return _read_any(version, body) if usual is None else usual


def _read_usual(version: int, body: memoryview) -> ProduceRequest | None:
    """One topic, one partition, no transaction, no tags: what nearly every request is, in a third of the time.

    None for anything else, right or wrong.
    """
    size = len(body)
    if size < _LEAST_USUAL_BYTES or body[0] or body[-1] or body[-2] or body[-3]:
        return None
    acks, timeout_ms, topics, name_bytes = _HEAD_V9.unpack_from(body)
    if version >= _BY_ID:
        pos = 24
    elif 1 < name_bytes < 128:
        pos = 8 + name_bytes
    else:
        return None
    if topics != 2 or pos + 6 > size:
        return None
    partitions, index, length = _PARTITION_HEAD_V9.unpack_from(body, pos)
    pos += 6
    if length >= 128:
        length &= 127
        for shift in (7, 14, 21, 28):
            byte = body[pos]
            pos += 1
            length |= (byte & 127) << shift
            if byte < 128:
                break
            if pos == size:
                return None
    length -= 1
    if partitions != 2 or length < 0 or pos + length + 3 != size:
        return None
    raw = bytes(body[8:24]) if version >= _BY_ID else bytes(body[8 : 8 + name_bytes])
    name: str | None = None
    topic_id: UUID | None = None
    if version >= _BY_ID:
        topic_id = topic_id_of(raw)
    else:
        try:
            name = raw[1:].decode()
        except UnicodeDecodeError:
            return None
    return ProduceRequest(None, acks, timeout_ms, [TopicData(raw, name, topic_id, [(index, body[pos : size - 3])])])


def _read_any(version: int, body: memoryview) -> ProduceRequest:
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


def partition_error(
    version: int,
    index: int,
    code: int,
    message: str | None,
    leader: CurrentLeader | None,
    record_errors: Sequence[RecordError] = (),
) -> bytes:
    """The same for one that failed.

    ``leader``: the agent to ask instead. ``record_errors``: the records that are wrong. Both are left out of versions
    that have no field for them.
    """
    if version < _WITH_LOG_START:
        return _PARTITION_V3.pack(index, code, -1, -1)
    head = _PARTITION_V5.pack(index, code, -1, -1, -1)
    if version < _WITH_MESSAGES:
        return head
    text = None if message is None else message[:_MAX_MESSAGE_CHARS]
    if version < _FLEXIBLE:
        out = bytearray(head)
        out += _INT32.pack(len(record_errors))
        for at, why in record_errors:
            out += _INT32.pack(at)
            put_string(out, why[:_MAX_MESSAGE_CHARS], False)
        put_string(out, text, False)
        return bytes(out)
    tags = b"\x00" if leader is None or version < _WITH_LEADERS else b"\x01" + tagged_leader(0, leader)
    errors = [uvarint_bytes(len(record_errors) + 1)]
    for at, why in record_errors:
        errors += (_INT32.pack(at), compact_string(why[:_MAX_MESSAGE_CHARS]), b"\0")
    return b"".join((head, *errors, compact_string(text), tags))


def write_response(
    version: int, topics: Sequence[tuple[bytes, Sequence[bytes]]], leaders: Sequence[CurrentLeader] = ()
) -> bytes:
    """``topics``: each one's raw name and its partitions' parts. ``leaders``: all that the partitions mention."""
    if version < _FLEXIBLE:
        parts = [_INT32.pack(len(topics))]
        for raw, partitions in topics:
            parts += (raw, _INT32.pack(len(partitions)), *partitions)
        parts.append(_INT32.pack(0))
        return b"".join(parts)
    if len(topics) == 1 and len(topics[0][1]) == 1 and not leaders:
        ((raw, (part,)),) = topics
        return b"".join((b"\2", raw, b"\2", part, b"\0\0\0\0\0\0"))
    parts = [uvarint_bytes(len(topics) + 1)]
    for raw, partitions in topics:
        parts += (raw, uvarint_bytes(len(partitions) + 1), *partitions, b"\0")
    parts.append(b"\0\0\0\0")
    parts.append(tagged_endpoints(leaders) if version >= _WITH_LEADERS and leaders else b"\0")
    return b"".join(parts)
