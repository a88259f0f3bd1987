"""One call for many waiters, many questions in one call, a bound on the bytes of running calls, and an LRU cache.

Each belongs to one event loop. A waiter may be cancelled without harm to the others: the call goes on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Generic, TypeVar

from streamhouse.core.errors import StoreUnavailable
from streamhouse.core.tasks import retrieve

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedCalls(Generic[K, V]):
    """Keeps at most one running call for each key; callers that come meanwhile wait for the same answer."""

    def __init__(self) -> None:
        self._flights: dict[K, asyncio.Future[V]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    async def get(self, key: K, call: Callable[[], Awaitable[V]]) -> V:
        """The answer of the call that runs for ``key``, or of this one."""
        if self._closed:
            raise _closing()
        if key not in self._flights:

            async def one() -> Sequence[V | Exception]:
                return [await call()]

            self.start([key], one)
        return await asyncio.shield(self._flights[key])

    def start(self, keys: Sequence[K], call: Callable[[], Awaitable[Sequence[V | Exception]]]) -> asyncio.Task[None]:
        """Start one call that answers for all of ``keys``, in their order; no call may run for any of them.

        An exception among the answers is the error of its key alone. The task never fails: errors go to the callers of
        ``get``.
        """
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[V]] = []
        for key in keys:
            assert key not in self._flights
            future: asyncio.Future[V] = loop.create_future()
            future.add_done_callback(retrieve)
            self._flights[key] = future
            futures.append(future)
        task = asyncio.create_task(self._run(keys, futures, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel the running calls. Their waiters get an error, and so do later callers."""
        self._closed = True
        await _cancel_all(self._tasks)

    async def _run(
        self,
        keys: Sequence[K],
        futures: Sequence[asyncio.Future[V]],
        call: Callable[[], Awaitable[Sequence[V | Exception]]],
    ) -> None:
        try:
            answers = await call()
        except BaseException as error:
            self._end(keys)
            _fail(futures, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._end(keys)
            for future, answer in zip(futures, answers, strict=True):
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _end(self, keys: Sequence[K]) -> None:
        for key in keys:
            del self._flights[key]


class Batched(Generic[K, V]):
    """Questions that are asked at the same time, or while earlier calls run, share one call.

    Every answer comes from a call that began after its question was asked (R16). While ``max_calls`` run, questions
    wait for one of them to end.
    """

    def __init__(
        self, call: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]], *, max_keys: int = 1000, max_calls: int = 4
    ) -> None:
        self._call = call
        self._max_keys = max_keys
        self._max_calls = max_calls
        self._asked: dict[K, asyncio.Future[V]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_is_due = False
        self._closed = False

    def ask(self, key: K) -> asyncio.Future[V]:
        """A future that all callers with this key share; shield it."""
        future = self._asked.get(key)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._asked[key] = loop.create_future()
            future.add_done_callback(retrieve)
            if self._closed:
                self._asked.pop(key).set_exception(_closing())
            elif not self._pump_is_due:
                self._pump_is_due = True
                loop.call_soon(self._pump)
        return future

    async def get(self, key: K) -> V:
        return await asyncio.shield(self.ask(key))

    async def close(self) -> None:
        """Cancel the running calls; waiters and later callers get an error."""
        self._closed = True
        await _cancel_all(self._tasks)
        left, self._asked = self._asked, {}
        _fail(list(left.values()), asyncio.CancelledError())

    def _pump(self) -> None:
        self._pump_is_due = False
        while self._asked and len(self._tasks) < self._max_calls:
            keys = list(islice(self._asked, self._max_keys))
            futures = [self._asked.pop(key) for key in keys]
            task = asyncio.create_task(self._run(keys, futures))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._pump()

    async def _run(self, keys: Sequence[K], futures: Sequence[asyncio.Future[V]]) -> None:
        try:
            answers = await self._call(keys)
            for key, future in zip(keys, futures, strict=True):
                future.set_result(answers[key])
        except BaseException as error:
            _fail(futures, error)
            if not isinstance(error, Exception):
                raise


class ByteGate:
    """Limits the number and the total bytes of calls that run at a time; first come, first served.

    A call that is larger than the whole limit runs alone.
    """

    def __init__(self, *, max_bytes: int, max_calls: int) -> None:
        self._max_bytes = max_bytes
        self._max_calls = max_calls
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        self.bytes_under_way = 0
        self.calls_under_way = 0

    @asynccontextmanager
    async def admit(self, size_bytes: int) -> AsyncIterator[None]:
        if self._queue or not self._fits(size_bytes):
            await self._wait(size_bytes)
        else:
            self._enter(size_bytes)
        try:
            yield
        finally:
            self._leave(size_bytes)

    async def _wait(self, size_bytes: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, size_bytes))
        try:
            await turn
        except BaseException:
            if not turn.cancelled():
                self._leave(size_bytes)  # admitted and cancelled at the same moment
            else:
                self._admit_next()  # it may have been the one that was too large and blocked the others
            raise

    def _fits(self, size_bytes: int) -> bool:
        if not self.calls_under_way:
            return True
        return self.calls_under_way < self._max_calls and self.bytes_under_way + size_bytes <= self._max_bytes

    def _enter(self, size_bytes: int) -> None:
        self.calls_under_way += 1
        self.bytes_under_way += size_bytes

    def _leave(self, size_bytes: int) -> None:
        self.calls_under_way -= 1
        self.bytes_under_way -= size_bytes
        self._admit_next()

    def _admit_next(self) -> None:
        while self._queue:
            turn, size_bytes = self._queue[0]
            if not turn.cancelled():
                if not self._fits(size_bytes):
                    return
                self._enter(size_bytes)
                turn.set_result(None)
            self._queue.popleft()


class ByteLru(Generic[K, V]):
    """A cache with a bound in bytes. The least recently used item goes first. Pure."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        """Whether the key is cached. Asking does not count as a use."""
        return key in self._items

    def get(self, key: K) -> V | None:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def demote(self, key: K) -> None:
        """Make it the next one to be evicted."""
        if key in self._items:
            self._items.move_to_end(key, last=False)

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """An item larger than the whole cache is not kept, and evicts nothing."""
        self.drop(key)
        if size_bytes > self._max_bytes:
            return
        self._items[key] = (value, size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._max_bytes:
            _, (_, freed) = self._items.popitem(last=False)
            self._bytes -= freed

    def drop(self, key: K) -> None:
        found = self._items.pop(key, None)
        if found is not None:
            self._bytes -= found[1]


def _fail(futures: Sequence[asyncio.Future[V]], error: BaseException) -> None:
    # A cancelled call must not look to its waiters as if they were cancelled themselves.
    told = error if isinstance(error, Exception) else _closing()
    for future in futures:
        if not future.done():
            future.set_exception(told)


def _closing() -> StoreUnavailable:
    return StoreUnavailable("the reader is closing", hint="read again, from another agent or later")


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    pending = list(tasks)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
