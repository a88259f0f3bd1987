"""Which clients the server turns away, and when it closes a connection. Time passes by hand: no test waits."""

from __future__ import annotations

import asyncio
import logging

import pytest
from serving import (
    FETCH,
    MIB,
    PRODUCE,
    Hours,
    RawClient,
    client_of,
    connections_of,
    echo,
    hot,
    large,
    serving,
    stop_reading,
    until,
)

from streamhouse.gateway.kafka.api import Buffers, Call, CloseConnection, HotHandler
from streamhouse.gateway.kafka.wire.headers import request_frame


def large_in_pieces(call: Call, body: memoryview) -> Buffers:
    """Answer as records leave: batch by batch."""
    return (bytes(MIB // 2),) * 128


LARGE = pytest.mark.parametrize("large", [large, large_in_pieces])


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


async def test_the_client_that_holds_most_of_the_budget_is_closed() -> None:
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
