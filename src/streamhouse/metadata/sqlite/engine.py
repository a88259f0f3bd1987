"""Where steps run: on threads beside the event loop, or inline on it.

Threaded: one writer connection in one thread (SQLite admits one writer anyway) and a few reader connections in others,
so that reads never wait behind an fsync. Writes that arrive while a transaction runs share the next one.

Inline, for the simulator: every call runs to its end on the event loop. No thread, no real time, nothing that two runs
could do differently.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from streamhouse.core.errors import MetadataError
from streamhouse.metadata.contract import Change
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.connections import FAILURES, MEMORY, connect, translated
from streamhouse.metadata.sqlite.transactions import Job, Tx, run_jobs, run_read

T = TypeVar("T")
Prepare = Callable[[sqlite3.Connection], None]

_BUSY_TIMEOUT_MS: Final = 250  # SQLite's own waiting, in the thread; beyond it the shell backs off with jitter
_READERS: Final = 4  # reads are short and hold the interpreter lock most of the time: more threads gain nothing
_MAX_GROUP: Final = 256  # steps that share a transaction: bounds how long the first of them waits
_MAX_CALLS: Final = 4096  # handed to the threads at a time; further callers wait for their turn


class Engine(ABC):
    """Runs steps. ``write`` and ``read`` raise Busy when another process holds the lock: the caller tries again."""

    def __init__(self, path: str, clock: StoreClock, publish: Callable[[Change], None]) -> None:
        self._path = path
        self._clock = clock
        self._publish = publish
        self._connection: sqlite3.Connection | None = None

    @abstractmethod
    async def start(self, prepare: Prepare) -> None:
        """Connect, then ``prepare`` the file on the writer's connection. Leaves nothing behind when it raises."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop after the calls under way have ended. A second call does nothing."""

    @abstractmethod
    async def write(self, step: Callable[[Tx], T]) -> T: ...

    @abstractmethod
    async def read(self, step: Callable[[Tx], T]) -> T: ...

    @abstractmethod
    async def data_version(self) -> int | None:
        """A number that changes when another *process* has written; None where that cannot be."""

    def _connect_writer(self, prepare: Prepare, busy_timeout_ms: int) -> sqlite3.Connection:
        connection = connect(self._path, busy_timeout_ms=busy_timeout_ms)
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _writer_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise self._not_open()
        return self._connection

    def _not_open(self) -> MetadataError:
        return MetadataError(f"the metadata in {self._path} is not open", hint="open it first")

    def _tell(self, job: Job[Any]) -> None:
        for change in job.changes:
            self._publish(change)


class InlineEngine(Engine):
    async def start(self, prepare: Prepare) -> None:
        self._connection = self._connect_writer(prepare, busy_timeout_ms=0)

    async def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def write(self, step: Callable[[Tx], T]) -> T:
        job = Job(step)
        run_jobs(self._writer_connection(), self._clock, [job], self._path)
        self._tell(job)
        return job.outcome()

    async def read(self, step: Callable[[Tx], T]) -> T:
        return run_read(self._writer_connection(), self._clock, step, self._path)

    async def data_version(self) -> int | None:
        return None


class ThreadedEngine(Engine):
    """Belongs to the event loop it was started on; only that loop touches its queue, so it needs no lock."""

    def __init__(self, path: str, clock: StoreClock, publish: Callable[[Change], None]) -> None:
        super().__init__(path, clock, publish)
        self._writer: ThreadPoolExecutor | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._idle: SimpleQueue[sqlite3.Connection] = SimpleQueue()
        self._waiting: deque[tuple[Job[Any], asyncio.Future[None]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(_MAX_CALLS)
        self._stopping = False

    async def start(self, prepare: Prepare) -> None:
        self._stopping = False
        writer = ThreadPoolExecutor(1, thread_name_prefix="metadata-writer")
        loop = asyncio.get_running_loop()
        try:
            self._connection = await loop.run_in_executor(writer, self._connect_writer, prepare, _BUSY_TIMEOUT_MS)
            self._writer = writer
            if self._path != MEMORY:  # a private database in memory has one connection, which serves the reads too
                self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="metadata-reader")
                for _ in range(_READERS):
                    self._idle.put(await loop.run_in_executor(self._readers, self._connect_reader))
        except BaseException:
            writer.shutdown(wait=False)
            await self.stop()
            raise

    async def stop(self) -> None:
        self._stopping = True
        while self._pump is not None:
            await asyncio.wait([self._pump])
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        for pool in (readers, writer):
            if pool is not None:
                pool.shutdown(wait=True)
        while not self._idle.empty():
            self._idle.get().close()
        if self._connection is not None:
            self._connection.close()  # last, so that it is the one to fold the log into the file
            self._connection = None

    async def write(self, step: Callable[[Tx], T]) -> T:
        job = Job(step)
        async with self._room:
            self._check_open()
            done = asyncio.get_running_loop().create_future()
            self._waiting.append((job, done))
            if self._pump is None:
                self._pump = asyncio.create_task(self._run_waiting())
            await done
        return job.outcome()

    async def _run_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        group: list[tuple[Job[Any], asyncio.Future[None]]] = []
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_GROUP))]
                jobs = [job for job, _ in group]
                connection = self._writer_connection()
                await loop.run_in_executor(self._writer, run_jobs, connection, self._clock, jobs, self._path)
                for job, done in group:
                    self._tell(job)
                    if not done.done():  # else its caller was cancelled
                        done.set_result(None)
        finally:
            self._pump = None
            for _, done in (*group, *self._waiting):  # any that is not done now: the event loop is being torn down
                done.cancel()

    async def read(self, step: Callable[[Tx], T]) -> T:
        if self._readers is None:
            return await self.write(step)
        async with self._room:
            self._check_open()
            return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, step)

    async def data_version(self) -> int | None:
        # Asked on the writer's connection: there it ignores our own commits, which subscribers hear of anyway.
        self._check_open()
        connection = self._writer_connection()
        return await asyncio.get_running_loop().run_in_executor(self._writer, _data_version, connection, self._path)

    def _check_open(self) -> None:
        if self._stopping or self._connection is None:
            raise self._not_open()

    def _connect_reader(self) -> sqlite3.Connection:
        return connect(self._path, busy_timeout_ms=_BUSY_TIMEOUT_MS, read_only=True)

    def _read(self, step: Callable[[Tx], T]) -> T:
        connection = self._idle.get()
        try:
            return run_read(connection, self._clock, step, self._path)
        finally:
            self._idle.put(connection)


def _data_version(connection: sqlite3.Connection, where: str) -> int:
    try:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
    except FAILURES as error:
        raise translated(error, where) from error
    return int(version)
