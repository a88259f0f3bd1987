"""Fetch 1, versions 4–18.

Behaviour: sessions as in fetch_sessions.py. The batch that holds the offset, or the next after it; the first batch of
an answer whole even above the maximum. With less than min bytes to give it waits up to max wait, unless a partition has
an error. Leased partitions are served by their leader only: 6, with the leader's address from version 16 on; 74 and 75
for an epoch older or newer than the leader's. 1 only after a fresh look (R16). 100 for an unknown topic id. An agent
that is about to lead a partition is waited for; one that hands it over serves what is committed until another leads.
2 where an object of the log is missing or damaged: no client skips records because of it, and most report it to their
users. It does not end the wait at once, but after half a second: some clients ask again without a pause.

Deviations: no follower fetching: the preferred replica is always -1, a replica id is ignored and nothing beyond the
high watermark is served to anybody. 103 does not occur: a topic is looked up by its id, never by both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import lru_cache
from typing import Final
from weakref import WeakKeyDictionary

from streamhouse.broker.broker import Broker
from streamhouse.broker.reads import ReadRequest, ReadResult, Reads
from streamhouse.broker.writes import partition_key
from streamhouse.core.errors import NotLeader, StaleEpoch, StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.gateway.kafka.api import Buffers, Call, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.fetch_sessions import NO_SESSION, FetchContext, FetchSessions
from streamhouse.gateway.kafka.hot.fetch import (
    FetchPartition,
    FetchRequest,
    PartitionAnswer,
    TopicRef,
    read_request,
    topic_bytes,
    write_response,
)
from streamhouse.gateway.kafka.redirect import current_leader

_READ_COMMITTED: Final = 1
_OPENING_WAIT_S: Final = 1.0

_UNDERSTOOD: Final = frozenset(
    {
        # Whatever else a Java consumer is told, it takes for a bug and dies of.
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
_sessions: WeakKeyDictionary[Reads, FetchSessions] = WeakKeyDictionary()


class _Plan:
    """What one fetch reads, and what is known of its answers before."""

    __slots__ = ("answers", "diverging", "keys", "opening", "places", "requests")

    def __init__(self, count: int) -> None:
        self.answers: list[PartitionAnswer | None] = [None] * count
        self.keys: list[PartitionKey | None] = [None] * count
        self.requests: list[ReadRequest] = []
        self.places: list[int] = []
        """Of each of ``requests``, among the answers."""
        self.diverging: list[int] = []
        """Places whose last fetched epoch must be compared with the log first."""
        self.opening: list[PartitionKey] = []
        """What this agent is about to lead."""


@hot_api(1, (4, 18))
def fetch(call: Call, body: memoryview) -> Buffers | Awaitable[Buffers | None] | None:
    request = read_request(call.version, body)
    context = _sessions_of(call.broker).begin(call.version, request)
    if context.error_code:
        return write_response(
            call.version, error_code=context.error_code, session_id=NO_SESSION, topics=(), aborted_listed=False
        )
    plan = _plan(call, context)
    if plan.opening and request.max_wait_ms > 0:
        return _read_when_open(call, request, context, plan.opening)
    if plan.diverging:
        return _read_later(call, request, context, plan)
    results: Sequence[ReadResult] | None = ()
    if plan.requests:
        results = call.broker.reads.read_now(
            plan.requests, max_bytes=max(request.max_bytes, 0), min_bytes=_min_bytes(request, plan)
        )
    if results is None:
        return _read_later(call, request, context, plan)
    for place, result in zip(plan.places, results, strict=True):
        plan.answers[place] = _answer(context.wanted[place][1], result)
    return _respond(call, request, context, plan)


def _plan(call: Call, context: FetchContext) -> _Plan:
    view, reads = call.broker.view, call.broker.reads
    plan = _Plan(len(context.wanted))
    last: TopicRef | None = None
    topic = None
    for place, (ref, wanted) in enumerate(context.wanted):
        if ref is not last:
            topic = view.topic(ref) if isinstance(ref, str) else view.topic_by_id(TopicId(ref))
            last = ref
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(ref, str) else ErrorCode.UNKNOWN_TOPIC_ID
            plan.answers[place] = PartitionAnswer(wanted.partition, code, -1, -1, -1)
            continue
        key = plan.keys[place] = partition_key(topic.topic_id, wanted.partition)
        try:
            reads.leader_epoch(key, wanted.current_leader_epoch, or_leaving=True)
        except StreamHouseError as error:
            plan.answers[place] = _error(call, wanted, key, error)
            if isinstance(error, NotLeader) and call.broker.writes.is_changing(key):
                plan.opening.append(key)
            continue
        if wanted.last_fetched_epoch >= 0:
            plan.diverging.append(place)
        plan.places.append(place)
        plan.requests.append(ReadRequest(key=key, offset=wanted.fetch_offset, max_bytes=max(wanted.max_bytes, 0)))
    return plan


async def _read_when_open(
    call: Call, request: FetchRequest, context: FetchContext, opening: Sequence[PartitionKey]
) -> Buffers:
    """After an error a client rests longer than a partition takes to open."""
    await call.broker.writes.wait_settled(opening, min(request.max_wait_ms / 1000, _OPENING_WAIT_S))
    return await _read_later(call, request, context, _plan(call, context))


def _min_bytes(request: FetchRequest, plan: _Plan) -> int:
    """An error, or nobody to wait for, is answered at once."""
    if request.max_wait_ms <= 0 or len(plan.requests) < len(plan.answers):
        return 0
    return request.min_bytes


async def _read_later(call: Call, request: FetchRequest, context: FetchContext, plan: _Plan) -> Buffers:
    """Ask the metadata or the object store, or wait. Ends with the client's connection, by cancellation."""
    reads = call.broker.reads
    for place in plan.diverging:
        await _compare_epochs(call, context, plan, place)
    min_bytes = _min_bytes(request, plan)
    results = await reads.read(
        plan.requests,
        max_bytes=max(request.max_bytes, 0),
        min_bytes=min_bytes,
        max_wait_ms=request.max_wait_ms if min_bytes > 0 else 0,
    )
    for place, key, result in zip(plan.places, [each.key for each in plan.requests], results, strict=True):
        wanted = context.wanted[place][1]
        if isinstance(result, StreamHouseError):
            plan.answers[place] = _error(call, wanted, key, result)
            continue
        plan.answers[place] = _answer(wanted, result)
        if not result.batches:
            try:  # it may have moved while we waited: whoever waits here hears nothing more
                reads.leader_epoch(key, or_leaving=True)
            except StreamHouseError as error:
                plan.answers[place] = _error(call, wanted, key, error)
    return _respond(call, request, context, plan)


