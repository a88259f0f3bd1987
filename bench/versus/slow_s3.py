"""A proxy that passes an S3 server's answers on a given time later, as if the server were further away.

Each connection's bytes stay in order, and several may be under way: it adds latency and takes no throughput.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

_CHUNK = 256 * 1024


@contextlib.contextmanager
def delayed(port: int, delay_ms: float) -> Iterator[int]:
    """The port of a proxy in front of 127.0.0.1:``port``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="slow-s3", daemon=True)
    thread.start()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(asyncio.CancelledError):  # the proxy ends
            await asyncio.gather(_pass_on(reader, back, 0.0), _pass_on(there, writer, delay_ms / 1000))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def _end(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float) -> None:
    time = asyncio.get_running_loop().time
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

    async def send() -> None:
        while True:
            due, data = await waiting.get()
            if due > time():
                await asyncio.sleep(due - time())
            if not data:
                break
            target.write(data)
            await target.drain()
        target.close()

    sender = asyncio.create_task(send())
    with contextlib.suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            await waiting.put((time() + delay_s, data))
    await waiting.put((time() + delay_s, b""))
    with contextlib.suppress(ConnectionError):
        await sender
