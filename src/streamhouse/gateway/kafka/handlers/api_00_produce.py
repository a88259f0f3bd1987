"""Produce 0, versions 3–13 (0–2 are advertised and never served: librdkafka before 2.1 turns codecs off otherwise).

Behaviour: broker/produce.py gives offsets, keeps the order of a connection's writes and waits where waiting helps; here
requests are read and answers written. Offsets are assigned before the handler returns, unless the request has to wait.
Each partition has its own error. acks=0 has no answer; an error then closes the connection. After ``timeout_ms`` the
answer is 7, while an append goes on.

Deviations: records are not decoded, so times are checked by a batch's header and keys of compacted topics not at all.
Transactions come later: a transactional id, or a transactional batch, is 53.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from streamhouse.broker.writes import partition_key
from streamhouse.core.errors import TopicNotFound
from streamhouse.core.ids import TopicId
from streamhouse.gateway.kafka.api import Buffers, Call, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.produce import ProduceRequest, TopicData, read_request
from streamhouse.gateway.kafka.produce_answer import ProduceAnswer

_ACKS: Final = (-1, 1, 0)
_ZSTD_FROM_VERSION: Final = 7
_ATTRIBUTES_AT: Final = 22
_CODEC_MASK: Final = 7
_ZSTD: Final = 4


@hot_api(0, (3, 13), advertise_from=0, pipelined=True)
def produce(call: Call, body: memoryview) -> Buffers | Awaitable[Buffers | None] | None:
    request = read_request(call.version, body)
    answer = ProduceAnswer(call, request.acks)
    if request.acks not in _ACKS:
        _refuse_all(answer, request, ErrorCode.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or -1, not {request.acks}")
    elif request.transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        _refuse_all(answer, request, code, "transactions are not supported yet")
    else:
        for topic in request.topics:
            _collect(call, answer, topic)
    return answer.produce(request.timeout_ms)


def _collect(call: Call, answer: ProduceAnswer, data: TopicData) -> None:
    view = call.broker.view
    if data.topic_id is None:
        topic = None if data.name is None else view.topic(data.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = view.topic_by_id(TopicId(data.topic_id))
        code = ErrorCode.UNKNOWN_TOPIC_ID
    answer.topic(data.raw)
    order = call.client.order
    for index, records in data.partitions:
        place = (data.raw, index)
        if topic is None or (order.has_refusals and records and order.before(place, records) is not None):
            # The topic may be known before the next request: what follows must not be taken first (R21).
            unknown = TopicNotFound(f"there is no topic {data.name or data.topic_id}")
            if records:
                order.refused(place, records, unknown)
            answer.refuse(index, code, unknown.message)
            continue
        if order.has_refusals and records:
            order.took(place, records)
        if call.version < _ZSTD_FROM_VERSION and _is_zstd(records):
            zstd = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            answer.refuse(index, zstd, f"zstd needs Produce {_ZSTD_FROM_VERSION}, this is {call.version}")
        else:
            answer.add(partition_key(topic.topic_id, index), b"" if records is None else records)


def _refuse_all(answer: ProduceAnswer, request: ProduceRequest, code: int, message: str) -> None:
    for topic in request.topics:
        answer.topic(topic.raw)
        for index, _ in topic.partitions:
            answer.refuse(index, code, message)


def _is_zstd(records: memoryview | None) -> bool:
    return records is not None and len(records) > _ATTRIBUTES_AT and records[_ATTRIBUTES_AT] & _CODEC_MASK == _ZSTD
