"""ListOffsets 2, versions 1–11.

Behaviour: -1 latest (the stable end for read committed), -2 earliest, -3 the record with the largest time, -4 earliest
on the broker itself, which is the earliest; -5 and -6 are about tiers that do not exist here: -1 without an error.
Anything else below 0, or newer than the request's version, is 35. By time: the first *record* at or after it. The
answer has the epoch of that record, and comes from a fresh look at the log (R16). A partition that this agent is about
to lead, or hands over, is waited for: up to five seconds, or the request's own time-out (version 10 and later).

Deviations: version 0 is not served, as in Kafka 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from streamhouse.broker.leading import LeaderWait
from streamhouse.broker.reads import IsolationLevel
from streamhouse.broker.writes import partition_key
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Buffers, Call, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.list_offsets import (
    ListOffsetsRequest,
    OffsetAnswer,
    PartitionQuestion,
    TopicQuestion,
    read_request,
    write_response,
)

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_TIMEOUT_FROM: Final = 10
_AT_A_TIME: Final = 50  # partitions looked up side by side: more would only queue at the metadata


@hot_api(2, (1, 11))
def list_offsets(call: Call, body: memoryview) -> Awaitable[Buffers | None]:
    return _answer_all(call, read_request(call.version, body))


async def _answer_all(call: Call, request: ListOffsetsRequest) -> Buffers:
    gate = asyncio.Semaphore(_AT_A_TIME)
    timeout_ms = request.timeout_ms if call.version >= _TIMEOUT_FROM else None
    wait = LeaderWait(call.broker.writes, timeout_ms=timeout_ms)

    async def one(topic: TopicQuestion, question: PartitionQuestion) -> OffsetAnswer:
        async with gate:
            return await _answer(call, wait, request.isolation_level, topic.name, question)

    topics = []
    for topic in request.topics:
        answers = await asyncio.gather(*(one(topic, question) for question in topic.partitions))
        topics.append((topic.raw, answers))
    return (write_response(call.version, topics),)


async def _answer(
    call: Call, wait: LeaderWait, isolation_level: int, name: str, question: PartitionQuestion
) -> OffsetAnswer:
    index, claimed_epoch, timestamp = question
    if timestamp < 0 and call.version < _SINCE.get(timestamp, call.version + 1):
        return OffsetAnswer(index, ErrorCode.UNSUPPORTED_VERSION)
    try:
        topic = await call.broker.view.find_topic(name)
        if topic is None:
            return OffsetAnswer(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        key = partition_key(topic.topic_id, index)

        async def look_up() -> OffsetAnswer:
            epoch = call.broker.reads.leader_epoch(key, claimed_epoch)
            return await _look_up(call, isolation_level, key, epoch, timestamp)

        return await wait.ask(key, look_up)
    except StreamHouseError as error:
        code = error.kafka_code
        return OffsetAnswer(index, ErrorCode.KAFKA_STORAGE_ERROR if code == ErrorCode.UNKNOWN_SERVER_ERROR else code)


async def _look_up(call: Call, isolation_level: int, key: PartitionKey, epoch: int, timestamp: int) -> OffsetAnswer:
    reads = call.broker.reads
    if timestamp == _LATEST:
        ends = await reads.ends(key)
        committed = isolation_level == IsolationLevel.READ_COMMITTED
        end = ends.last_stable_offset if committed else ends.high_watermark
        return OffsetAnswer(key.partition, 0, -1, end, epoch)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        start = (await reads.ends(key)).log_start_offset
        return OffsetAnswer(key.partition, 0, -1, start, await reads.epoch_of(key, start))
    if timestamp in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return OffsetAnswer(key.partition, 0)
    found = await (reads.newest(key) if timestamp == _MAX_TIMESTAMP else reads.first_at(key, timestamp))
    if found is None:
        return OffsetAnswer(key.partition, 0)
    return OffsetAnswer(key.partition, 0, found.timestamp_ms, found.offset, await reads.epoch_of(key, found.offset))
