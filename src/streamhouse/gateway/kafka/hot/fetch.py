"""Fetch 4 to 18, both directions.

    request     replica <15 · max wait · min bytes · max bytes · isolation · session ≥7
                · [topic · [partition · leader epoch ≥9 · offset · last epoch ≥12 · log start ≥5 · max bytes]]
                · [forgotten topic · [partition]] ≥7 · rack ≥11 · tags: cluster id, replica state
    response    throttle time · error, session ≥7 · [topic · [partition · error · high watermark · stable offset
                · log start ≥5 · aborted transactions · preferred replica ≥11 · records
                · tags: diverging epoch, leader]] · tags: endpoints ≥16

A topic is a name, from version 13 on an id; from 12 on the encoding is compact. Batches go into the response as they
are; only small ones are joined with what stands around them, because a piece of its own costs more than copying them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader, tagged_endpoints, tagged_leader
from streamhouse.gateway.kafka.hot.topic_ids import topic_id_of
from streamhouse.gateway.kafka.wire.primitives import Reader, compact_string, put_string, uvarint_bytes
from streamhouse.wire.buffers import BytesLike

_FLEXIBLE: Final = 12
_BY_ID: Final = 13
_WITH_LOG_START: Final = 5
_WITH_SESSIONS: Final = 7
_WITH_LEADER_EPOCH: Final = 9
_WITH_RACK: Final = 11
_REPLICA_IN_TAG: Final = 15
_WITH_ENDPOINTS: Final = 16

_REPLICA_STATE_TAG: Final = 1
_JOIN_BELOW_BYTES: Final = 4096

_INT32: Final = Struct(">i")
_HEAD: Final = Struct(">iiib")
_SESSION: Final = Struct(">ii")
_PARTITION_V4: Final = Struct(">iqi")
_PARTITION_V5: Final = Struct(">iqqi")
_PARTITION_V9: Final = Struct(">iiqqi")
_PARTITION_V12: Final = Struct(">iiqiqi")

_HEAD_V12: Final = Struct(">iiibiiBB")  # up to the topics' count and the first byte of the first of them
_PARTITION_AND_TAGS: Final = Struct(">iiqiqix")
_USUAL_PARTITION_BYTES: Final = _PARTITION_AND_TAGS.size
_LEAST_USUAL_BYTES: Final = _HEAD_V12.size + 4

_RESPONSE_V7: Final = Struct(">ihii")
_RESPONSE_V12: Final = Struct(">ihi")
_ANSWER_V4: Final = Struct(">ihqqii")
_ANSWER_V5: Final = Struct(">ihqqqii")
_ANSWER_V11: Final = Struct(">ihqqqiii")
_ANSWER_V12: Final = Struct(">ihqqqBi")
_DIVERGING: Final = Struct(">BBiqB")

TopicRef = str | UUID
"""A name, or from version 13 on an id."""


class FetchPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicRef, list[FetchPartition]]]
    forgotten: list[tuple[TopicRef, list[int]]]
    rack_id: str


class PartitionAnswer(NamedTuple):
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    batches: Sequence[memoryview] = ()
    size_bytes: int = 0
    leader: CurrentLeader | None = None
    diverging: tuple[int, int] | None = None
    """Epoch and its end offset, where what the client has read last is no part of this log."""


def read_request(version: int, body: memoryview) -> FetchRequest:
    """Raises MalformedRequest."""
    usual = _read_usual(version, body) if version >= _FLEXIBLE else None
    return _read_any(version, body) if usual is None else usual


def _read_usual(version: int, body: memoryview) -> FetchRequest | None:
    """One topic and its partitions, nothing forgotten, no rack, no tags. None for anything else, right or wrong."""
    size = len(body)
    start = 0 if version >= _REPLICA_IN_TAG else 4
    if size < start + _LEAST_USUAL_BYTES or body[-1] or body[-2] != 1 or body[-3] != 1 or body[-4]:
        return None
    wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, topics, length = _HEAD_V12.unpack_from(body, start)
    pos = start + _HEAD_V12.size - 1
    if topics != 2:
        return None
    topic: TopicRef
    if version >= _BY_ID:
        topic = topic_id_of(bytes(body[pos : pos + 16]))
        pos += 16
    else:
        if not 1 < length < 128:
            return None
        try:
            topic = str(body[pos + 1 : pos + length], "utf-8")
        except UnicodeDecodeError:
            return None
        pos += length
    if pos >= size or not 1 < (count := body[pos]) < 128:
        return None
    pos += 1
    if pos + (count - 1) * _USUAL_PARTITION_BYTES + 4 != size:
        return None
    partitions = [FetchPartition._make(each) for each in _PARTITION_AND_TAGS.iter_unpack(body[pos:-4])]
    if any(body[pos + _PARTITION_V12.size : -4 : _USUAL_PARTITION_BYTES]):
        return None
    replica_id = -1 if version >= _REPLICA_IN_TAG else _INT32.unpack_from(body)[0]
    return FetchRequest(
        replica_id, wait_ms, min_bytes, max_bytes, isolation, session_id, epoch, [(topic, partitions)], [], ""
    )


def _read_any(version: int, body: memoryview) -> FetchRequest:
    reader = Reader(body)
    flexible = version >= _FLEXIBLE
    replica_id = reader.int32() if version < _REPLICA_IN_TAG else -1
    max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD.unpack_from(body, reader.take(13))
    session_id, session_epoch = _SESSION.unpack_from(body, reader.take(8)) if version >= _WITH_SESSIONS else (0, -1)
    topics: list[tuple[TopicRef, list[FetchPartition]]] = []
    for _ in range(reader.array_length(flexible, 3 if flexible else 6)):
        topic: TopicRef = reader.uuid() if version >= _BY_ID else reader.string(flexible)
        topics.append((topic, _read_partitions(version, reader)))
    forgotten: list[tuple[TopicRef, list[int]]] = []
    if version >= _WITH_SESSIONS:
        for _ in range(reader.array_length(flexible, 3 if flexible else 6)):
            topic = reader.uuid() if version >= _BY_ID else reader.string(flexible)
            count = reader.array_length(flexible, 4)
            forgotten.append((topic, [reader.int32() for _ in range(count)]))
            if flexible:
                reader.skip_tags()
    rack_id = reader.string(flexible) if version >= _WITH_RACK else ""
    if flexible:
        replica_id = _read_tags(version, reader, replica_id)
    return FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
    )


def _read_partitions(version: int, reader: Reader) -> list[FetchPartition]:
    if version >= _FLEXIBLE:
        return _flexible_partitions(reader)
    shape = _PARTITION_V9 if version >= _WITH_LEADER_EPOCH else _PARTITION_V5
    if version < _WITH_LOG_START:
        shape = _PARTITION_V4
    count = reader.array_length(False, shape.size)
    start = reader.take(max(count, 0) * shape.size)
    found = []
    for fields in shape.iter_unpack(reader.data[start : reader.pos]):
        if version >= _WITH_LEADER_EPOCH:
            index, epoch, offset, log_start, max_bytes = fields
        elif version >= _WITH_LOG_START:
            (index, offset, log_start, max_bytes), epoch = fields, -1
        else:
            (index, offset, max_bytes), epoch, log_start = fields, -1, -1
        found.append(FetchPartition(index, epoch, offset, -1, log_start, max_bytes))
    return found


def _flexible_partitions(reader: Reader) -> list[FetchPartition]:
    shape, size = _PARTITION_V12, _PARTITION_V12.size
    count = reader.array_length(True, size + 1)
    data, end, pos = reader.data, reader.end, reader.pos
    found = []
    for _ in range(count):
        if end - pos <= size:
            raise reader.cut_off(size + 1)
        found.append(FetchPartition._make(shape.unpack_from(data, pos)))
        pos += size
        if not data[pos]:
            pos += 1
        else:
            reader.pos = pos
            reader.skip_tags()
            pos = reader.pos
    reader.pos = pos
    reader.skip_tags()
    return found


def _read_tags(version: int, reader: Reader, replica_id: int) -> int:
    for _ in range(reader.tag_count()):
        tag = reader.uvarint()
        size = reader.uvarint()
        start = reader.take(size)
        if tag == _REPLICA_STATE_TAG and version >= _REPLICA_IN_TAG:
            if size < _INT32.size:
                raise MalformedRequest(f"the replica state at byte {start} has {size} bytes")
            (replica_id,) = _INT32.unpack_from(reader.data, start)
    return replica_id


def topic_bytes(version: int, topic: TopicRef) -> bytes:
    """Return the bytes by which a response names the topic."""
    if isinstance(topic, UUID):
        return topic.bytes
    if version >= _FLEXIBLE:
        return compact_string(topic)
    out = bytearray()
    put_string(out, topic, False)
    return bytes(out)


def write_response(
    version: int,
    *,
    error_code: int,
    session_id: int,
    topics: Sequence[tuple[bytes, Sequence[PartitionAnswer]]],
    aborted_listed: bool,
    leaders: Iterable[CurrentLeader] = (),
) -> list[BytesLike]:
    """``topics``: each one's ``topic_bytes`` and partitions. ``aborted_listed``: read committed wants a list of aborted
    transactions, which is empty, where others get none.
    """
    flexible = version >= _FLEXIBLE
    out: list[BytesLike] = []
    small: list[BytesLike] = [_response_head(version, error_code, session_id, len(topics))]
    for raw, partitions in topics:
        small += (raw, uvarint_bytes(len(partitions) + 1) if flexible else _INT32.pack(len(partitions)))
        for answer in partitions:
            small.append(_answer_head(version, answer, aborted_listed))
            for batch in answer.batches:
                if len(batch) < _JOIN_BELOW_BYTES:
                    small.append(batch)
                else:
                    out += (b"".join(small), batch)
                    small = []
            if flexible:
                small.append(b"\0" if answer.error_code == 0 and answer.diverging is None else _answer_tags(answer))
        if flexible:
            small.append(b"\0")
    if flexible:
        small.append(tagged_endpoints(leaders) if version >= _WITH_ENDPOINTS else b"\0")
    out.append(b"".join(small))
    return out


def _response_head(version: int, error_code: int, session_id: int, topic_count: int) -> bytes:
    if version >= _FLEXIBLE:
        return _RESPONSE_V12.pack(0, error_code, session_id) + uvarint_bytes(topic_count + 1)
    if version >= _WITH_SESSIONS:
        return _RESPONSE_V7.pack(0, error_code, session_id, topic_count)
    return _SESSION.pack(0, topic_count)


def _answer_head(version: int, answer: PartitionAnswer, aborted_listed: bool) -> bytes:
    index, code, watermark, stable, log_start, _, size, _, _ = answer
    if version >= _FLEXIBLE:
        head = _ANSWER_V12.pack(index, code, watermark, stable, log_start, 1 if aborted_listed else 0, -1)
        return head + uvarint_bytes(size + 1)
    aborted = 0 if aborted_listed else -1
    if version >= _WITH_RACK:
        return _ANSWER_V11.pack(index, code, watermark, stable, log_start, aborted, -1, size)
    if version >= _WITH_LOG_START:
        return _ANSWER_V5.pack(index, code, watermark, stable, log_start, aborted, size)
    return _ANSWER_V4.pack(index, code, watermark, stable, aborted, size)


def _answer_tags(answer: PartitionAnswer) -> bytes:
    tags = []
    if answer.diverging is not None:
        epoch, end_offset = answer.diverging
        tags.append(_DIVERGING.pack(0, 13, epoch, end_offset, 0))
    if answer.leader is not None:
        tags.append(tagged_leader(1, answer.leader))
    return b"".join((bytes((len(tags),)), *tags))
