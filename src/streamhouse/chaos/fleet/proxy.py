"""A TCP proxy in front of a store, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, Final

_CHUNK_BYTES: Final = 65536
_CALL_S: Final = 10.0
_HOST: Final = "127.0.0.1"


class ProxyMode(StrEnum):
    PASS = "pass"
    CUT = "cut"
    """The proxy closes its open connections once, and lets new ones pass."""
    REFUSE = "refuse"
    """The proxy closes its open connections, and closes every new one at once."""
    HOLD = "hold"
    """The proxy keeps and accepts connections, and forwards nothing in either direction."""


class Proxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._mode = ProxyMode.PASS
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._open = asyncio.Event()
        self._open.set()
        server = self._call(asyncio.start_server(self._serve, _HOST, 0))
        self._server: asyncio.Server = server
        self.port: int = server.sockets[0].getsockname()[1]

    def set_mode(self, mode: ProxyMode) -> None:
        self._call(self._change(mode))

    def stop(self) -> None:
        with contextlib.suppress(TimeoutError):
            self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    async def _change(self, mode: ProxyMode) -> None:
        self._mode = mode
        if mode in (ProxyMode.CUT, ProxyMode.REFUSE):
            for writer in list(self._writers):
                writer.transport.abort()
        if mode is ProxyMode.HOLD:
            self._open.clear()
        else:
            self._open.set()

    async def _end(self) -> None:
        self._server.close()
        await self._change(ProxyMode.REFUSE)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        self._writers.add(writer)
        try:
            if self._mode is ProxyMode.REFUSE:
                return
            await self._open.wait()
            store, upstream = await asyncio.open_connection(_HOST, self._target_port)
            self._writers.add(upstream)
            await asyncio.gather(self._pump(reader, upstream), self._pump(store, writer))
        except (OSError, asyncio.CancelledError):
            return
        finally:
            for each in (writer, upstream):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK_BYTES):
            await self._open.wait()
            sink.write(data)
            await sink.drain()
        raise ConnectionResetError  # one side has closed: so do both
