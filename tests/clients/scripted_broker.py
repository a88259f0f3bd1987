"""A broker that answers produce requests by a script, to see what a client does with an answer.

One topic with one partition, in memory. It judges batches of idempotent producers by the rules of docs/idempotence.md,
except where the test says otherwise: what an unknown producer is answered, and what chosen batches are answered. It can
keep its answers back until several requests are in flight. Each batch is expected to hold one record.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from streamhouse.gateway.kafka.wire.headers import (
    RequestHeader,
    has_flexible_response,
    read_header,
    response_head,
)
from streamhouse.gateway.kafka.wire.schema import read_request, write_response
from streamhouse.testing.services.ports import LOOPBACK
from streamhouse.wire.batch import read_header as read_batch_header
from streamhouse.wire.records import decode_records

TOPIC: Final = "scripted"
LOSE_THE_ANSWER: Final = -2
"""Stands in place of an error code: the batch is written, and the connection is closed without an answer."""

_PRODUCE, _FETCH, _LIST_OFFSETS, _METADATA, _FIND_COORDINATOR, _API_VERSIONS, _INIT_PRODUCER_ID = 0, 1, 2, 3, 10, 18, 22
_OFFERED: Final = {
    _PRODUCE: (3, 12),
    _FETCH: (4, 12),
    _LIST_OFFSETS: (1, 7),
    _METADATA: (0, 12),
    _FIND_COORDINATOR: (0, 4),
    _API_VERSIONS: (0, 3),
    _INIT_PRODUCER_ID: (0, 4),
}
_UNSUPPORTED_VERSION: Final = 35
_OUT_OF_ORDER, _DUPLICATE, _OLD_EPOCH, _UNKNOWN_PRODUCER = 45, 46, 47, 59
_WINDOW: Final = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch as it arrived."""

    producer_id: int
    epoch: int
    sequence: int
    value: str


class Unknown(NamedTuple):
    """The answer to an unknown producer that does not start at 0. With code 0 its batch is taken, as Kafka does."""

    code: int
    log_start_offset: int = 0


class _Waiting(NamedTuple):
    sent: Sent
    header: RequestHeader
    answer: asyncio.Future[bytes | None]


Script = Callable[[Sent], int | None]
"""The error code for a batch; None to judge it by the rules."""


