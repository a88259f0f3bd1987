"""The pump of the simulator: the same steps in the same order, by a task of the event loop. No thread, no real time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from streamhouse.log.wal.files import WalFiles
from streamhouse.log.wal.pump import Backlog, SyncReport
from streamhouse.log.wal.state import Chore, NewFile
from streamhouse.wire.buffers import BytesLike

T = TypeVar("T")


async def _one_turn() -> None:
    await asyncio.sleep(0)


class TaskPump:
    """``pause`` is awaited between write and sync: the simulated latency of the disk, and where a crash can hit."""

    _files: WalFiles
    _on_synced: Callable[[SyncReport], None]
    _on_failed: Callable[[BaseException], None]

    def __init__(self, *, pause: Callable[[], Awaitable[None]] = _one_turn) -> None:
        self._pause = pause
        self._backlog = Backlog()
        self._chores: deque[Chore] = deque()
        self._dead = False
        self._max_batch_age_seconds = 0.0
        self.task: asyncio.Task[None] | None = None

    async def call(self, work: Callable[[], T]) -> T:
        return work()

    def start(
        self,
        files: WalFiles,
        *,
        max_batch_age_ms: int,
        on_synced: Callable[[SyncReport], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._max_batch_age_seconds = max_batch_age_ms / 1000
        self._on_synced = on_synced
        self._on_failed = on_failed

    def add_file(self, new: NewFile) -> None:
        self._backlog.add_file(new)

    def add_frame(self, parts: Sequence[BytesLike], *, position: int, lsn: int) -> None:
        self._backlog.add_frame(parts, position, lsn)
        self._wake()

    def add_chore(self, chore: Chore) -> None:
        self._chores.append(chore)
        self._wake()

    async def stop(self) -> None:
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
            while self._chores or self._backlog.runs:
                if self._max_batch_age_seconds:
                    await asyncio.sleep(self._max_batch_age_seconds)
                await self._step(loop)
        except Exception as error:
            self._dead = True
            loop.call_soon(self._on_failed, error)
        except BaseException:
            self._dead = True
            raise

    async def _step(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._chores:
            self._files.do_chore(self._chores.popleft())
        runs = self._backlog.take()
        if not runs:
            return
        self._files.write(runs)
        began = loop.time()
        await self._pause()
        self._files.sync()
        seconds = loop.time() - began
        report = SyncReport(
            lsn=runs[-1].last_lsn,
            generation=self._files.generation,
            sync_seconds=seconds,
            longest_sync_seconds=seconds,
        )
        loop.call_soon(self._report, report)

    def _report(self, report: SyncReport) -> None:
        if not self._dead:
            self._on_synced(report)
