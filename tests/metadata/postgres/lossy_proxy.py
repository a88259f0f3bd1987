"""A TCP proxy in front of PostgreSQL that counts round trips, loses replies as a bad network does, and holds a client
up as a suspended process would be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

STARTUP_BYTES = 4  # the first message of a connection has a length and no type


class LossyProxy:
    """``dsn`` leads through it to the server behind."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.dsn = ""
        self.syncs = 0
        """How often a client asked the server to answer: its round trips."""
        self.lose_reply_to: bytes | None = None
        """The answer to the next statement that holds this text is swallowed, and its connection dropped …"""
        self.after_replies = 0
        """… once so many of them have been answered."""
        self.lost = 0
        self.suspend_after: bytes | None = None
        """Nothing passes any more, in either direction, once a statement that holds this text was prepared or run …"""
        self.suspended = asyncio.Event()
        self.resumed = asyncio.Event()
        """… until this is set."""
        self.prepared_in_transactions: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        doomed = asyncio.Event()
        pumps = [
            asyncio.create_task(self._requests(reader, server_writer, doomed)),
            asyncio.create_task(self._replies(server_reader, writer, doomed)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for side in (writer, server_writer):
                side.transport.abort()
            del self._connections[task]

    async def _requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        # SSLRequest and startup have no type byte; trust authentication sends nothing more before ordinary messages.
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                length = await reader.readexactly(STARTUP_BYTES)
                body = await reader.readexactly(int.from_bytes(length, "big") - STARTUP_BYTES)
                server.write(length + body)
                if body[:4] != (80877103).to_bytes(4, "big"):
                    break
            statements: dict[bytes, bytes] = {}
            executed: bytes | None = None
            latest = b""
            in_transaction = False
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
                if head[:1] == b"P":
                    name, text = body.split(b"\0", 2)[:2]
                    statements[name] = text
                    latest = text
                elif head[:1] == b"B":
                    executed = statements.get(body.split(b"\0", 2)[1])
                    latest = executed or b""
                elif head[:1] == b"Q":
                    executed = latest = body
                    in_transaction = body.startswith(b"BEGIN")
                elif head[:1] == b"H" and in_transaction:
                    self.prepared_in_transactions.append(latest)
                if head[:1] in b"SQ":
                    self.syncs += 1
                    if self._loses_reply_to(executed):
                        doomed.set()
                    executed = None
                await self._pass()
                server.write(head + body)
                await server.drain()
                if head[:1] in b"HS" and self.suspend_after is not None and self.suspend_after in latest:
                    self.suspend_after = None
                    self.suspended.set()

    async def _pass(self) -> None:
        """A suspended process neither sends nor hears anything, not even that a connection has ended."""
        if self.suspended.is_set():
            await self.resumed.wait()

    def _loses_reply_to(self, executed: bytes | None) -> bool:
        if executed is None or self.lose_reply_to is None or self.lose_reply_to not in executed:
            return False
        if self.after_replies > 0:
            self.after_replies -= 1
            return False
        self.lose_reply_to = None
        return True

    async def _replies(self, server: asyncio.StreamReader, client: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(65536):
                if doomed.is_set():
                    # The server has answered, so whatever it was asked to commit is committed.
                    self.lost += 1
                    return
                await self._pass()
                client.write(data)
                await client.drain()
            await self._pass()

    async def stop(self) -> None:
        tasks = list(self._connections)
        for writer in self._connections.values():
            writer.transport.abort()
        await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def lossy_proxy(dsn: str) -> AsyncIterator[LossyProxy]:
    url = urlsplit(dsn)
    assert url.hostname is not None
    assert url.port is not None
    proxy = LossyProxy(url.hostname, url.port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    proxy.dsn = urlunsplit(url._replace(netloc=f"{url.username}@127.0.0.1:{port}"))
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()
