"""What one connection promises: answers in order, one request at a time unless pipelined, and its own failures only."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from typing import Any

import pytest
from serving import FETCH, HEARTBEAT, MIB, PRODUCE, client_of, cold, echo, heartbeat, hot, serving, until

from streamhouse.core.errors import TopicNotFound
from streamhouse.gateway.kafka.api import Buffers, Call, CloseConnection
from streamhouse.gateway.kafka.connection import MAX_FRAMES_PER_TURN, PIPELINED_SHARE
from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_response, write_request


class Gate:
    """Handlers that answer when told."""

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, asyncio.Future[Buffers | None]]] = []

    def __call__(self, call: Call, body: memoryview) -> asyncio.Future[Buffers | None]:
        future: asyncio.Future[Buffers | None] = asyncio.get_running_loop().create_future()
        self.waiting.append((bytes(body), future))
        return future

    def open(self, index: int) -> None:
        body, future = self.waiting[index]
        future.set_result((body,))


async def test_api_versions_lists_what_is_served() -> None:
    async with serving() as server, client_of(server) as client:
        for version in range(5):
            body = write_request(18, version, {"client_software_name": "test", "client_software_version": "1.0"})
            answer = await client.call(18, version, body)
            told = read_response(18, version, memoryview(answer))
            assert told.error_code == 0
            assert (18, 0, 4) in [(one.api_key, one.min_version, one.max_version) for one in told.api_keys]


async def test_a_newer_api_versions_is_answered_in_version_0_with_error_35() -> None:
    async with serving() as server, client_of(server) as client:
        told = read_response(18, 0, memoryview(await client.call(18, 5, b"whatever comes")))
        assert told.error_code == 35
        assert (18, 4) in [(one.api_key, one.max_version) for one in told.api_keys]
        await client.ping()


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "ü"])
async def test_software_names_that_kafka_refuses_are_refused(name: str) -> None:
    async with serving() as server, client_of(server) as client:
        body = write_request(18, 3, {"client_software_name": name, "client_software_version": "1"})
        assert read_response(18, 3, memoryview(await client.call(18, 3, body))).error_code == 42


async def test_who_the_client_is_reaches_later_handlers() -> None:
    seen: list[tuple[str, str, str, str, str]] = []

    def note(call: Call, body: memoryview) -> Buffers:
        client = call.client
        seen.append((client.host, client.listener, client.client_id, client.software_name, client.software_version))
        return ()

    async with serving(hot(FETCH, note)) as server, client_of(server) as client:
        body = write_request(18, 3, {"client_software_name": "librdkafka", "client_software_version": "2.1"})
        await client.call(18, 3, body)
        await client.call(FETCH, 0)
    assert seen == [("127.0.0.1", "test", "test", "librdkafka", "2.1")]


async def test_an_unknown_api_or_version_closes_the_connection() -> None:
    async with serving(hot(FETCH, echo)) as server:
        for key, version in ((999, 0), (-1, 0), (FETCH, 9), (FETCH, -1), (18, -1)):
            async with client_of(server) as client:
                client.ask(key, version, 1)
                assert await client.closed() == b""
        assert server.stats.closed.get("refused", 0) == 5


async def test_many_frames_in_one_read_and_one_frame_in_many() -> None:
    async with serving(hot(FETCH, echo)) as server, client_of(server) as client:
        frames = [request_frame(FETCH, 0, number, None, b"x" * number) for number in range(300)]
        client.send(b"".join(frames))
        for number in range(300):
            assert await client.answer() == number.to_bytes(4, "big") + b"x" * number
        for byte in frames[5]:
            client.send(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert await client.answer() == b"\0\0\0\5xxxxx"


async def test_many_frames_in_one_read_leave_others_their_turn() -> None:
    turn = 0
    served: Counter[int] = Counter()
    loop = asyncio.get_running_loop()

    def tick() -> None:
        nonlocal turn
        turn += 1
        if served.total() < 300:
            loop.call_soon(tick)

    def note(call: Call, body: memoryview) -> Buffers:
        served[turn] += 1
        return ()

    async with serving(hot(FETCH, note)) as server, client_of(server) as client:
        tick()
        client.send(request_frame(FETCH, 0, 1, None, b"") * 300)
        for _ in range(300):
            await client.answer()
    assert max(served.values()) <= MAX_FRAMES_PER_TURN


@pytest.mark.parametrize("size", [1000, 300_000, 5_000_000])
async def test_large_frames_between_small_ones(size: int) -> None:
    body = bytes(range(256)) * (size // 256)
    async with serving(hot(FETCH, echo)) as server, client_of(server, limit=1 << 24) as client:
        for _ in range(3):
            client.ask(FETCH, 0, 1, b"before")
            client.ask(FETCH, 0, 2, body)
            client.ask(FETCH, 0, 3, b"after")
            assert await client.answer() == b"\0\0\0\1before"
            assert await client.answer() == b"\0\0\0\2" + body
            assert await client.answer() == b"\0\0\0\3after"


async def test_pipelined_requests_start_at_once_and_are_answered_in_order() -> None:
    gate = Gate()
    async with serving(hot(PRODUCE, gate, pipelined=True)) as server, client_of(server) as client:
        for number in range(3):
            client.ask(PRODUCE, 0, number, b"%d" % number)
        await until(lambda: len(gate.waiting) == 3)
        gate.open(2)
        gate.open(1)
        await asyncio.sleep(0.01)
        assert server.stats.bytes_out == 0
        gate.open(0)
        assert [await client.answer() for _ in range(3)] == [b"\0\0\0%c%d" % (number, number) for number in range(3)]


async def test_hundreds_of_small_requests_may_be_pipelined() -> None:
    """librdkafka without idempotence has a request under way for each batch. Commits take a quarter of a second."""
    gate = Gate()
    async with serving(hot(PRODUCE, gate, pipelined=True)) as server, client_of(server) as client:
        for number in range(1000):
            client.ask(PRODUCE, 0, number, b"x")
        await until(lambda: len(gate.waiting) == 1000)
        for number in range(1000):
            gate.open(number)
        for number in range(1000):
            assert (await client.answer())[:4] == number.to_bytes(4, "big")


async def test_one_connection_s_requests_take_only_a_share_of_the_memory() -> None:
    gate = Gate()
    async with (
        serving(hot(PRODUCE, gate, pipelined=True), request_memory_bytes=PIPELINED_SHARE * MIB) as server,
        client_of(server, limit=1 << 24) as client,
        client_of(server, limit=1 << 24) as other,
    ):
        for number in range(10):
            client.ask(PRODUCE, 0, number, bytes(MIB // 4))
        await until(lambda: len(gate.waiting) == 4)
        other.ask(PRODUCE, 0, 99, b"y")
        await until(lambda: len(gate.waiting) == 5)
        for number in range(11):
            await until(lambda number=number: len(gate.waiting) > number)
            gate.open(number)
        assert (await other.answer())[:4] == (99).to_bytes(4, "big")
        for number in range(10):
            assert (await client.answer())[:4] == number.to_bytes(4, "big")


async def test_others_are_served_one_at_a_time() -> None:
    gate = Gate()
    async with serving(hot(FETCH, gate)) as server, client_of(server) as client:
        client.ask(FETCH, 0, 1, b"a")
        client.ask(FETCH, 0, 2, b"b")
        await until(lambda: gate.waiting)
        await client.writer.drain()
        await asyncio.sleep(0.01)
        assert len(gate.waiting) == 1
        gate.open(0)
        await until(lambda: len(gate.waiting) == 2)
        gate.open(1)
        assert [await client.answer(), await client.answer()] == [b"\0\0\0\1a", b"\0\0\0\2b"]


async def test_an_immediate_answer_waits_behind_a_pipelined_one() -> None:
    gate = Gate()
    async with (
        serving(hot(PRODUCE, gate, pipelined=True), hot(FETCH, echo)) as server,
        client_of(server) as client,
    ):
        client.ask(PRODUCE, 0, 1, b"slow")
        client.ask(FETCH, 0, 2, b"quick")
        await until(lambda: server.stats.requests == 2)
        gate.open(0)
        assert [await client.answer(), await client.answer()] == [b"\0\0\0\1slow", b"\0\0\0\2quick"]


async def test_a_request_without_an_answer() -> None:
    gate = Gate()

    def silent(call: Call, body: memoryview) -> None:
        return None

    async with (
        serving(hot(PRODUCE, gate, pipelined=True), hot(FETCH, silent)) as server,
        client_of(server) as client,
    ):
        client.ask(PRODUCE, 0, 1)
        client.ask(FETCH, 0, 2)
        client.ask(18, 0, 3)
        await until(lambda: gate.waiting)
        gate.waiting[0][1].set_result(None)
        assert (await client.answer())[:4] == b"\0\0\0\3"


async def test_a_cold_handler_gets_a_message_and_gives_fields() -> None:
    async def answer(call: Call, request: Message) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"error_code": 27 if request.group_id == "g" else 0}

    async with serving(cold(HEARTBEAT, answer)) as server, client_of(server) as client:
        assert await client.call(HEARTBEAT, 0, heartbeat()) == b"\0\x1b"
        flexible = write_request(HEARTBEAT, 4, {"group_id": "g"})
        assert await client.call(HEARTBEAT, 4, flexible) == b"\0" + b"\0\0\0\0\0\x1b\0"


@pytest.mark.parametrize(
    ("failure", "reason", "level"),
    [
        (CloseConnection("because"), "refused", logging.INFO),
        (TopicNotFound("no such topic"), "failed", logging.ERROR),
        (ZeroDivisionError("a bug"), "failed", logging.ERROR),
    ],
)
async def test_a_handler_that_fails_closes_its_connection_only(
    failure: Exception, reason: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_at_once(call: Call, body: memoryview) -> Buffers:
        raise failure

    async def fail_later(call: Call, request: Message) -> dict[str, Any]:
        await asyncio.sleep(0)
        raise failure

    caplog.set_level(logging.DEBUG, logger="streamhouse.kafka")
    async with serving(hot(FETCH, fail_at_once), cold(HEARTBEAT, fail_later)) as server, client_of(server) as other:
        for key, body in ((FETCH, b""), (HEARTBEAT, heartbeat())):
            async with client_of(server) as client:
                client.ask(18, 0, 1)
                client.ask(key, 0, 2, body)
                client.ask(18, 0, 3)
                assert (await client.answer())[:4] == b"\0\0\0\1"
                assert await client.closed() == b"", "nothing is answered after the failure"
        await other.ping()
        assert server.stats.closed.get(reason, 0) == 2
        assert server.stats.in_flight == 0
    said = [record for record in caplog.records if str(failure) in record.getMessage() or record.exc_info]
    assert {record.levelno for record in said} == {level}
    assert any("heartbeat (12)" in record.getMessage() for record in said)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "this is HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"\x7f\xff\xff\xff", "2147483647 bytes"),
        ((100 * 1024 * 1024 + 1).to_bytes(4, "big"), "raise kafka.max_request_bytes"),
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\0\0\0\0", "0 bytes"),
        (b"\0\0\0\x08\0\x03\0\x0c\0\0\0\x01", "not served"),
        (request_frame(12, 0, 1, "x", b"\0\x09ab"), "malformed heartbeat"),
    ],
)
async def test_garbage_is_recognised_and_closed(data: bytes, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(call: Call, request: Message) -> dict[str, Any]:
        return {}

    caplog.set_level(logging.INFO, logger="streamhouse.kafka")
    async with serving(cold(HEARTBEAT, answer)) as server, client_of(server) as client:
        client.send(data)
        assert await client.closed() == b""
        assert server.stats.connections == 0
    assert said in caplog.text


async def test_a_declared_size_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server, client_of(server) as client:
        client.send((100 * 1024 * 1024).to_bytes(4, "big") + b"x" * 1000)
        connections = server._connections
        assert connections is not None
        await until(lambda: server.stats.bytes_in == 1004)
        await asyncio.sleep(0)
        assert 0 < connections.budget.used_bytes < 10_000


async def test_a_client_that_leaves_ends_what_a_hot_handler_waits_for_and_not_what_a_cold_one_does() -> None:
    gate = Gate()
    went_on = asyncio.Event()
    release = asyncio.Event()

    async def slow(call: Call, request: Message) -> dict[str, Any]:
        await release.wait()
        went_on.set()
        return {}

    async with serving(hot(FETCH, gate), cold(HEARTBEAT, slow)) as server:
        async with client_of(server) as client:
            client.ask(FETCH, 0, 1)
            await until(lambda: gate.waiting)
        await until(lambda: gate.waiting[0][1].cancelled())
        async with client_of(server) as client:
            client.ask(HEARTBEAT, 0, 1, heartbeat())
            await until(lambda: server.stats.in_flight == 1)
        await until(lambda: server.stats.connections == 0)
        release.set()
        await until(went_on.is_set)
        await until(lambda: server.stats.in_flight == 0)
        assert server._connections is not None
        assert server._connections.budget.used_bytes == 0


async def test_frames_behind_a_slow_one_are_read_so_far_and_no_further() -> None:
    gate = Gate()
    async with serving(hot(FETCH, gate)) as server, client_of(server) as client:
        client.ask(FETCH, 0, 0)
        await until(lambda: gate.waiting)
        frame = request_frame(18, 0, 1, None, b"")
        count = 2_000_000 // len(frame)
        sock = client.writer.get_extra_info("socket")
        assert isinstance(sock.family, socket.AddressFamily)
        client.send(frame * count)
        connections = server._connections
        assert connections is not None
        (connection,) = connections.live
        await until(lambda: connection.is_held_back)
        assert connections.budget.used_bytes < 1_000_000
        gate.open(0)
        await client.answer()
        for _ in range(count):
            await client.answer()
        assert not connection.is_held_back
        assert connections.budget.used_bytes == 0
