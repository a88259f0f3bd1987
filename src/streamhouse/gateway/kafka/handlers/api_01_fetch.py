"""Fetch 1, versions 4–18.

Behaviour: sessions as in fetch_sessions.py. The batch that holds the offset, or the next after it; the first batch of
an answer whole even above the maximum. With less than min bytes to give it waits up to max wait, unless a partition has
an error. Leased partitions are served by their leader only: other agents answer NOT_LEADER_OR_FOLLOWER (6), with the
leader's address from version 16 on. An epoch older than the leader's gets FENCED_LEADER_EPOCH (74), a newer one
UNKNOWN_LEADER_EPOCH (75). OFFSET_OUT_OF_RANGE (1) is answered only after a fresh read of the metadata (R16). An unknown
topic id gets UNKNOWN_TOPIC_ID (100). An agent that is about to lead a partition is waited for; one that hands it over
serves what is committed until another leads. Where an object of the log is missing or damaged, the answer is
CORRUPT_MESSAGE (2): no client skips records because of it, and most report it to their users. It does not end the wait
at once, but after half a second: some clients ask again without a pause.

Deviations: no follower fetching: the preferred replica is always -1, a replica id is ignored and nothing beyond the
high watermark is served. INCONSISTENT_TOPIC_ID (103) does not occur: a topic is looked up by its id, never by both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Final

from streamhouse.broker.fetch import Answer, Diverging, Refused
from streamhouse.broker.reads import IsolationLevel
from streamhouse.core.errors import NotLeader, StaleEpoch
from streamhouse.gateway.kafka.api import Buffers, Call, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.fetch_sessions import NO_SESSION, FetchContext
from streamhouse.gateway.kafka.handlers.refusals import current_leader
from streamhouse.gateway.kafka.hot.fetch import (
    FetchRequest,
    PartitionAnswer,
    TopicRef,
    read_request,
    topic_bytes,
    write_response,
)

_UNDERSTOOD: Final = frozenset(
    {
        # A Java consumer takes every other code for a bug and ends.
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

_cached_topic_bytes = lru_cache(maxsize=4096)(topic_bytes)


@hot_api(1, (4, 18))
def fetch(call: Call, body: memoryview) -> Buffers | Awaitable[Buffers | None] | None:
    request = read_request(call.version, body)
    context = call.memory.fetch_sessions.begin(call.version, request)
    if context.error_code:
        return write_response(
            call.version, error_code=context.error_code, session_id=NO_SESSION, topics=(), aborted_listed=False
        )
    found = call.broker.fetch.begin(
        context.wanted,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        caller=call.client.caller,
    )
    if isinstance(found, Sequence):
        return _respond(call, request, context, found)
    return _respond_later(call, request, context, found)


async def _respond_later(
    call: Call, request: FetchRequest, context: FetchContext, found: Awaitable[Sequence[Answer]]
) -> Buffers:
    """Ends with the client's connection, by cancellation."""
    return _respond(call, request, context, await found)


def _respond(call: Call, request: FetchRequest, context: FetchContext, found: Sequence[Answer]) -> Buffers:
    answers = [
        _answer(call, wanted.partition, answer) for (_, wanted), answer in zip(context.wanted, found, strict=True)
    ]
    session_id, told = context.tell(answers)
    topics: list[tuple[bytes, list[PartitionAnswer]]] = []
    last: TopicRef | None = None
    leaders = []
    for place in told:
        ref, answer = context.wanted[place][0], answers[place]
        if ref is not last and ref != last:
            topics.append((_cached_topic_bytes(call.version, ref), []))
        last = ref
        topics[-1][1].append(answer)
        if answer.leader is not None:
            leaders.append(answer.leader)
    return write_response(
        call.version,
        error_code=0,
        session_id=session_id,
        topics=topics,
        aborted_listed=request.isolation_level == IsolationLevel.READ_COMMITTED,
        leaders=leaders,
    )


def _answer(call: Call, partition: int, found: Answer) -> PartitionAnswer:
    if isinstance(found, Refused):
        return _error(call, partition, found)
    if isinstance(found, Diverging):
        return PartitionAnswer(partition, 0, -1, -1, -1, diverging=(found.epoch, found.end_offset))
    return PartitionAnswer(
        partition,
        0,
        found.high_watermark,
        found.last_stable_offset,
        found.log_start_offset,
        found.batches,
        found.size_bytes,
    )


def _error(call: Call, partition: int, refused: Refused) -> PartitionAnswer:
    error, key = refused
    code = error.kafka_code if error.kafka_code in _UNDERSTOOD else ErrorCode.KAFKA_STORAGE_ERROR
    leader = None
    if key is not None and isinstance(error, NotLeader | StaleEpoch):
        leader = current_leader(call, key, may_be_here=isinstance(error, StaleEpoch))
    return PartitionAnswer(partition, code, -1, -1, -1, leader=leader)
