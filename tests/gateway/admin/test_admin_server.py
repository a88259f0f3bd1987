"""The admin port on a socket: its paths, its limits, its beginning and its end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import ConfigError
from streamhouse.core.settings import Address
from streamhouse.gateway.admin.health import HealthProblem, HealthReport
from streamhouse.gateway.admin.server import AdminLimits, AdminServer

WAIT_S = 60
ANY_PORT = Address(host="127.0.0.1", port=0)


class Fake:
    """Stands in for a process."""

    def __init__(self) -> None:
        self.problems: list[HealthProblem] = []
        self.text = b"# metrics\n"
        self.broken = False
        self.costs: dict[str, object] | None = None

    async def health(self) -> HealthReport:
        if self.broken:
            raise RuntimeError("a bug")
        return HealthReport(process="agent a", problems=self.problems)

    def metrics(self) -> bytes:
        return self.text


@asynccontextmanager
async def served(fake: Fake, **limits: float) -> AsyncIterator[AdminServer]:
    server = AdminServer(
        listen=[ANY_PORT],
        limits=AdminLimits(**limits),  # type: ignore[arg-type]
        clock=ManualClock(wall_ms=1_700_000_060_000),
        health=fake.health,
        metrics=fake.metrics,
        costs=lambda: fake.costs,
    )
    await server.bind()
    await server.open()
    try:
        yield server
    finally:
        await server.close()


async def ask(server: AdminServer, raw: bytes) -> tuple[int, bytes]:
    """Send the bytes; the status and the body of the answer, until the server closes."""
    host, _, port = server.addresses[0].rpartition(":")
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(raw)
            answer = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


async def get(server: AdminServer, path: str) -> tuple[int, bytes]:
    return await ask(server, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())


async def test_each_path_answers() -> None:
    fake = Fake()
    async with served(fake) as server:
        assert await get(server, "/livez") == (200, b'{\n  "state": "alive"\n}\n')
        assert await get(server, "/metrics") == (200, b"# metrics\n")
        status, body = await get(server, "/readyz")
        assert (status, json.loads(body)) == (200, {"state": "ready", "process": "agent a", "problems": []})
        status, body = await get(server, "/")
        assert status == 404
        assert "/livez, /readyz, /metrics, /costs" in json.loads(body)["error"]
        status, body = await get(server, "/costs")
        assert (status, "not open yet" in json.loads(body)["error"]) == (503, True)
        fake.costs = {"requests": {"put": 1}}
        status, body = await get(server, "/costs")
        assert (status, json.loads(body)) == (200, {"requests": {"put": 1}})
        assert await ask(server, b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n") == (200, b"")


async def test_readiness_says_what_is_wrong_since_when_and_what_to_do() -> None:
    fake = Fake()
    small = HealthProblem(what="x", problem="y", since_ms=1_700_000_000_000, what_to_do="z", blocks=False)
    async with served(fake) as server:
        fake.problems = [small]
        status, body = await get(server, "/readyz")
        assert (status, json.loads(body)["state"]) == (200, "degraded")
        fake.problems = [
            HealthProblem(what="x", problem="y", since_ms=1_700_000_000_000, what_to_do="z", blocks=True),
            small,
        ]
        status, body = await get(server, "/readyz")
        said = json.loads(body)
        assert (status, said["state"]) == (503, "not ready")
        assert said["problems"][0] == {
            "what": "x",
            "problem": "y",
            "since": "2023-11-14T22:13:20Z",
            "for_s": 60,
            "what_to_do": "z",
            "blocks": True,
        }


async def test_a_bug_behind_a_path_is_a_500_and_the_port_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    fake = Fake()
    fake.broken = True
    async with served(fake) as server:
        status, body = await get(server, "/readyz")
        assert (status, json.loads(body)) == (500, {"error": "unexpected RuntimeError"})
        assert "/readyz failed; this is a bug" in caplog.text
        assert (await get(server, "/livez"))[0] == 200


async def test_bad_requests_get_an_answer_that_says_why() -> None:
    async with served(Fake(), max_request_bytes=2048, request_timeout_s=0.3) as server:
        assert (await ask(server, b"nonsense\r\n\r\n"))[0] == 400
        assert (await ask(server, b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"))[0] == 405
        status, body = await ask(server, b"GET /livez HTTP/1.1\r\nHost: " + b"a" * 100_000)
        assert status == 431
        assert b"admin.max_request_bytes" in body
        status, body = await ask(server, b"GET /livez HTTP/1.1\r\nHost: a\r\n")
        assert status == 408
        assert b"admin.request_timeout" in body


async def test_a_client_that_leaves_without_a_word_is_no_trouble() -> None:
    async with served(Fake()) as server:
        host, _, port = server.addresses[0].rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
        await writer.wait_closed()
        assert (await get(server, "/livez"))[0] == 200


async def test_more_connections_than_allowed_are_answered_with_503() -> None:
    async with served(Fake(), max_connections=1) as server:
        host, _, port = server.addresses[0].rpartition(":")
        _, silent = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(WAIT_S):
            while not server._under_way:  # noqa: ASYNC110 -- asyncio calls the server when it likes
                await asyncio.sleep(0.01)
        status, body = await get(server, "/livez")
        assert status == 503
        assert b"admin.max_connections" in body
        silent.close()
        await silent.wait_closed()
        async with asyncio.timeout(WAIT_S):
            while (await get(server, "/livez"))[0] != 200:  # noqa: ASYNC110 -- the server sees the end when it likes
                await asyncio.sleep(0.01)


async def test_a_taken_port_is_an_error_that_names_the_setting_and_keeps_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fake = Fake()
        server = AdminServer(
            listen=[ANY_PORT, Address(host="127.0.0.1", port=port)],
            limits=AdminLimits(),
            clock=ManualClock(),
            health=fake.health,
            metrics=fake.metrics,
            costs=lambda: None,
        )
        with pytest.raises(ConfigError, match=f"another process listens on 127.0.0.1:{port}.*--admin-listen"):
            await server.bind()
        assert server._sockets == []
        await server.close()


async def test_close_ends_connections_and_may_be_called_again() -> None:
    async with served(Fake()) as server:
        host, _, port = server.addresses[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await server.close()
        await server.close()
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
