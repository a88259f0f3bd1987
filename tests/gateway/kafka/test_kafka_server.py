"""How a server binds its addresses, opens, answers what is under way when it stops, and closes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from serving import (
    FETCH,
    HEARTBEAT,
    client_of,
    cold,
    connections_of,
    heartbeat,
    hot,
    large,
    serving,
    stop_reading,
    until,
)

from streamhouse.core.errors import ConfigError
from streamhouse.gateway.kafka.api import Call
from streamhouse.gateway.kafka.server import KafkaServer, Listener
from streamhouse.gateway.kafka.wire.message import Message


def listener(port: int = 0, host: str = "127.0.0.1") -> Listener:
    return Listener(name="test", host=host, port=port, advertised_host="me", advertised_port=0)


def server_on(*listeners: Listener) -> KafkaServer:
    return KafkaServer(broker=None, listeners=listeners, served={})  # type: ignore[arg-type]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


async def test_bind_knows_the_ports_and_lets_no_client_in_before_open() -> None:
    server = server_on(listener(), listener())
    await server.bind()
    first, second = server.listeners
    assert first.port != second.port
    assert first.advertised_port == first.port > 0
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", first.port)
    await server.open()
    async with client_of(server):
        pass
    await server.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", first.port)


async def test_a_taken_port_is_a_clear_error_and_keeps_nothing(taken_port: int) -> None:
    server = server_on(listener(), listener(taken_port))
    with pytest.raises(ConfigError, match=f"another process listens on 127.0.0.1:{taken_port}.*--kafka-listen"):
        await server.bind()
    await server.close()


async def test_a_host_that_is_not_ours_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:9"):
        await server_on(listener(9, "192.0.2.1")).bind()


async def test_drain_lets_requests_under_way_finish_and_starts_no_more() -> None:
    release = asyncio.Event()

    async def slow(call: Call, request: Message) -> dict[str, Any]:
        await release.wait()
        return {"error_code": 5}

    async with serving(cold(HEARTBEAT, slow)) as server, client_of(server) as busy, client_of(server) as idle:
        await idle.ping()
        busy.ask(HEARTBEAT, 0, 1, heartbeat())
        busy.ask(HEARTBEAT, 0, 2, heartbeat())
        await until(lambda: server.stats.in_flight == 1)
        stopping = asyncio.create_task(server.drain(10))
        assert await idle.closed() == b""
        release.set()
        assert await busy.answer() == b"\0\0\0\1\0\5"
        assert await busy.closed() == b""
        await stopping
        assert server.stats.requests == 2


async def test_close_ends_what_takes_too_long() -> None:
    cancelled = asyncio.Event()

    async def endless(call: Call, request: Message) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    async with serving(cold(HEARTBEAT, endless)) as server, client_of(server) as client:
        client.ask(HEARTBEAT, 0, 1, heartbeat())
        await until(lambda: server.stats.in_flight == 1)
        await server.drain(0.05)
        await server.close()
        assert cancelled.is_set()
        assert server.stats.in_flight == 0
        assert server.stats.connections == 0
        assert await client.closed() == b""


async def test_close_does_not_wait_for_a_client_that_does_not_read() -> None:
    async with serving(hot(FETCH, large)) as server, client_of(server) as client:
        await stop_reading(client)
        client.ask(FETCH, 0, 1)
        await until(lambda: any(one.unsent_bytes() for one in connections_of(server).live))
        await server.drain(0.05)
        await server.close()
        assert server.stats.connections == 0
