"""One Produce's answer while it is being collected: from its appends as they end, one by one.

A cheap gather. The appends belong to the log and go on whatever becomes of the answer: a client that hangs up, or a
time-out, ends the waiting and nothing else.
"""

from __future__ import annotations

import asyncio
from typing import Final

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Buffers, Call, CloseConnection
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader
from streamhouse.gateway.kafka.hot.produce import partition_error, partition_ok, write_response
from streamhouse.gateway.kafka.redirect import current_leader

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
    """Is the callback of its appends. ``problem`` is the last thing that went wrong."""

    __slots__ = ("_acks", "_call", "_future", "_leaders", "_left", "_parts", "_topics", "_waiting", "problem")

    def __init__(self, call: Call, acks: int) -> None:
        self.problem: str | None = None
        self._call = call
        self._acks = acks
        self._future: asyncio.Future[Buffers | None] | None = None
        self._leaders: list[CurrentLeader] = []
        self._left = 0
        self._topics: list[tuple[bytes, list[bytes]]] = []
        self._parts: list[bytes] = []
        self._waiting: list[tuple[asyncio.Future[None] | None, list[bytes], int, PartitionKey]] = []
        """Append, and where its part stands: list, place, partition. None: it waits for its partition to open."""

    def topic(self, raw: bytes) -> None:
        """What follows belongs to this topic."""
        self._parts = []
        self._topics.append((raw, self._parts))

    def append(self, key: PartitionKey, records: memoryview | bytes) -> None:
        """Raises StreamHouseError; nothing has been taken then."""
        call = self._call
        broker = call.broker
        append = broker.writes.append(key, records, acks=self._acks)
        parts = self._parts
        parts.append(
            partition_ok(
                call.version,
                key.partition,
                append.base_offset,
                append.log_append_time_ms,
                broker.reads.known_log_start(key),
            )
        )
        if self._acks:
            self._waiting.append((append.done, parts, len(parts) - 1, key))
            self._left += 1
            append.done.add_done_callback(self)

    def refuse(self, index: int, code: int, message: str) -> None:
        self.problem = message
        self._parts.append(partition_error(self._call.version, index, code, message, None))

    def fail(self, key: PartitionKey, error: StreamHouseError) -> None:
        """Nothing was taken of this partition."""
        self.problem = error.message
        self._parts.append(self._error(key, *_code(error, after_append=False)))

    def wait_for_opening(self, key: PartitionKey) -> int:
        """Leave a place for a partition that opens later; its number, for ``opened``."""
        self._parts.append(b"")
        self._waiting.append((None, self._parts, len(self._parts) - 1, key))
        self._left += 1
        return len(self._waiting) - 1

    def opened(self, place: int, records: bytes) -> None:
        """Try again; now the answer is what it is."""
        _, parts, at, key = self._waiting[place]
        self._parts = []
        future = self._future
        try:
            self.append(key, records)
        except StreamHouseError as error:
            self.fail(key, error)
            if not self._acks and future is not None and not future.done():
                future.set_exception(CloseConnection(f"a produce with acks=0 failed: {error.message}"))
        else:
            if self._acks:
                done, *_ = self._waiting.pop()
                self._waiting[place] = (done, parts, at, key)
        parts[at] = self._parts[0]
        self._ended_one()

    def begin(self, timeout_ms: int) -> Buffers | asyncio.Future[Buffers | None] | None:
        """The answer, or who to wait for."""
        if not self._left:
            return self._result()
        self._future = asyncio.get_running_loop().create_future()
        self._call.broker.writes.deadlines.add(self, max(timeout_ms, 0) / 1000)
        return self._future

    def __call__(self, done: asyncio.Future[None]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._failed(done)
        self._ended_one()

    def overdue(self) -> None:
        """The time is up: what is not known to be written by now may be written later."""
        for done, parts, at, key in self._waiting:
            if done is None or not done.done():
                parts[at] = self._error(key, ErrorCode.REQUEST_TIMED_OUT, "not acknowledged in time")
        self._finish()

    def _ended_one(self) -> None:
        self._left -= 1
        if not self._left:
            self._call.broker.writes.deadlines.remove(self)
            self._finish()

    def _failed(self, done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        code, message = _code(error, after_append=True)
        for each, parts, at, key in self._waiting:
            if each is done:
                parts[at] = self._error(key, code, message)

    def _finish(self) -> None:
        future = self._future
        if future is not None and not future.done():  # else its time was up, or the client is gone
            future.set_result(self._result())

    def _result(self) -> Buffers | None:
        return (write_response(self._call.version, self._topics, self._leaders),) if self._acks else None

    def _error(self, key: PartitionKey, code: int, message: str) -> bytes:
        leader = current_leader(self._call, key) if code == ErrorCode.NOT_LEADER_OR_FOLLOWER else None
        if leader is not None:
            self._leaders.append(leader)
        return partition_error(self._call.version, key.partition, code, message, leader)


def _code(error: BaseException | None, *, after_append: bool) -> tuple[int, str]:
    """Only codes that every client understands: for the rest, 56 says that nothing was written, 7 that it may be."""
    if not isinstance(error, StreamHouseError):
        return ErrorCode.REQUEST_TIMED_OUT, "its outcome is unknown"
    if error.kafka_code in _TOLD_AS_THEY_ARE:
        return error.kafka_code, error.message
    return ErrorCode.REQUEST_TIMED_OUT if after_append else ErrorCode.KAFKA_STORAGE_ERROR, error.message
