"""Produce 0, versions 3–13 (0–2 are advertised and never served: librdkafka before 2.1 turns codecs off otherwise).

Behaviour: offsets are assigned before the handler returns, so that requests of a connection keep their order while
their answers are still waiting for the disk. Each partition has its own error. acks=0 has no answer; an error then
closes the connection. After ``timeout_ms`` the answer is 7, while the append goes on. A request that meets a partition
which this agent is about to lead waits for it, and so do the later ones of its connection. One that meets a partition
which is being handed over waits until it can be told to whom: some clients try only three times within 0.3 s. One that
finds no room, because the object store takes less than is written, waits for that, and is refused after five seconds.

Deviations: records are not decoded, so times are checked by a batch's header and keys of compacted topics not at all.
Transactions come later: a transactional id, or a transactional batch, is 53.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from streamhouse.broker.writes import partition_key
from streamhouse.core.errors import BackPressureRejected, NotLeader, StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.gateway.kafka.api import Buffers, Call, CloseConnection, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.produce import ProduceRequest, TopicData, read_request
from streamhouse.gateway.kafka.produce_answer import ProduceAnswer

_OPENING_WAIT_S: Final = 5.0
"""The longest a request waits for a partition to open: clients give a request up after 30 s, and may go elsewhere."""

_ACKS: Final = (-1, 1, 0)
_ZSTD_FROM_VERSION: Final = 7
_ATTRIBUTES_AT: Final = 22
_CODEC_MASK: Final = 7
_ZSTD: Final = 4

_Opening = list[tuple[int, PartitionKey, bytes]]
"""What waits for its partition: its place in the answer, the partition, a copy of the records."""

_holding: dict[int, asyncio.Future[None]] = {}
"""By connection (the identity of its Client): done when the requests behind may have their offsets."""


@hot_api(0, (3, 13), advertise_from=0, pipelined=True)
def produce(call: Call, body: memoryview) -> Buffers | Awaitable[Buffers | None] | None:
    request = read_request(call.version, body)
    if _holding and (before := _holding.get(id(call.client))) is not None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        _hold(call, gate)
        return asyncio.create_task(_behind(before, gate, call, _copied(request)), name="produce-behind")
    result, opening = _begin(call, request)
    if opening is not None:
        _hold(call, opening)
    return result


def _begin(
    call: Call, request: ProduceRequest, wait_s: float | None = None
) -> tuple[Buffers | asyncio.Future[Buffers | None] | None, asyncio.Task[None] | None]:
    """The answer, and what the requests behind must wait for. Nothing is awaited on the way to the offsets."""
    answer = ProduceAnswer(call, request.acks)
    opening: _Opening = []
    if request.acks not in _ACKS:
        _refuse(answer, request, ErrorCode.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or -1, not {request.acks}")
    elif request.transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        _refuse(answer, request, code, "transactions are not supported yet")
    else:
        for topic in request.topics:
            answer.topic(topic.raw)
            _append_all(call, answer, topic, opening)
    if request.acks == 0 and answer.problem is not None:
        raise CloseConnection(f"a produce with acks=0 failed: {answer.problem}")
    result = answer.begin(request.timeout_ms)
    if not opening:
        return result, None
    assert isinstance(result, asyncio.Future)
    wait_s = min(_OPENING_WAIT_S if wait_s is None else wait_s, max(request.timeout_ms, 0) / 1000)
    return result, asyncio.create_task(_when_open(call, answer, opening, wait_s, result), name="produce-opening")


def _append_all(call: Call, answer: ProduceAnswer, data: TopicData, opening: _Opening) -> None:
    view = call.broker.view
    if data.topic_id is None:
        topic = None if data.name is None else view.topic(data.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = view.topic_by_id(TopicId(data.topic_id))
        code = ErrorCode.UNKNOWN_TOPIC_ID
    for index, records in data.partitions:
        if topic is None:
            answer.refuse(index, code, f"there is no topic {data.name or data.topic_id}")
        elif call.version < _ZSTD_FROM_VERSION and _is_zstd(records):
            code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            answer.refuse(index, code, f"zstd needs Produce {_ZSTD_FROM_VERSION}, this is {call.version}")
        else:
            key = partition_key(topic.topic_id, index)
            try:
                answer.append(key, b"" if records is None else records)
            except (NotLeader, BackPressureRejected) as error:
                if call.broker.writes.may_soon_take(key, error, len(records or b"")):
                    opening.append((answer.wait_for_opening(key), key, bytes(records or b"")))
                else:
                    answer.fail(key, error)
            except StreamHouseError as error:
                answer.fail(key, error)


def _refuse(answer: ProduceAnswer, request: ProduceRequest, code: int, message: str) -> None:
    for topic in request.topics:
        answer.topic(topic.raw)
        for index, _ in topic.partitions:
            answer.refuse(index, code, message)


def _is_zstd(records: memoryview | None) -> bool:
    return records is not None and len(records) > _ATTRIBUTES_AT and records[_ATTRIBUTES_AT] & _CODEC_MASK == _ZSTD


# Waiting for a partition to open, and behind such a request.


async def _when_open(
    call: Call,
    answer: ProduceAnswer,
    opening: Sequence[tuple[int, PartitionKey, bytes]],
    wait_s: float,
    result: asyncio.Future[Buffers | None],
) -> None:
    writes, loop = call.broker.writes, asyncio.get_running_loop()
    give_up_s = loop.time() + wait_s
    await writes.wait_settled([key for _, key, _ in opening], wait_s)
    for place, key, records in opening:
        await writes.wait_writable(key, len(records), max(give_up_s - loop.time(), 0))
        if result.done():
            return  # the client is gone or was told to try again; a write that nobody knows of would be a surprise
        answer.opened(place, records)


async def _behind(
    before: asyncio.Future[None], gate: asyncio.Future[None], call: Call, request: ProduceRequest
) -> Buffers | None:
    """A request that came while an earlier one of its connection waits for a partition to open. Its time runs, too:
    five that each waited anew would outlast their client's patience."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + _OPENING_WAIT_S
    try:
        await asyncio.wait([before])
        result, opening = _begin(call, request, max(give_up_s - loop.time(), 0))
        if opening is not None:
            await asyncio.wait([opening])
    finally:
        gate.set_result(None)
    return await result if isinstance(result, asyncio.Future) else result


def _hold(call: Call, until: asyncio.Future[None]) -> None:
    client = call.client
    _holding[id(client)] = until

    def release(ended: asyncio.Future[None]) -> None:
        if _holding.get(id(client)) is ended:  # to hold on to the client keeps its identity its own
            del _holding[id(client)]

    until.add_done_callback(release)


def _copied(request: ProduceRequest) -> ProduceRequest:
    """The buffer it came in is used again."""
    topics = [
        topic._replace(
            partitions=[
                (index, None if records is None else memoryview(bytes(records))) for index, records in topic.partitions
            ]
        )
        for topic in request.topics
    ]
    return request._replace(topics=topics)
