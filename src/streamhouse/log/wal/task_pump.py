"""The pump of the simulator: the same steps in the same order, in a task of the event loop. No threads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from streamhouse.log.wal.files import NoRoomError, WalFiles
from streamhouse.log.wal.pump import Backlog, Reports, RoomReport, SyncReport
from streamhouse.log.wal.state import Chore, NewFile, PrepareSpare
from streamhouse.wire.buffers import BytesLike

T = TypeVar("T")
R = TypeVar("R", SyncReport, RoomReport)


async def _one_turn() -> None:
    await asyncio.sleep(0)


class TaskPump:
    """``pause`` is awaited between write and sync: the simulated latency of the disk, where a crash may happen."""

    _files: WalFiles
    _reports: Reports

    def __init__(self, *, pause: Callable[[], Awaitable[None]] = _one_turn) -> None:
        self._pause = pause
        self._backlog = Backlog()
        self._chores: deque[Chore] = deque()
        self._dead = False
        self._stopping = False
        self._room_pause_seconds = 0.0
        self._max_batch_age_seconds = 0.0
        self.task: asyncio.Task[None] | None = None

    async def call(self, work: Callable[[], T]) -> T:
        return work()

    def start(self, files: WalFiles, reports: Reports, *, max_batch_age_ms: int, room_pause_ms: int) -> None:
        self._files = files
        self._reports = reports
        self._max_batch_age_seconds = max_batch_age_ms / 1000
        self._room_pause_seconds = room_pause_ms / 1000

    def add_file(self, new: NewFile) -> None:
        self._backlog.add_file(new)

    def add_frame(self, parts: Sequence[BytesLike], *, position: int, lsn: int, lazy: bool = False) -> None:
        self._backlog.add_frame(parts, position, lsn, lazy=lazy)
        if not lazy:
            self._wake()

    def hurry(self) -> None:
        self._backlog.hurry()
        if self._backlog.due:
            self._wake()

    def add_chore(self, chore: Chore) -> None:
        self._chores.append(chore)
        self._wake()

    async def stop(self) -> None:
        self._stopping = True
        self.hurry()
        while self.task is not None and not self.task.done():
            await asyncio.wait([self.task])

    def kill(self) -> None:
        """The death of the process: nothing more is written, synced or reported."""
        self._dead = True
        if self.task is not None:
            self.task.cancel()

    def _wake(self) -> None:
        if (self.task is None or self.task.done()) and not self._dead:
            self.task = asyncio.get_running_loop().create_task(self._run(), name="wal-pump")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._chores or self._backlog.due:
                if self._max_batch_age_seconds:
                    await asyncio.sleep(self._max_batch_age_seconds)
                await self._step(loop)
        except Exception as error:
            self._dead = True
            loop.call_soon(self._reports.on_failed, error)
        except BaseException:
            self._dead = True
            raise

    async def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        self._do_chores()
        written_lsn = 0
        for run in self._backlog.take():
            if run.opens is not None:
                await self._open_new(loop, run.opens, written_lsn)
            self._files.write(run)
            written_lsn = run.last_lsn
        if written_lsn:
            await self._sync(loop, written_lsn)

    def _do_chores(self) -> None:
        while self._chores:
            chore = self._chores.popleft()
            problem = None
            try:
                self._files.do_chore(chore)
            except NoRoomError as error:
                problem = error
            if isinstance(chore, PrepareSpare):
                self._report(self._reports.on_room, RoomReport(spare=chore.number, problem=problem))

    async def _open_new(self, loop: asyncio.AbstractEventLoop, new: NewFile, written_lsn: int) -> None:
        waited = False
        while True:
            try:
                made = self._files.open_new(new)
            except NoRoomError as problem:
                if self._stopping:
                    raise
                self._report(self._reports.on_room, RoomReport(spare=None, problem=problem))
                if not waited and written_lsn:
                    await self._sync(loop, written_lsn)  # frames before it need not wait
                waited = True
                await asyncio.sleep(self._room_pause_seconds)
                self._do_chores()
            else:
                break
        if made or waited:
            self._report(self._reports.on_room, RoomReport(spare=None, problem=None))

    async def _sync(self, loop: asyncio.AbstractEventLoop, lsn: int) -> None:
        began = loop.time()
        await self._pause()
        self._files.sync()
        seconds = loop.time() - began
        report = SyncReport(
            lsn=lsn,
            generation=self._files.generation,
            sync_seconds=seconds,
            longest_sync_seconds=seconds,
        )
        self._report(self._reports.on_synced, report)

    def _report(self, callback: Callable[[R], None], report: R) -> None:
        def tell() -> None:
            if not self._dead:
                callback(report)

        asyncio.get_running_loop().call_soon(tell)
