"""A proxy that loses produce requests and their answers, to see whether a retried batch is written once.

It reads the frames of both directions, so that it knows which answer belongs to which request. Of every three produce
requests the answer of the first is lost, after the broker wrote the batch; the second never reaches the broker; the
third passes. Whenever something is lost, the connection is too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
import threading
from types import TracebackType
from typing import Self

from streamhouse.testing.services.ports import LOOPBACK

_PRODUCE = 0
_MAX_FRAME_BYTES = 100 * 1024 * 1024


class LossyProxy:
    """Listens in a thread of its own. Set ``upstream_port`` before the first client comes."""

    def __init__(self) -> None:
        self.upstream_port = 0
        self.lost_requests = 0
        self.lost_answers = 0
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, LOOPBACK, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _call(self, coroutine):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        async def stop() -> None:
            self._server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_writer: asyncio.StreamWriter | None = None
        doomed: set[int] = set()
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(LOOPBACK, self.upstream_port)
            ways = [
                asyncio.create_task(self._requests(reader, upstream_writer, doomed)),
                asyncio.create_task(self._answers(upstream_reader, writer, doomed)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, upstream_writer):
                if end is not None:
                    end.close()
                    with contextlib.suppress(OSError):
                        await end.wait_closed()

    async def _requests(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, doomed: set[int]) -> None:
        while True:
            frame = await _frame(source)
            api, _, correlation = struct.unpack_from(">hhi", frame, 4)
            if api == _PRODUCE:
                turn = next(self._turn) % 3
                if turn == 0:
                    doomed.add(correlation)
                if turn == 1:
                    self.lost_requests += 1
                    return
            to.write(frame)
            await to.drain()

    async def _answers(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, doomed: set[int]) -> None:
        while True:
            frame = await _frame(source)
            (correlation,) = struct.unpack_from(">i", frame, 4)
            if correlation in doomed:
                self.lost_answers += 1
                return
            to.write(frame)
            await to.drain()


async def _frame(source: asyncio.StreamReader) -> bytes:
    head = await source.readexactly(4)
    (length,) = struct.unpack(">i", head)
    if not 4 <= length <= _MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {length} bytes")
    return head + await source.readexactly(length)
