"""The pump of a real process on a local disk, with the compiled lane (_lane.pyx). Its thread writes and syncs without
the interpreter lock, which it needs only to continue in the next file.

It does what ThreadPump does in Python; see there.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from streamhouse.log.wal.files import WalFiles
from streamhouse.log.wal.local_disk import LocalFile
from streamhouse.log.wal.pump import Reports, SyncReport
from streamhouse.log.wal.state import NewFile
from streamhouse.log.wal.thread_pump import OtherLaneFailedError, ThreadPump
from streamhouse.wire.buffers import BytesLike

try:
    from streamhouse.log.wal._lane import Lane
except ImportError:  # there was no compiler when this was installed
    _COMPILED = False
else:
    _COMPILED = hasattr(os, "eventfd")


def has_lanes() -> bool:
    return _COMPILED and os.environ.get("STREAMHOUSE_PURE") != "1"


@dataclass(slots=True, kw_only=True, eq=False)
class _Stretch:
    """The frames of one file."""

    lane: Lane
    opens: NewFile | None
    generation: int
    last_lsn: int = 0
    ended: bool = False


class NativePump(ThreadPump):
    def __init__(self) -> None:
        super().__init__()
        self._stretches: deque[_Stretch] = deque()
        """Files that are not wholly synced, as far as known; frames go into the last. Only the event loop uses it."""
        self._to_write: SimpleQueue[_Stretch | None] = SimpleQueue()
        self._told = -1

    def start(self, files: WalFiles, reports: Reports, *, max_batch_age_ms: int, room_pause_ms: int) -> None:
        self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        asyncio.get_running_loop().add_reader(self._told, self._collect)
        self._begin(None, files.generation)

        def failed(error: BaseException) -> None:
            self._report_synced()  # what was synced before the failure is
            reports.on_failed(error)

        reports_too = replace(reports, on_failed=failed)
        super().start(files, reports_too, max_batch_age_ms=max_batch_age_ms, room_pause_ms=room_pause_ms)

    def add_file(self, new: NewFile) -> None:
        self._end_stretch()
        self._begin(new, new.generation)

    def add_frame(self, parts: Sequence[BytesLike], *, position: int, lsn: int, lazy: bool = False) -> None:
        stretch = self._stretches[-1]
        stretch.lane.add(parts, position, lsn, lazy)
        stretch.last_lsn = lsn

    def hurry(self) -> None:
        self._stretches[-1].lane.hurry()

    async def stop(self) -> None:
        self._end_stretch()
        self._to_write.put(None)
        await super().stop()
        if not self._failed:
            self._report_synced()
        self._loop.remove_reader(self._told)
        os.close(self._told)

    def _begin(self, new: NewFile | None, generation: int) -> None:
        stretch = _Stretch(lane=Lane(), opens=new, generation=generation)
        self._stretches.append(stretch)
        self._to_write.put(stretch)

    def _end_stretch(self) -> None:
        stretch = self._stretches[-1]
        stretch.ended = True
        stretch.lane.leave(drop=self._failed)

    def _write_until_stopped(self) -> None:
        try:
            while (stretch := self._to_write.get()) is not None:
                if self._failed:
                    raise OtherLaneFailedError
                if stretch.opens is not None:
                    self._open_new(stretch.opens)
                    self._files.sync()  # which also closes the file before
                file = self._files.active
                assert isinstance(file, LocalFile)
                if problem := stretch.lane.run(file.fileno(), self._told, self._max_batch_age_seconds):
                    raise OSError(problem, os.strerror(problem))
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end_stretch)  # the writer may be asleep in its lane

    def _collect(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._told)
        if not self._failed:
            self._report_synced()

    def _report_synced(self) -> None:
        while True:
            stretch = self._stretches[0]
            lsn, syncs, seconds, longest = stretch.lane.collect()
            if syncs:
                self._reports.on_synced(
                    SyncReport(
                        lsn=lsn,
                        generation=stretch.generation,
                        syncs=syncs,
                        sync_seconds=seconds,
                        longest_sync_seconds=longest,
                    )
                )
            if not stretch.ended or lsn < stretch.last_lsn or len(self._stretches) == 1:
                return
            self._stretches.popleft()
