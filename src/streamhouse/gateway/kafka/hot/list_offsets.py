"""ListOffsets 1 to 11, both directions.

request     replica · isolation ≥2 · [topic · [partition · leader epoch ≥4 · timestamp]] · timeout ≥10
response    throttle time ≥2 · [topic · [partition · error · timestamp · offset · leader epoch ≥4]]
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from streamhouse.gateway.kafka.wire.primitives import Reader, uvarint_bytes

_FLEXIBLE: Final = 6
_WITH_ISOLATION: Final = 2
_WITH_LEADER_EPOCH: Final = 4
_WITH_TIMEOUT: Final = 10

_INT32: Final = Struct(">i")
_TWO_INT32: Final = Struct(">ii")
_PARTITION_V1: Final = Struct(">iq")
_PARTITION_V4: Final = Struct(">iiq")
_ANSWER_V1: Final = Struct(">ihqq")
_ANSWER_V4: Final = Struct(">ihqqi")
_ANSWER_V6: Final = Struct(">ihqqiB")


class PartitionQuestion(NamedTuple):
    partition: int
    current_leader_epoch: int
    timestamp: int


class TopicQuestion(NamedTuple):
    raw: bytes
    """The name as it came, with its length: how the response names it."""
    name: str
    partitions: list[PartitionQuestion]


class ListOffsetsRequest(NamedTuple):
    replica_id: int
    isolation_level: int
    topics: list[TopicQuestion]
    timeout_ms: int


class OffsetAnswer(NamedTuple):
    partition: int
    error_code: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


def read_request(version: int, body: memoryview) -> ListOffsetsRequest:
    """Raises MalformedRequest."""
    reader = Reader(body)
    flexible = version >= _FLEXIBLE
    replica_id = reader.int32()
    isolation_level = reader.int8() if version >= _WITH_ISOLATION else 0
    topics = []
    for _ in range(reader.array_length(flexible, 3 if flexible else 6)):
        start = reader.pos
        name = reader.string(flexible)
        raw = bytes(body[start : reader.pos])
        topics.append(TopicQuestion(raw, name, _read_partitions(version, reader)))
    timeout_ms = reader.int32() if version >= _WITH_TIMEOUT else 0
    if flexible:
        reader.skip_tags()
    return ListOffsetsRequest(replica_id, isolation_level, topics, timeout_ms)


def _read_partitions(version: int, reader: Reader) -> list[PartitionQuestion]:
    flexible = version >= _FLEXIBLE
    shape = _PARTITION_V4 if version >= _WITH_LEADER_EPOCH else _PARTITION_V1
    found = []
    for _ in range(reader.array_length(flexible, shape.size + flexible)):
        fields = shape.unpack_from(reader.data, reader.take(shape.size))
        if version >= _WITH_LEADER_EPOCH:
            found.append(PartitionQuestion._make(fields))
        else:
            found.append(PartitionQuestion(fields[0], -1, fields[1]))
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return found


def write_response(version: int, topics: Sequence[tuple[bytes, Sequence[OffsetAnswer]]]) -> bytes:
    if version >= _FLEXIBLE:
        return _write_flexible(topics)
    parts = [_TWO_INT32.pack(0, len(topics)) if version >= _WITH_ISOLATION else _INT32.pack(len(topics))]
    for raw, answers in topics:
        parts += (raw, _INT32.pack(len(answers)))
        if version >= _WITH_LEADER_EPOCH:
            parts += (_ANSWER_V4.pack(*answer) for answer in answers)
        else:
            parts += (_ANSWER_V1.pack(*answer[:4]) for answer in answers)
    return b"".join(parts)


def _write_flexible(topics: Sequence[tuple[bytes, Sequence[OffsetAnswer]]]) -> bytes:
    parts = [_INT32.pack(0), uvarint_bytes(len(topics) + 1)]
    for raw, answers in topics:
        parts += (raw, uvarint_bytes(len(answers) + 1), *(_ANSWER_V6.pack(*answer, 0) for answer in answers), b"\0")
    parts.append(b"\0")
    return b"".join(parts)
