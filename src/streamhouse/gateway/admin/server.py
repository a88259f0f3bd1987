"""The admin port: health and metrics over HTTP, for orchestrators, Prometheus and `streamhouse status`.

    /livez      200 while the event loop runs; restart the process when it does not answer
    /readyz     200 or 503, and in JSON what is wrong, since when, and what to do (health.py)
    /metrics    the metrics of the process in Prometheus' text format (core/metrics.py)
    /costs      its requests to the object store by topic, in JSON, for `streamhouse cost`; 503 before the store is open

A front end as gateway/front_end.py has it, with one difference: a process opens it first and closes it last, so that it
can say "it starts" and "it stops". It reads and changes nothing but what it is given.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from streamhouse.broker.nodes import Endpoint
from streamhouse.core.clock import Clock
from streamhouse.core.metrics import CONTENT_TYPE
from streamhouse.core.settings import Address
from streamhouse.gateway.admin.health import HealthReport
from streamhouse.gateway.admin.http import HEAD_END, BadRequest, Request, Response, as_json, encode, parse_head, refusal
from streamhouse.gateway.listening import bound_sockets, cannot_listen

_FLAG: Final = "--admin-listen"
_BACKLOG: Final = 128
_GRACE_S: Final = 1.0
"""How long answers under way may take when the process stops."""

_LINGER_BYTES: Final = 1024 * 1024
"""How much of a request that was refused is still read."""

_log = logging.getLogger("streamhouse.admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminLimits:
    max_connections: int = 64
    max_request_bytes: int = 16 * 1024
    request_timeout_s: float = 10.0


class AdminServer:
    def __init__(
        self,
        *,
        listen: Sequence[Address],
        limits: AdminLimits,
        clock: Clock,
        health: Callable[[], Awaitable[HealthReport]],
        metrics: Callable[[], bytes],
        costs: Callable[[], Mapping[str, object] | None],
    ) -> None:
        """``costs``: None while there is nothing to count yet."""
        self._listen = list(listen)
        self._limits = limits
        self._clock = clock
        self._health = health
        self._metrics = metrics
        self._costs = costs
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._routes: Mapping[str, Callable[[], Awaitable[Response]]] = {
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/metrics": self._scrape,
            "/costs": self._say_costs,
        }

    @property
    def addresses(self) -> list[str]:
        return [str(address) for address in self._listen]

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        return {f"http-{n}": Endpoint(host=each.host, port=each.port) for n, each in enumerate(self._listen)}

    async def bind(self) -> None:
        try:
            for index, address in enumerate(self._listen):
                found = await bound_sockets(address.host, address.port, flag=_FLAG)
                self._sockets += found
                self._listen[index] = Address(host=address.host, port=found[0].getsockname()[1])
        except BaseException:
            self._close_sockets()
            raise

    async def open(self) -> None:
        for bound in self._sockets:
            try:
                server = await asyncio.start_server(
                    self._connected, sock=bound, limit=self._limits.max_request_bytes, backlog=_BACKLOG
                )
            except OSError as error:
                await self.close()
                host, port, *_ = bound.getsockname()
                raise cannot_listen(host, port, error, flag=_FLAG) from error
            self._servers.append(server)
        self._sockets.clear()

    async def drain(self) -> None:
        for server in self._servers:
            server.close()
        self._close_sockets()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_GRACE_S)

    async def close(self) -> None:
        await self.drain()
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._servers.clear()

    def _close_sockets(self) -> None:
        for bound in self._sockets:
            bound.close()
        self._sockets.clear()

    # Connections.

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called by asyncio. The task is ours, so that ``close`` can end it."""
        task = asyncio.create_task(self._serve(reader, writer), name="admin-request")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError):  # the client has gone, or is too slow
                async with asyncio.timeout(2 * self._limits.request_timeout_s):
                    answer = await self._answer(reader)
                    writer.write(answer)
                    await writer.drain()
                    await _linger(reader, writer)
        finally:
            writer.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _GRACE_S)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request and return the answer, which is empty if the client has gone without a request."""
        try:
            if len(self._under_way) > self._limits.max_connections:
                raise BadRequest(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"{self._limits.max_connections} clients are connected; see admin.max_connections",
                )
            request = parse_head(await self._head(reader))
            response = await self._respond(request)
        except BadRequest as error:
            return encode(refusal(error))
        except EOFError:
            return b""
        return encode(response, head_only=request.method == "HEAD")

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                return await reader.readuntil(HEAD_END)
        except asyncio.LimitOverrunError:
            raise BadRequest(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request is larger than {self._limits.max_request_bytes} bytes; see admin.max_request_bytes",
            ) from None
        except TimeoutError:
            raise BadRequest(
                HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time; see admin.request_timeout"
            ) from None
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise BadRequest(HTTPStatus.BAD_REQUEST, "the request ends before its empty line") from None
            raise EOFError from None

    async def _respond(self, request: Request) -> Response:
        route = self._routes.get(request.path)
        if route is None:
            known = ", ".join(self._routes)
            raise BadRequest(HTTPStatus.NOT_FOUND, f"there is no such path; this port has {known}")
        try:
            return await route()
        except Exception as error:
            _log.exception("%s failed; this is a bug", request.path)
            return as_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": f"unexpected {type(error).__name__}"})

    # Routes.

    async def _livez(self) -> Response:
        return as_json(HTTPStatus.OK, {"state": "alive"})

    async def _readyz(self) -> Response:
        report = await self._health()
        status = HTTPStatus.OK if report.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return as_json(status, report.as_json(now_ms=self._clock.wall_ms()))

    async def _scrape(self) -> Response:
        return Response(status=HTTPStatus.OK, body=self._metrics(), content_type=CONTENT_TYPE)

    async def _say_costs(self) -> Response:
        costs = self._costs()
        if costs is None:
            return as_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "the object store is not open yet; ask again"})
        return as_json(HTTPStatus.OK, costs)


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the client closes too. To close a socket that has unread bytes resets the connection, and the client
    of a request that was too large would not see why."""
    writer.write_eof()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            left = _LINGER_BYTES
            while left > 0 and (more := await reader.read(min(left, 65_536))):
                left -= len(more)
