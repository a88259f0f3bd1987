"""A pump writes queued frames to the disk: its protocol, and the queue that the Python pumps share.

A pump takes what is queued, writes it, syncs once, reports once, and starts again: frames that arrive during one sync
share the next. There is no timer unless ``max_batch_age_ms`` asks for one.

A **lazy** frame is one whose sync no client waits for. Alone it does not start a write: it is written with the next
frame that is not lazy, or when ``hurry`` is called. The WAL calls that after LAZY_SYNC_MS, so that thousands of small
batches, whose clients wait for a commit, do not cost a sync each.
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
    """All frames up to this LSN are on the disk."""
    generation: int
    """The generation of the newest file whose header is on the disk."""
    sync_seconds: float
    """The time of all syncs that this report covers."""
    longest_sync_seconds: float
    syncs: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomReport:
    """A file was made, or the disk had no room for it."""

    spare: int | None
    """The spare that was ordered. None: the file that frames wait for."""
    problem: NoRoomError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """The callbacks of a pump. Each is called on the event loop."""

    on_synced: Callable[[SyncReport], None]
    on_failed: Callable[[BaseException], None]
    """Called once, when the pump has failed; it does nothing after that."""
    on_room: Callable[[RoomReport], None]
    """Called for every spare, and for a file that takes frames when it was made without one. If there is no room for
    such a file, the pump tries again after every pause, and frames for that file wait."""


class Pump(Protocol):
    """Reports come on the event loop, in order, for one sync or several. After a failure there are none."""

    async def call(self, work: Callable[[], T]) -> T:
        """Run blocking work beside the write path: opening, closing, reading back."""
        ...

    def start(self, files: WalFiles, reports: Reports, *, max_batch_age_ms: int, room_pause_ms: int) -> None: ...

    def add_file(self, new: NewFile) -> None:
        """Write the frames that are added from now on into this file."""
        ...

    def add_frame(self, parts: Sequence[BytesLike], *, position: int, lsn: int, lazy: bool = False) -> None: ...

    def hurry(self) -> None:
        """Write what is queued now, lazy or not."""
        ...

    def add_chore(self, chore: Chore) -> None: ...

    async def stop(self) -> None:
        """Write what is queued, then end; after a failure, end at once. If the disk has no room for what is queued,
        that is a failure now."""
        ...


class Backlog:
    """Frames that are not written yet. Not locked. Its bound is that of unsettled frames: ``wal.max_bytes``."""

    __slots__ = ("_goes_on", "due", "runs")

    def __init__(self) -> None:
        self.runs: list[FrameRun] = []
        self.due = False
        """Some frame must be written now."""
        self._goes_on = False

    def add_file(self, new: NewFile) -> None:
        self.runs.append(FrameRun(opens=new, position=0, buffers=[], last_lsn=new.first_lsn - 1))
        self._goes_on = False

    def add_frame(self, parts: Sequence[BytesLike], position: int, lsn: int, *, lazy: bool) -> None:
        runs = self.runs
        self.due = self.due or not lazy
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

    def hurry(self) -> None:
        self.due = bool(self.runs)

    def take(self) -> list[FrameRun]:
        taken, self.runs = self.runs, []
        self._goes_on = self.due = False
        return taken