class ScriptedBroker:
    """Listens in a thread of its own until it is closed."""

    def __init__(
        self, *, unknown: Unknown, script: Script = lambda _: None, hold_until: int = 1, hold_s: float = 1.0
    ) -> None:
        self.log: list[str] = []
        self.sent: list[Sent] = []
        self.hold_until = hold_until
        """Answers are kept back, once, until so many requests are there; but for ``hold_s`` at most, because some
        clients send one batch at a time."""
        self._hold_s = hold_s
        self._unknown = unknown
        self._script = script
        self._waiting: list[_Waiting] = []
        self._windows: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        """The epoch of each producer id, and its last batches as (sequence, offset)."""
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._next_producer_id = 1000
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, LOOPBACK, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async def stop() -> None:
            self._server.close()
            for writer in self._connections.values():
                writer.close()  # this ends the connection's task
            await asyncio.gather(*self._connections)

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def forget_producers(self) -> None:
        async def forget() -> None:
            self._windows.clear()

        self._call(forget())

    # Connections.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers: asyncio.Queue[asyncio.Future[bytes | None]] = asyncio.Queue()
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        ways = [
            asyncio.create_task(self._requests(reader, answers)),
            asyncio.create_task(_answer_in_order(answers, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            del self._connections[task]

    async def _requests(
        self, reader: asyncio.StreamReader, answers: asyncio.Queue[asyncio.Future[bytes | None]]
    ) -> None:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            frame = memoryview(await reader.readexactly(size))
            header = read_header(frame)
            answer: asyncio.Future[bytes | None] = self._loop.create_future()
            answers.put_nowait(answer)
            if header.api_key == _PRODUCE:
                self._produce(header, frame[header.body_start :], answer)
            else:
                answer.set_result(self._other(header, frame[header.body_start :]))

    def _other(self, header: RequestHeader, body: memoryview) -> bytes:
        address = {"node_id": 1, "host": LOOPBACK, "port": self.port}
        if header.api_key == _API_VERSIONS:
            too_new = header.version > _OFFERED[_API_VERSIONS][1]
            keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in _OFFERED.items()]
            fields = {"error_code": _UNSUPPORTED_VERSION if too_new else 0, "api_keys": keys}
            return _framed(header._replace(version=0) if too_new else header, fields)
        if header.api_key == _METADATA:
            partition = {"partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
            topic = {"name": TOPIC, "partitions": [partition]}
            return _framed(header, {"brokers": [address], "controller_id": 1, "topics": [topic]})
        if header.api_key == _FIND_COORDINATOR:
            keys = read_request(_FIND_COORDINATOR, header.version, body).coordinator_keys
            return _framed(header, {**address, "coordinators": [{"key": key, **address} for key in keys]})
        assert header.api_key == _INIT_PRODUCER_ID, header
        self._next_producer_id += 1
        return _framed(header, {"producer_id": self._next_producer_id - 1, "producer_epoch": 0})

    # Producing.

    def _produce(self, header: RequestHeader, body: memoryview, answer: asyncio.Future[bytes | None]) -> None:
        (topic,) = read_request(_PRODUCE, header.version, body).topic_data
        (partition,) = topic.partition_data
        batch = read_batch_header(partition.records, 0)
        (record,) = decode_records(partition.records)
        sent = Sent(
            producer_id=batch.producer_id,
            epoch=batch.producer_epoch,
            sequence=batch.base_sequence,
            value=bytes(record.value or b"").decode().rstrip("."),
        )
        self._waiting.append(_Waiting(sent, header, answer))
        if len(self._waiting) >= self.hold_until:
            self._answer_all()
        elif len(self._waiting) == 1:
            self._loop.call_later(self._hold_s, self._answer_all)

    def _answer_all(self) -> None:
        if not self._waiting:
            return
        self.hold_until = 1
        waiting, self._waiting = self._waiting, []
        for sent, header, answer in waiting:
            self.sent.append(sent)
            code = self._script(sent)
            offset = -1
            if code is None or code == LOSE_THE_ANSWER:
                judged, offset = self._judge(sent)
            if code == LOSE_THE_ANSWER:
                answer.set_result(None)
                continue
            if not answer.done():
                answer.set_result(self._produced(header, judged if code is None else code, offset))

    def _produced(self, header: RequestHeader, code: int, offset: int) -> bytes:
        log_start = self._unknown.log_start_offset if code == _UNKNOWN_PRODUCER else 0
        partition = {"index": 0, "error_code": code, "base_offset": offset, "log_start_offset": log_start}
        partition["log_append_time"] = -1
        return _framed(header, {"responses": [{"name": TOPIC, "partition_responses": [partition]}]})

    def _judge(self, sent: Sent) -> tuple[int, int]:
        """The error code and the offset."""
        epoch, window = self._windows.get(sent.producer_id, (-1, []))
        if sent.epoch < epoch:
            return _OLD_EPOCH, -1
        if sent.epoch > epoch:
            code = self._unknown.code if epoch < 0 else _OUT_OF_ORDER
            if sent.sequence != 0 and code != 0:
                return code, -1
            window = []
        for sequence, offset in window:
            if sequence == sent.sequence:
                return 0, offset
        if window and sent.sequence != window[-1][0] + 1:
            return (_DUPLICATE if sent.sequence < window[0][0] else _OUT_OF_ORDER), -1
        window = [*window, (sent.sequence, len(self.log))][-_WINDOW:]
        self._windows[sent.producer_id] = (sent.epoch, window)
        self.log.append(sent.value)
        return 0, len(self.log) - 1


async def _answer_in_order(answers: asyncio.Queue[asyncio.Future[bytes | None]], writer: asyncio.StreamWriter) -> None:
    while True:
        frame = await (await answers.get())
        if frame is None:
            return
        writer.write(frame)
        await writer.drain()


def _framed(header: RequestHeader, fields: dict[str, Any]) -> bytes:
    body = write_response(header.api_key, header.version, fields)
    flexible = has_flexible_response(header.api_key, header.version)
    return response_head(flexible, header.correlation_id, len(body)) + body
