"""One Produce's answer: which batches the request has, and the response once the broker knows what became of them.

The appends belong to the log and go on whatever becomes of the answer: a client that hangs up, or a time-out, ends the
waiting and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Final

from streamhouse.broker.produce import Outcome, ProduceCall
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Buffers, Call, CloseConnection
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader
from streamhouse.gateway.kafka.hot.produce import partition_error, partition_ok, write_response
from streamhouse.gateway.kafka.redirect import current_leader
from streamhouse.wire.buffers import BytesLike

_TOLD_AS_THEY_ARE: Final = frozenset(
    {
        # What every client retries.
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        # What Kafka itself says of a batch that will never be taken.
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
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


class ProduceAnswer:
    __slots__ = ("_acks", "_batches", "_call", "_future", "_leaders", "_parts", "_places", "_problem", "_topics")

    def __init__(self, call: Call, acks: int) -> None:
        self._call = call
        self._acks = acks
        self._problem: str | None = None
        """The last thing that went wrong."""
        self._topics: list[tuple[bytes, list[bytes]]] = []
        self._parts: list[bytes] = []
        self._batches: list[tuple[PartitionKey, BytesLike]] = []
        self._places: list[tuple[list[bytes], int]] = []
        """For each batch, where its part of the response stands."""
        self._leaders: list[CurrentLeader] = []
        self._future: asyncio.Future[Buffers | None] | None = None

    def topic(self, raw: bytes) -> None:
        """What follows belongs to this topic."""
        self._parts = []
        self._topics.append((raw, self._parts))

    def add(self, key: PartitionKey, records: BytesLike) -> None:
        """A batch for the broker."""
        self._batches.append((key, records))
        self._places.append((self._parts, len(self._parts)))
        self._parts.append(b"")

    def refuse(self, index: int, code: int, message: str) -> None:
        """A partition whose batch the broker does not get."""
        self._problem = message
        self._parts.append(partition_error(self._call.version, index, code, message, None))

    def produce(self, timeout_ms: int) -> Buffers | asyncio.Future[Buffers | None] | None:
        """Hand the batches to the broker. Returns the response, or what to await for it. Raises CloseConnection."""
        if not self._batches:
            return self._result()
        client, produce = self._call.client, self._call.broker.produce
        call = produce.begin(
            self._batches, acks=self._acks, timeout_ms=timeout_ms, order=client.order, on_done=self._done
        )
        self._batches = []
        if call.done:
            return self._result()
        self._future = asyncio.get_running_loop().create_future()
        if call.waits_for_offsets:
            self._future.add_done_callback(lambda future: call.abandon() if future.cancelled() else None)
        return self._future

    def _done(self, call: ProduceCall) -> None:
        for outcome, (parts, at) in zip(call.outcomes, self._places, strict=True):
            parts[at] = self._part(outcome)
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

    def _part(self, outcome: Outcome) -> bytes:
        call, append, key = self._call, outcome.append, outcome.key
        if outcome.error is None and append is not None:
            log_start = call.broker.reads.known_log_start(key)
            return partition_ok(call.version, key.partition, append.base_offset, append.log_append_time_ms, log_start)
        code, message = _code(outcome.error, after_append=append is not None)
        self._problem = message
        leader = current_leader(call, key) if code == ErrorCode.NOT_LEADER_OR_FOLLOWER else None
        if leader is not None:
            self._leaders.append(leader)
        return partition_error(call.version, key.partition, code, message, leader)


def _code(error: BaseException | None, *, after_append: bool) -> tuple[int, str]:
    """Only codes that every client understands: for the rest, 56 says that nothing was written, 7 that it may be."""
    if not isinstance(error, StreamHouseError):
        return ErrorCode.REQUEST_TIMED_OUT, "its outcome is unknown"
    if error.kafka_code in _TOLD_AS_THEY_ARE:
        return error.kafka_code, error.message
    return ErrorCode.REQUEST_TIMED_OUT if after_append else ErrorCode.KAFKA_STORAGE_ERROR, error.message
