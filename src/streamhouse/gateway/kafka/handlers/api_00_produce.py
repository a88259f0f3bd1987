"""Produce 0, versions 3–13 (0–2 are advertised and never served: librdkafka before 2.1 turns codecs off otherwise).

Behaviour: broker/produce.py checks, gives offsets, keeps the order of a connection's writes and waits where waiting
helps; here requests are read and answers written. Offsets are assigned before the handler returns, unless the request
has to wait. Each partition has its own error. acks=0 has no answer; an error then closes the connection. After
``timeout_ms`` the answer is 7, while an append goes on: the appends belong to the log, and a client that hangs up, or a
time-out, ends the waiting and nothing else. Records without a key for a compacted topic are 87, each with its own error
(version 8 and later). With a compression.type other than producer, batches are compressed again.

Deviations: other topics' records are not decoded, so times are checked by a batch's header. At most 1000 records of a
batch are named in an answer. Transactions come later: a transactional id, or a transactional batch, is 53.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from streamhouse.broker.produce import Outcome, Place, ProduceCall
from streamhouse.core.errors import InvalidRecord, StreamHouseError
from streamhouse.gateway.kafka.api import Buffers, Call, CloseConnection, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import current_leader
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader
from streamhouse.gateway.kafka.hot.produce import (
    ProduceRequest,
    partition_error,
    partition_ok,
    read_request,
    write_response,
)
from streamhouse.wire.buffers import BytesLike

_ZSTD_FROM_VERSION: Final = 7
_ATTRIBUTES_AT: Final = 22
_CODEC_MASK: Final = 7
_ZSTD: Final = 4

_TOLD_AS_THEY_ARE: Final = frozenset(
    {
        # What every client retries.
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        # What Kafka itself says of a batch with a fault. Java sends a damaged batch (2) again, and no other.
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
    }
)


@hot_api(0, (3, 13), advertise_from=0, pipelined=True)
def produce(call: Call, body: memoryview) -> Buffers | Awaitable[Buffers | None] | None:
    request = read_request(call.version, body)
    answer = _Answer(call, request.acks)
    return answer.begin(request)


class _Answer:
    """One request's answer, and where each batch's part of the response stands in it."""

    __slots__ = ("_acks", "_call", "_future", "_leaders", "_places", "_problem", "_topics")

    def __init__(self, call: Call, acks: int) -> None:
        self._call = call
        self._acks = acks
        self._problem: str | None = None
        """The last thing that went wrong."""
        self._topics: list[tuple[bytes, list[bytes]]] = []
        self._places: list[tuple[list[bytes], int, int]] = []
        """The parts of the topic of each of the broker's batches, its place among them, and its partition."""
        self._leaders: list[CurrentLeader] = []
        self._future: asyncio.Future[Buffers | None] | None = None

    def begin(self, request: ProduceRequest) -> Buffers | asyncio.Future[Buffers | None] | None:
        """Hand the batches to the broker. Returns the response, or what to await for it. Raises CloseConnection."""
        batches = self._batches(request)
        if not batches:
            return self._result()
        client = self._call.client
        call = self._call.broker.produce.begin(
            batches,
            acks=self._acks,
            timeout_ms=request.timeout_ms,
            order=client.order,
            caller=client.caller,
            on_done=self._done,
            transactional_id=request.transactional_id,
        )
        if call.done:
            return self._result()
        self._future = asyncio.get_running_loop().create_future()
        if call.waits_for_offsets:
            self._future.add_done_callback(lambda future: call.abandon() if future.cancelled() else None)
        return self._future

    def _batches(self, request: ProduceRequest) -> list[tuple[Place, BytesLike]]:
        version = self._call.version
        batches: list[tuple[Place, BytesLike]] = []
        for topic in request.topics:
            parts: list[bytes] = []
            self._topics.append((topic.raw, parts))
            ref = topic.topic_id if topic.topic_id is not None else topic.name or ""
            for index, records in topic.partitions:
                if version < _ZSTD_FROM_VERSION and _is_zstd(records):
                    self._problem = f"zstd needs Produce {_ZSTD_FROM_VERSION}, this is {version}"
                    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
                    parts.append(partition_error(version, index, code, self._problem, None))
                    continue
                self._places.append((parts, len(parts), index))
                parts.append(b"")
                batches.append(((ref, index), b"" if records is None else records))
        return batches

    def _done(self, call: ProduceCall) -> None:
        for outcome, (parts, at, index) in zip(call.outcomes, self._places, strict=True):
            parts[at] = self._part(outcome, index)
        future = self._future
        if future is None or future.done():  # nothing had to be waited for, or the client has gone
            return
        try:
            future.set_result(self._result())
        except CloseConnection as error:
            future.set_exception(error)

    def _result(self) -> Buffers | None:
        if self._acks:
            return (write_response(self._call.version, self._topics, self._leaders),)
        if self._problem is not None:
            raise CloseConnection(f"a produce with acks=0 failed: {self._problem}")
        return None

    def _part(self, outcome: Outcome, index: int) -> bytes:
        call, append, key = self._call, outcome.append, outcome.key
        if outcome.error is None and append is not None and key is not None:
            log_start = call.broker.reads.known_log_start(key)
            return partition_ok(call.version, index, append.base_offset, append.log_append_time_ms, log_start)
        code, message = _code(outcome.error, after_append=append is not None)
        self._problem = message
        leader = None
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and key is not None:
            leader = current_leader(call, key)
        if leader is not None:
            self._leaders.append(leader)
        record_errors = outcome.error.record_errors if isinstance(outcome.error, InvalidRecord) else ()
        return partition_error(call.version, index, code, message, leader, record_errors)


def _is_zstd(records: memoryview | None) -> bool:
    return records is not None and len(records) > _ATTRIBUTES_AT and records[_ATTRIBUTES_AT] & _CODEC_MASK == _ZSTD


def _code(error: BaseException | None, *, after_append: bool) -> tuple[int, str]:
    """Only codes that every client understands: for the rest, 56 says that nothing was written, 7 that it may be."""
    if not isinstance(error, StreamHouseError):
        return ErrorCode.REQUEST_TIMED_OUT, "its outcome is unknown"
    if error.kafka_code in _TOLD_AS_THEY_ARE:
        return error.kafka_code, error.message
    return ErrorCode.REQUEST_TIMED_OUT if after_append else ErrorCode.KAFKA_STORAGE_ERROR, error.message
