"""What the server takes from all clients together, and when it sends one away. Time passes by hand: no test waits."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from serving import FETCH, HEARTBEAT, PRODUCE, RawClient, client_of, cold, echo, heartbeat, hot, serving, until

from streamhouse.core.errors import ConfigError
from streamhouse.gateway.kafka.api import Buffers, Call, CloseConnection, HotHandler
from streamhouse.gateway.kafka.connections import Connections
from streamhouse.gateway.kafka.server import KafkaServer, Listener
from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.message import Message

MIB = 1 << 20


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


def large_in_pieces(call: Call, body: memoryview) -> Buffers:
    """As records leave: batch by batch."""
    return (bytes(MIB // 2),) * 128


LARGE = pytest.mark.parametrize("large", [large, large_in_pieces])


async def stop_reading(client: RawClient) -> None:
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]


async def test_connections_over_the_cap_are_closed_and_a_free_place_is_given_again() -> None:
    async with serving(max_connections=2) as server:
        async with client_of(server) as first, client_of(server) as second:
            await first.ping()
            await second.ping()
            async with client_of(server) as third:
                assert await third.closed() == b""
            await first.ping()
        await until(lambda: server.stats.connections == 0)
        async with client_of(server) as again:
            await again.ping()
        assert server.stats.closed.get("too_many", 0) == 1


async def test_connections_of_one_address_are_capped() -> None:
    async with serving(max_connections_per_address=1) as server, client_of(server) as first:
        await first.ping()
        async with client_of(server) as second:
            assert await second.closed() == b""
        async with client_of(server, local_addr=("127.0.0.2", 0)) as elsewhere:
            await elsewhere.ping()
        assert server.stats.closed.get("too_many_of_address", 0) == 1


async def test_who_never_asks_is_closed_and_who_did_is_not() -> None:
    async with serving() as server, client_of(server) as silent, client_of(server) as half, client_of(server) as good:
        await good.ping()
        half.send(b"\0\0\0\x10\0\x12")
        await until(lambda: server.stats.connections == 3)
        hours = Hours(server)
        hours.pass_s(29)
        await good.ping()
        assert server.stats.connections == 3
        hours.pass_s(2)
        assert await silent.closed() == b""
        assert await half.closed() == b""
        await good.ping()
        assert server.stats.closed.get("handshake", 0) == 2


async def test_idle_connections_are_closed_and_those_that_wait_for_an_answer_are_not() -> None:
    never: asyncio.Future[Buffers] = asyncio.get_running_loop().create_future()
    async with (
        serving(hot(FETCH, lambda call, body: never)) as server,
        client_of(server) as idle,
        client_of(server) as waits,
    ):
        await idle.ping()
        waits.ask(FETCH, 0, 1)
        await until(lambda: server.stats.in_flight == 1)
        hours = Hours(server)
        hours.pass_s(599)
        assert server.stats.connections == 2
        hours.pass_s(2)
        assert await idle.closed() == b""
        assert server.stats.connections == 1
        assert server.stats.closed.get("idle", 0) == 1


async def test_all_of_many_idle_connections_are_looked_at() -> None:
    async with serving() as server:
        clients = [await RawClient.connect(server) for _ in range(30)]
        for client in clients:
            await client.ping()
        hours = Hours(server)
        for _ in range(30):
            hours.pass_s(601)
        for client in clients:
            assert await client.closed() == b""
            await client.close()


async def test_a_request_that_stops_half_way_is_closed() -> None:
    async with serving(hot(FETCH, echo)) as server, client_of(server) as client:
        await client.ping()
        client.send(request_frame(FETCH, 0, 1, None, b"x" * 100_000)[:-1])
        await until(lambda: connections_of(server).budget.used_bytes > 0)
        hours = Hours(server)
        hours.pass_s(31)
        assert await client.closed() == b""
        assert server.stats.closed.get("stalled", 0) == 1
        assert connections_of(server).budget.used_bytes == 0


async def test_a_client_that_does_not_take_its_answers_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(hot(FETCH, large)) as server, client_of(server) as slow, client_of(server) as good:
        await good.ping()
        await stop_reading(slow)
        slow.ask(FETCH, 0, 1)
        slow.ask(FETCH, 0, 2)
        connections = connections_of(server)
        await until(lambda: any(connection.unsent_bytes() > 0 for connection in connections.live))
        assert server.stats.requests == 2, "its second waits until the first is taken"
        hours = Hours(server)
        hours.pass_s(1)
        hours.pass_s(29)
        assert server.stats.connections == 2
        hours.pass_s(2)
        await until(lambda: server.stats.connections == 1)
        assert server.stats.closed.get("slow_reader", 0) == 1
        await good.ping()
    assert "does not take its answers" in caplog.text


async def test_a_client_cannot_write_lines_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(call: Call, body: memoryview) -> Buffers:
        raise CloseConnection("no")

    caplog.set_level(logging.INFO)
    async with serving(hot(FETCH, refuse)) as server, client_of(server) as client:
        client.send(request_frame(FETCH, 0, 1, "me\nERROR all is lost" + "!" * 10_000, b""))
        assert await client.closed() == b""
    (line,) = [record.getMessage() for record in caplog.records if "closed the connection" in record.getMessage()]
    assert r"('me\nERROR all is lost!!" in line
    assert "\n" not in line
    assert len(line) < 300


async def test_answers_that_wait_behind_another_are_bounded() -> None:
    first: asyncio.Future[Buffers] = asyncio.get_running_loop().create_future()
    async with (
        serving(hot(PRODUCE, lambda call, body: first, pipelined=True), hot(FETCH, large)) as server,
        client_of(server) as client,
    ):
        client.ask(PRODUCE, 0, 0)
        for number in range(1, 4):
            client.ask(FETCH, 0, number)
        await until(lambda: server.stats.requests >= 2)
        await asyncio.sleep(0.01)
        assert server.stats.requests == 2
        first.set_result(())
        assert await client.answer() == bytes(4)
        for number in range(1, 4):
            assert (await client.answer())[:4] == number.to_bytes(4, "big")


@LARGE
async def test_a_slow_client_that_goes_on_reading_is_left_alone(large: HotHandler) -> None:
    async with serving(hot(FETCH, large)) as server, client_of(server) as slow:
        slow.ask(FETCH, 0, 1)
        hours = Hours(server)
        for _ in range(10):
            await slow.reader.readexactly(4 * MIB)
            hours.pass_s(20)
        assert server.stats.closed.get("slow_reader", 0) == 0
        await slow.reader.readexactly(24 * MIB + 8)
        await slow.ping()


@LARGE
async def test_unsent_answers_of_all_clients_are_bounded_by_closing_the_slowest(large: HotHandler) -> None:
    async with (
        serving(hot(FETCH, large), unsent_memory_bytes=100 * MIB) as server,
        client_of(server) as first,
        client_of(server) as second,
    ):
        for client in (first, second):
            await stop_reading(client)
            client.ask(FETCH, 0, 1)
            await until(lambda: any(one.unsent_bytes() for one in connections_of(server).live))
            await asyncio.sleep(0.01)
        await until(lambda: server.stats.closed.get("slow_reader", 0) == 1)
        second.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await second.answer()) == 64 * MIB + 4


async def test_a_closed_connection_that_never_takes_its_last_answer_is_aborted() -> None:
    def refuse(call: Call, body: memoryview) -> Buffers:
        raise ZeroDivisionError

    async with (
        serving(hot(FETCH, large), hot(PRODUCE, refuse), unsent_high_bytes=200 * MIB) as server,
        client_of(server) as client,
    ):
        await stop_reading(client)
        client.ask(FETCH, 0, 1)
        client.ask(PRODUCE, 0, 2)
        await until(lambda: server.stats.closed.get("failed", 0) == 1)
        assert server.stats.connections == 1
        Hours(server).pass_s(31)
        await until(lambda: server.stats.connections == 0)


async def test_over_the_budget_sockets_are_not_read_and_all_are_served_in_the_end() -> None:
    """Twenty clients with 3 MiB each and room for 4: half-received requests must not wait for each other."""
    peak = 0

    def measure(call: Call, body: memoryview) -> Buffers:
        nonlocal peak
        peak = max(peak, connections.budget.used_bytes)
        return (len(body).to_bytes(4, "big"),)

    async with serving(hot(FETCH, measure), request_memory_bytes=4 * MIB) as server:
        connections = connections_of(server)
        clients = [await RawClient.connect(server) for _ in range(20)]
        frame = request_frame(FETCH, 0, 1, None, bytes(3 * MIB))
        for client in clients:
            client.send(frame[:MIB])
        await until(lambda: connections.budget.waiting >= 5)
        assert connections.budget.used_bytes < 12 * MIB
        for client in clients:
            client.send(frame[MIB:])
        for client in clients:
            assert await client.answer() == b"\0\0\0\1" + (3 * MIB).to_bytes(4, "big")
            await client.close()
        assert peak < 14 * MIB
        await until(lambda: connections.budget.used_bytes == 0 and connections.budget.waiting == 0)


async def test_requests_being_served_count_against_the_budget() -> None:
    futures: list[asyncio.Future[Buffers]] = []

    def wait(call: Call, body: memoryview) -> asyncio.Future[Buffers]:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    async with (
        serving(hot(PRODUCE, wait, pipelined=True), request_memory_bytes=MIB) as server,
        client_of(server) as client,
        client_of(server) as other,
    ):
        body = bytes(MIB // 4)
        for number in range(12):
            client.ask(PRODUCE, 0, number, body)
        await until(lambda: connections_of(server).budget.waiting == 1)
        assert len(futures) < 8
        other.ask(18, 0, 1)
        while len(futures) < 12 or not all(future.done() for future in futures):
            for future in futures:
                if not future.done():
                    future.set_result(())
            await asyncio.sleep(0)
        for _ in range(12):
            await client.answer()
        await other.answer()


async def test_whoever_hogs_the_budget_is_closed() -> None:
    async with (
        serving(hot(FETCH, echo), request_memory_bytes=MIB) as server,
        client_of(server) as hog,
        client_of(server, limit=1 << 24) as other,
    ):
        await hog.ping()
        hog.send(request_frame(FETCH, 0, 1, None, bytes(50 * MIB))[: 2 * MIB])
        await until(lambda: connections_of(server).budget.is_spent)
        await other.ping()
        other.ask(FETCH, 0, 2, bytes(2 * MIB))
        hours = Hours(server)
        hours.pass_s(0)
        for _ in range(4):
            hog.send(b"x")
            await hog.writer.drain()
            await asyncio.sleep(0.01)
            hours.pass_s(10)
        assert server.stats.closed.get("hogging", 0) == 1
        assert len(await other.answer()) == 2 * MIB + 4


async def test_complaints_are_few() -> None:
    handler = logging.Handler()
    lines: list[str] = []
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("streamhouse.kafka")
    logger.addHandler(handler)
    try:
        async with serving() as server:
            for _ in range(60):
                async with client_of(server) as client:
                    client.send(b"GET / HTTP/1.1\r\n\r\n")
                    await client.closed()
            assert server.stats.closed.get("malformed", 0) == 60
    finally:
        logger.removeHandler(handler)
    assert 1 <= len(lines) <= 25


# Start and stop.


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
