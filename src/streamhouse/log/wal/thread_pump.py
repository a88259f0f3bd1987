"""The pump of a real process: one thread writes and syncs, another does the housekeeping.

To make a new file of zeros takes tens of milliseconds, and to empty one takes two directory syncs; in a thread of its
own this does not delay appends. The event loop never waits for either thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from streamhouse.log.wal.files import FrameRun, NoRoomError, WalFiles
from streamhouse.log.wal.pump import Backlog, Reports, RoomReport, SyncReport
from streamhouse.log.wal.state import Chore, NewFile, PrepareSpare
from streamhouse.wire.buffers import BytesLike

T = TypeVar("T")
R = TypeVar("R", SyncReport, RoomReport)


class ThreadPump:
    _loop: asyncio.AbstractEventLoop
    _files: WalFiles
    _reports: Reports

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._backlog = Backlog()  # under the lock, like the flags
        self._writer_waits = False
        self._stopping = False
        self._failed = False
        self._chores: SimpleQueue[Chore | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._max_batch_age_seconds = 0.0
        self._room_pause_seconds = 0.0

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    def start(self, files: WalFiles, reports: Reports, *, max_batch_age_ms: int, room_pause_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._files = files
        self._reports = reports
        self._max_batch_age_seconds = max_batch_age_ms / 1000
        self._room_pause_seconds = room_pause_ms / 1000
        # Daemons: a process that ends without closing its WAL must end; it loses nothing it acknowledged.
        self._threads = [
            threading.Thread(target=self._write_until_stopped, name="wal-writer", daemon=True),
            threading.Thread(target=self._tidy_until_stopped, name="wal-tidier", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def add_file(self, new: NewFile) -> None:
        with self._changed:
            self._backlog.add_file(new)

    def add_frame(self, parts: Sequence[BytesLike], *, position: int, lsn: int, lazy: bool = False) -> None:
        with self._changed:
            self._backlog.add_frame(parts, position, lsn, lazy=lazy)
            self._wake_writer()

    def hurry(self) -> None:
        with self._changed:
            self._backlog.hurry()
            self._wake_writer()

    def add_chore(self, chore: Chore) -> None:
        self._chores.put(chore)

    async def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._chores.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._threads.clear()

    def _wake_writer(self) -> None:
        """Called under the lock."""
        if self._writer_waits and self._backlog.due:
            self._writer_waits = False
            self._changed.notify()

    def _write_until_stopped(self) -> None:
        try:
            while runs := self._wait_for_runs():
                written_lsn = 0
                for run in runs:
                    if run.opens is not None:
                        self._open_new(run.opens, written_lsn)
                    self._files.write(run)
                    written_lsn = run.last_lsn
                self._sync(written_lsn)
        except BaseException as error:
            self._fail(error)

    def _sync(self, lsn: int) -> None:
        began = self._loop.time()
        self._files.sync()
        seconds = self._loop.time() - began
        self._report(
            self._reports.on_synced,
            SyncReport(
                lsn=lsn,
                generation=self._files.generation,
                sync_seconds=seconds,
                longest_sync_seconds=seconds,
            ),
        )

    def _open_new(self, new: NewFile, written_lsn: int = 0) -> None:
        """Wait for room as long as the pump runs. ``written_lsn``: the last frame that is written and not synced."""
        waited = False
        while True:
            self._wait_for_spare(new)
            try:
                made = self._files.open_new(new)
            except NoRoomError as problem:
                if self._stopping:
                    raise
                self._report(self._reports.on_room, RoomReport(spare=None, problem=problem))
                if not waited and written_lsn:
                    self._sync(written_lsn)  # frames before it need not wait
                waited = True
                self._wait_for_room()
            else:
                break
        if made or waited:
            self._report(self._reports.on_room, RoomReport(spare=None, problem=None))

    def _wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._failed, self._room_pause_seconds)
            if self._failed:
                raise OtherLaneFailedError

    def _wait_for_runs(self) -> list[FrameRun]:
        """Return all that is queued; nothing when the pump must end."""
        with self._changed:
            while not (self._backlog.due or self._stopping or self._failed):
                self._writer_waits = True
                self._changed.wait()
            self._writer_waits = False
            if self._max_batch_age_seconds and self._backlog.runs:
                self._changed.wait_for(lambda: self._stopping or self._failed, self._max_batch_age_seconds)
            return [] if self._failed else self._backlog.take()

    def _wait_for_spare(self, new: NewFile) -> None:
        if not self._files.is_ready(new):
            with self._changed:
                self._changed.wait_for(lambda: self._failed or self._files.is_ready(new))
                if self._failed:
                    raise OtherLaneFailedError

    def _tidy_until_stopped(self) -> None:
        try:
            while (chore := self._chores.get()) is not None and not self._failed:
                self._do_chore(chore)
        except BaseException as error:
            self._fail(error)

    def _do_chore(self, chore: Chore) -> None:
        problem = None
        try:
            self._files.do_chore(chore)
        except NoRoomError as error:
            problem = error
        if isinstance(chore, PrepareSpare):
            self._report(self._reports.on_room, RoomReport(spare=chore.number, problem=problem))
        with self._changed:
            self._changed.notify()

    def _report(self, callback: Callable[[R], None], report: R) -> None:
        with self._changed:
            if self._failed:
                return
        self._post(callback, report)

    def _fail(self, error: BaseException) -> None:
        """The first failure ends both threads; an fsync is never repeated."""
        with self._changed:
            first, self._failed = not self._failed, True
            self._changed.notify()
        if first:
            self._post(self._reports.on_failed, error)

    def _post(self, callback: Callable[[T], None], argument: T) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no one to call
            self._loop.call_soon_threadsafe(callback, argument)


class OtherLaneFailedError(Exception):
    """Ends the thread. The failure itself was reported where it happened."""
