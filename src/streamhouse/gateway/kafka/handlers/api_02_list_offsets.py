"""ListOffsets 2, versions 1–11.

Behaviour: -1 latest (the stable end for read committed), -2 earliest, -3 the record with the largest time, -4 earliest
on the broker itself, which is the earliest; -5 and -6 are about tiers that do not exist here: -1 without an error.
Anything else below 0, or newer than the request's version, gets UNSUPPORTED_VERSION (35). A time gives the first
*record* at or after it. The answer has the epoch of that record, and comes from a fresh read of the metadata (R16). A
partition that this agent is about to lead, or hands over, is waited for: up to five seconds, or the request's own
time-out (version 10 and later). Where the object that a time needs is missing or damaged, the answer is
CORRUPT_MESSAGE (2).

Deviations: version 0 is not served, as in Kafka 4.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from streamhouse.broker.log_offsets import At, ListedOffset, OffsetQuestion
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Buffers, Call, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.list_offsets import (
    ListOffsetsRequest,
    OffsetAnswer,
    read_request,
    write_response,
)

_SINCE: Final[dict[int, int]] = {
    At.LATEST: 1,
    At.EARLIEST: 1,
    At.MAX_TIMESTAMP: 7,
    At.EARLIEST_LOCAL: 8,
    At.LATEST_TIERED: 9,
    At.EARLIEST_PENDING_UPLOAD: 11,
}
"""The version of the request that may ask for it first."""
_TIMEOUT_FROM: Final = 10


@hot_api(2, (1, 11))
def list_offsets(call: Call, body: memoryview) -> Awaitable[Buffers | None]:
    return _answer_all(call, read_request(call.version, body))


async def _answer_all(call: Call, request: ListOffsetsRequest) -> Buffers:
    asked: list[OffsetQuestion] = []
    topics: list[tuple[bytes, list[OffsetAnswer]]] = []
    places: list[tuple[list[OffsetAnswer], int]] = []
    for topic in request.topics:
        answers: list[OffsetAnswer] = []
        topics.append((topic.raw, answers))
        for index, claimed_epoch, at in topic.partitions:
            answers.append(OffsetAnswer(index, ErrorCode.UNSUPPORTED_VERSION))
            if at >= 0 or call.version >= _SINCE.get(at, call.version + 1):
                places.append((answers, len(answers) - 1))
                asked.append(OffsetQuestion(topic.name, index, at, claimed_epoch))
    found = await call.broker.offsets.list_offsets(
        asked,
        isolation=request.isolation_level,
        timeout_ms=request.timeout_ms if call.version >= _TIMEOUT_FROM else None,
        caller=call.client.caller,
    )
    for (answers, place), question, listed in zip(places, asked, found, strict=True):
        answers[place] = _answer(question.partition, listed)
    return (write_response(call.version, topics),)


def _answer(index: int, listed: ListedOffset | StreamHouseError) -> OffsetAnswer:
    if isinstance(listed, StreamHouseError):
        code = listed.kafka_code
        return OffsetAnswer(index, ErrorCode.KAFKA_STORAGE_ERROR if code == ErrorCode.UNKNOWN_SERVER_ERROR else code)
    return OffsetAnswer(index, 0, listed.timestamp_ms, listed.offset, listed.epoch)
