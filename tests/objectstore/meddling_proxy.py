"""An HTTP proxy on the loopback that meddles with chosen requests on their way to a real S3 server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_IF_NONE_MATCH = re.compile(rb"\r\nif-none-match:[^\r]*", re.IGNORECASE)
_MAX_HEAD_BYTES = 64 * 1024


class Meddling(Enum):
    PASS = auto()
    ANSWER_503 = auto()
    LOSE_REQUEST = auto()
    LOSE_REPLY = auto()
    CUT_REPLY = auto()
    FORGET_CONDITION = auto()  # where the header is not signed
    ALLOW_ALL = auto()


Decide = Callable[[str, str], Meddling]
"""Called with method and target."""


class MeddlingProxy:
    def __init__(self, upstream_url: str, decide: Decide) -> None:
        self._host, self._port = urlsplit(upstream_url).hostname, urlsplit(upstream_url).port
        self._decide = decide
        self.seen: list[tuple[str, str]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with _closing(writer):
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._exchange(reader, writer):
                    pass

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target = head.split(b" ", 2)[0].decode(), head.split(b" ", 2)[1].decode()
        body = await reader.readexactly(_content_length(head))
        self.seen.append((method, target))
        meddling = self._decide(method, target)
        if meddling is Meddling.ANSWER_503:
            writer.write(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
            return True
        if meddling is Meddling.LOSE_REQUEST:
            return False
        if meddling is Meddling.FORGET_CONDITION:
            head = _IF_NONE_MATCH.sub(b"", head)
        reply = await self._forward(head, body)
        if meddling is Meddling.ALLOW_ALL and reply.startswith(b"HTTP/1.1 412"):
            reply = b'HTTP/1.1 200 OK\r\netag: "1"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n'
        if meddling is Meddling.LOSE_REPLY:
            return False
        if meddling is Meddling.CUT_REPLY:
            writer.write(reply[: len(reply) - 10])
            await writer.drain()
            return False
        writer.write(reply)
        await writer.drain()
        return False

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        """Forward it on a connection of its own, which the server closes: the reply ends where the connection does."""
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=_MAX_HEAD_BYTES)
        line, rest = head.split(b"\r\n", 1)
        async with _closing(writer):
            writer.write(line + b"\r\nConnection: close\r\n" + rest + body)
            await writer.drain()
            return await reader.read(-1)


@asynccontextmanager
async def meddling_proxy(upstream_url: str, decide: Decide) -> AsyncIterator[MeddlingProxy]:
    proxy = MeddlingProxy(upstream_url, decide)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def _content_length(head: bytes) -> int:
    match = _LENGTH.search(head)
    return int(match[1]) if match else 0