async def _compare_epochs(call: Call, context: FetchContext, plan: _Plan, place: int) -> None:
    """Whether what the client read last is part of this log; if not, it is told where to cut off, and gets nothing."""
    wanted, key = context.wanted[place][1], plan.keys[place]
    assert key is not None
    try:
        end = await call.broker.reads.epoch_end(key, wanted.last_fetched_epoch)
    except StreamHouseError as error:
        answer = _error(call, wanted, key, error)
    else:
        if end.epoch < 0 or end.end_offset < 0:
            answer = PartitionAnswer(wanted.partition, ErrorCode.OFFSET_OUT_OF_RANGE, -1, -1, -1)
        elif end.epoch < wanted.last_fetched_epoch or end.end_offset < wanted.fetch_offset:
            answer = PartitionAnswer(wanted.partition, 0, -1, -1, -1, diverging=(end.epoch, end.end_offset))
        else:
            return
    plan.answers[place] = answer
    at = plan.places.index(place)
    del plan.places[at], plan.requests[at]


def _answer(wanted: FetchPartition, result: ReadResult) -> PartitionAnswer:
    return PartitionAnswer(
        wanted.partition,
        0,
        result.high_watermark,
        result.last_stable_offset,
        result.log_start_offset,
        result.batches,
        result.size_bytes,
    )


def _error(call: Call, wanted: FetchPartition, key: PartitionKey, error: StreamHouseError) -> PartitionAnswer:
    code = error.kafka_code if error.kafka_code in _UNDERSTOOD else ErrorCode.KAFKA_STORAGE_ERROR
    leader = None
    if isinstance(error, NotLeader | StaleEpoch):
        leader = current_leader(call, key, may_be_here=isinstance(error, StaleEpoch))
    return PartitionAnswer(wanted.partition, code, -1, -1, -1, leader=leader)


def _respond(call: Call, request: FetchRequest, context: FetchContext, plan: _Plan) -> Buffers:
    answers = [answer for answer in plan.answers if answer is not None]
    assert len(answers) == len(context.wanted)
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
        aborted_listed=request.isolation_level == _READ_COMMITTED,
        leaders=leaders,
    )


def _sessions_of(broker: Broker) -> FetchSessions:
    found = _sessions.get(broker.reads)
    if found is None:
        found = _sessions[broker.reads] = FetchSessions(
            clock=broker.clock,
            max_sessions=broker.settings.kafka.fetch_sessions,
            first_id=broker.clock.wall_ms() % 2**31 or 1,
        )
    return found
