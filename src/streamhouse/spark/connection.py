"""The two stores, for the plain functions that Spark calls: an event loop in a thread, once per process.

Spark keeps its Python workers, so the next task uses what an earlier one has opened. A forked worker opens its own
connections: neither threads nor sockets survive a fork.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, ParamSpec, TypeVar

from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.errors import MetadataUnavailable, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import Randomness, SystemRandomness
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import MetadataStore
from streamhouse.metadata.opening import open_metadata
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.opening import open_store
from streamhouse.objectstore.retries import RetryingStore, RetryPolicy
from streamhouse.spark.address import StoreAddress

P = ParamSpec("P")
T = TypeVar("T")

_TIMEOUT_S: Final = 300.0
"""A backstop: the stores give up by themselves long before."""
_CLOSE_TIMEOUT_S: Final = 5.0


def one_line(call: Callable[P, T]) -> Callable[P, T]:
    """Decorates what Spark calls: an error of ours is shown as one line. Other errors keep their frames."""

    @functools.wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except StreamHouseError:
            # PySpark's own switch. This process is a Python worker, which ends with this error.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return wrapped


class Connection:
    """Opens each store at its first use: most tasks never need the metadata."""

    def __init__(
        self, address: StoreAddress, *, clock: Clock | None = None, randomness: Randomness | None = None
    ) -> None:
        self.address = address
        self.clock = clock or SystemClock()
        self.randomness = randomness or SystemRandomness()
        self._loop = asyncio.new_event_loop()
        self._opening = asyncio.Lock()
        self._metadata: MetadataStore | None = None
        self._objects: ObjectStore | None = None
        self._reader: LogReader | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamhouse-spark", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T], *, timeout_s: float = _TIMEOUT_S) -> T:
        """Await ``call`` on the connection's loop; its result, or its error, here."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if not future.cancel() and future.done():  # it ended in time, or a moment later: with a result, or an error
                return future.result()
            raise MetadataUnavailable(f"no answer from the stores within {timeout_s:.0f} s") from None

    def spawn(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``call`` on the connection's loop; cancelling the future ends it."""
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    async def metadata(self) -> MetadataStore:
        async with self._opening:
            if self._metadata is None:
                store = open_metadata(self.address.metadata_url, clock=self.clock, randomness=self.randomness)
                await store.open()
                self._metadata = store
            return self._metadata

    async def objects(self) -> ObjectStore:
        async with self._opening:
            if self._objects is None:
                bare = await open_store(
                    self.address.store_url, clock=self.clock, randomness=self.randomness, options=self.address.store
                )
                policy = RetryPolicy(
                    deadline_ms=self.address.retry_deadline_ms, attempt_timeout_ms=self.address.request_timeout_ms
                )
                self._objects = RetryingStore(bare, clock=self.clock, randomness=self.randomness, policy=policy)
            return self._objects

    async def offset_for_time(self, key: PartitionKey, timestamp_ms: int) -> int | None:
        """The first record at or after a time; None when there is none yet."""
        if self._reader is None:
            self._reader = LogReader(
                metadata=await self.metadata(),
                store=await self.objects(),
                tail=TailCache(0),
                leading=None,
                clock=self.clock,
                options=ReaderOptions(block_cache_bytes=16 * MIB, read_ahead_bytes=0),
            )
        found = await self._reader.offset_for_timestamp(key, timestamp_ms)
        return None if found is None else found.offset

    def close(self) -> None:
        """Close the stores; a second call does nothing."""
        if self._loop.is_closed():
            return
        self.run(self._close(), timeout_s=_CLOSE_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._loop.close()

    async def _close(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        reader, self._reader = self._reader, None
        objects, self._objects = self._objects, None
        metadata, self._metadata = self._metadata, None
        if reader is not None:
            await reader.close()
        if objects is not None:
            await objects.close()
        if metadata is not None:
            await metadata.close()


_connections: dict[StoreAddress, Connection] = {}
_inherited: list[Connection] = []
_guard = threading.Lock()


def connect(address: StoreAddress) -> Connection:
    """This process's connection to ``address``."""
    with _guard:
        found = _connections.get(address)
        if found is None:
            found = _connections[address] = Connection(address)
        return found


def close_connections() -> None:
    """Close all connections of this process. The next ``connect`` opens new ones."""
    with _guard:
        connections = list(_connections.values())
        _connections.clear()
    for connection in connections:
        connection.close()


def _forget_connections() -> None:
    """Called in a forked child. The connections are kept and not closed: they belong to the parent."""
    global _guard
    _guard = threading.Lock()  # the parent may have been holding it
    _inherited.extend(_connections.values())
    _connections.clear()


os.register_at_fork(after_in_child=_forget_connections)
