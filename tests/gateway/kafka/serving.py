"""A Kafka server with handlers of the test's own, and a client that sends bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from streamhouse.gateway.kafka.api import Api, Buffers, Call, apis
from streamhouse.gateway.kafka.connections import Connections
from streamhouse.gateway.kafka.handlers import api_18_api_versions as _registers_it  # noqa: F401
from streamhouse.gateway.kafka.server import KafkaServer, Listener, ServerLimits
from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.schema import write_request

HEARTBEAT, PRODUCE, FETCH = 12, 0, 1
MIB = 1 << 20
ANSWER_S = 10
"""Longer than any answer takes; a test that needs it has failed."""


def hot(key: int, handler: Any, *, pipelined: bool = False) -> Api:
    return Api(key=key, min_version=0, max_version=3, advertised_min_version=0, hot=handler, pipelined=pipelined)


def cold(key: int, handler: Any) -> Api:
    return Api(key=key, min_version=0, max_version=4, advertised_min_version=0, cold=handler)


def echo(call: Call, body: memoryview) -> Buffers:
    return (bytes(body),)


@asynccontextmanager
async def serving(*served: Api, **limits: Any) -> AsyncIterator[KafkaServer]:
    """ApiVersions and ``served``."""
    table: Mapping[int, Api] = {18: apis()[18], **{api.key: api for api in served}}
    listener = Listener(name="test", host="127.0.0.1", port=0, advertised_host="127.0.0.1", advertised_port=0)
    server = KafkaServer(
        broker=None,  # type: ignore[arg-type]
        listeners=[listener],
        limits=ServerLimits(**limits),
        served=table,
    )
    await server.bind()
    await server.open()
    try:
        yield server
    finally:
        await server.close()


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, server: KafkaServer, **options: Any) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", server.listeners[0].port, **options))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def ask(self, key: int, version: int, correlation_id: int, body: bytes = b"") -> None:
        self.send(request_frame(key, version, correlation_id, "test", body))

    async def answer(self) -> bytes:
        """A response without its size."""
        async with asyncio.timeout(ANSWER_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(size)

    async def call(self, key: int, version: int, body: bytes = b"") -> bytes:
        self.ask(key, version, 7, body)
        answer = await self.answer()
        assert answer[:4] == b"\0\0\0\7"
        return answer[4:]

    async def ping(self) -> None:
        assert (await self.call(18, 0))[:2] == b"\0\0"

    async def closed(self) -> bytes:
        """Wait for the end of the connection; what came before it."""
        async with asyncio.timeout(ANSWER_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


@asynccontextmanager
async def client_of(server: KafkaServer, **options: Any) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(server, **options)
    try:
        yield client
    finally:
        await client.close()


def heartbeat(group: str = "g") -> bytes:
    return write_request(HEARTBEAT, 0, {"group_id": group})


async def until(condition: Any) -> None:
    """Turn the loop until it holds."""
    async with asyncio.timeout(ANSWER_S):
        while not condition():  # noqa: ASYNC110 - what is waited for is the server's own state
            await asyncio.sleep(0.001)


class Hours:
    """The clock of the connections, moved by hand."""

    def __init__(self, server: KafkaServer) -> None:
        self.connections = connections_of(server)
        self._ahead_s = 0.0
        real = self.connections.now
        self.connections.now = lambda: real() + self._ahead_s

    def pass_s(self, seconds: float) -> None:
        self._ahead_s += seconds
        self.connections.sweep()


def connections_of(server: KafkaServer) -> Connections:
    assert server._connections is not None
    return server._connections


def large(call: Call, body: memoryview) -> Buffers:
    """An answer that no socket buffer takes."""
    return (bytes(64 * MIB),)


async def stop_reading(client: RawClient) -> None:
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
