"""What moves queued frames to the disk: the protocol of a pump, and the queue both pumps share.

A pump takes whatever is queued, writes it, syncs once, reports once, and starts over: what arrives during one sync
shares the next. There is no timer unless ``max_batch_age_ms`` asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from streamhouse.log.wal.files import FrameRun, NoRoomError, WalFiles
from streamhouse.log.wal.state import Chore, NewFile
from streamhouse.wire.buffers import BytesLike

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    lsn: int
    """Everything up to here is on the disk."""
    generation: int
    """Of the newest file whose header is."""
    sync_seconds: float
    """Of all syncs that are reported at once."""
    longest_sync_seconds: float
    syncs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomReport:
    """A file was made, or the disk had no room for it."""

    spare: int | None
    """The spare that was ordered. None: the file that frames are waiting for."""
    problem: NoRoomError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Whom a pump tells. Each is called on the event loop."""

    on_synced: Callable[[SyncReport], None]
    on_failed: Callable[[BaseException], None]
    """Called once. The pump does nothing more."""
    on_room: Callable[[RoomReport], None]
    """Called for every spare, and for a file that takes frames when it was made without one. If there is no room for
    such a file, the pump tries again after every pause, and frames for that file wait."""


class Pump(Protocol):
    """Reports come on the event loop, in order, of one sync or of several. After a failure there are none."""

    async def call(self, work: Callable[[], T]) -> T:
        """FrameRun blocking work of opening and closing."""
        ...

    def start(self, files: WalFiles, reports: Reports, *, max_batch_age_ms: int, room_pause_ms: int) -> None: ...

    def add_file(self, new: NewFile) -> None:
        """Frames added from now on go into this file."""
        ...

    def add_frame(self, parts: Sequence[BytesLike], *, position: int, lsn: int) -> None: ...

    def add_chore(self, chore: Chore) -> None: ...

    async def stop(self) -> None:
        """Finish what is queued, then end; after a failure, end at once. Where the disk has no room for what is queued,
        that is a failure now."""
        ...


class Backlog:
    """Frames on their way to the disk. Not locked. As large as what may be unsettled: ``wal.max_bytes``."""

    __slots__ = ("_goes_on", "runs")

    def __init__(self) -> None:
        self.runs: list[FrameRun] = []
        self._goes_on = False

    def add_file(self, new: NewFile) -> None:
        self.runs.append(FrameRun(opens=new, position=0, buffers=[], last_lsn=new.first_lsn - 1))
        self._goes_on = False

    def add_frame(self, parts: Sequence[BytesLike], position: int, lsn: int) -> None:
        runs = self.runs
        if self._goes_on:
            run = runs[-1]
            run.buffers += parts
            run.last_lsn = lsn
            return
        self._goes_on = True
        if runs:  # a file that was just added, still without a frame
            runs[-1].position = position
            runs[-1].buffers += parts
            runs[-1].last_lsn = lsn
        else:
            runs.append(FrameRun(opens=None, position=position, buffers=list(parts), last_lsn=lsn))

    def take(self) -> list[FrameRun]:
        taken, self.runs = self.runs, []
        self._goes_on = False
        return taken
