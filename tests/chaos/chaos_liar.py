"""A proxy before a Kafka broker that lies: now and then it swallows a produce request and says that it was written.

The answer it gives is the last real one of the same connection, under the swallowed request's number.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

_PRODUCE = 0
_FIRST_FLEXIBLE = 9
_EVERY = 15


class LiarProxy:
    """Listens in a thread of its own; ``lies`` counts the requests that were swallowed."""

    def __init__(self) -> None:
        self.upstream_port = 0
        self.lies = 0
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def stop() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            broker, upstream = await asyncio.open_connection("127.0.0.1", self.upstream_port)
            produces: set[int] = set()
            truths: list[bytes] = []
            await asyncio.gather(
                self._requests(reader, upstream, writer, produces, truths),
                self._answers(broker, writer, produces, truths),
            )
        except (OSError, EOFError):
            return
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        produces: set[int],
        truths: list[bytes],
    ) -> None:
        while True:
            frame = await _frame(reader)
            number = struct.unpack_from(">i", frame, 4)[0]
            if _wants_all(frame):
                self._turn += 1
                if truths and self._turn % _EVERY == 0:
                    self.lies += 1
                    _send(writer, struct.pack(">i", number) + truths[-1])
                    continue
                produces.add(number)
            _send(upstream, frame)
            await upstream.drain()

    async def _answers(
        self, broker: asyncio.StreamReader, writer: asyncio.StreamWriter, produces: set[int], truths: list[bytes]
    ) -> None:
        while True:
            frame = await _frame(broker)
            number = struct.unpack_from(">i", frame)[0]
            if number in produces:
                produces.discard(number)
                truths[:] = [frame[4:]]
            _send(writer, frame)
            await writer.drain()


def _wants_all(frame: bytes) -> bool:
    """Whether this is a produce request of librdkafka's with acks=all."""
    key, version, _, length = struct.unpack_from(">hhih", frame)
    if key != _PRODUCE:
        return False
    at = 10 + max(length, 0)
    if version >= _FIRST_FLEXIBLE:
        at += 1  # the header's tags: none
        return frame[at] == 0 and struct.unpack_from(">h", frame, at + 1)[0] == -1
    (transactional,) = struct.unpack_from(">h", frame, at)
    return bool(struct.unpack_from(">h", frame, at + 2 + max(transactional, 0))[0] == -1)


def _send(writer: asyncio.StreamWriter, frame: bytes) -> None:
    with contextlib.suppress(OSError):
        writer.write(struct.pack(">i", len(frame)) + frame)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)
