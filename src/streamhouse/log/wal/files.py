"""Carries out the orders of state.py on a disk. Blocking; decides nothing.

Two lanes use it at the same time, each in its own order: one writes (open_new, write, sync), one does housekeeping
(do_chore). They share only the spares, which the writing lane uses once the other has made them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.formats.wal_frame_v1 import FileHeader, encode_file_header
from streamhouse.log.wal.disk import Disk, WalFile
from streamhouse.log.wal.names import log_name, spare_name, unfinished_name
from streamhouse.log.wal.state import Chore, NewFile, PrepareSpare, RemoveSpare, Retire
from streamhouse.wire.buffers import BytesLike

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class NoRoomError(Exception):
    """The disk has no room for a file. Nothing was changed, so the same order can be repeated."""

    def __init__(self, size_bytes: int, why: OSError) -> None:
        super().__init__(why.strerror or str(why))
        self.size_bytes = size_bytes


@dataclass(slots=True, kw_only=True)
class FrameRun:
    """Consecutive frames of one file; with the order to open the file if they are its first."""

    opens: NewFile | None
    position: int
    buffers: list[BytesLike]
    last_lsn: int


class WalFiles:
    def __init__(self, disk: Disk, *, wal_id: UUID, clock: Clock, ready_spares: Iterable[int]) -> None:
        self._disk = disk
        self._wal_id = wal_id
        self._clock = clock
        self._ready_spares = set(ready_spares)
        self._missing_spares: set[int] = set()
        """Spares that the disk had no room for and that a file was to be made from."""
        self._active: WalFile | None = None
        self._open_files: list[WalFile] = []  # the active one last
        self.generation = 0

    # The writing lane.

    def is_ready(self, new: NewFile) -> bool:
        """Whether it can be opened now. The other lane may still be making the spare for it."""
        return new.spare is None or new.spare in self._ready_spares or new.spare in self._missing_spares

    def open_new(self, new: NewFile) -> bool:
        """Header, then name, then frames: each is durable before the next (R12).

        Returns whether the file had to be made, because there was no spare. Raises NoRoomError. No frame was written
        then, so trying again is safe.
        """
        spare = new.spare if new.spare in self._ready_spares else None
        with _told_when_full(new.size_bytes):
            name = self._create_log_file(new) if spare is None else spare_name(spare)
            file = self._disk.open(name)
            try:
                self._write_header(file, new)
                self._disk.rename(name, log_name(new.generation))
            except BaseException as error:
                file.close()
                if spare is None and _is_full(error):
                    self._disk.remove(name)
                raise
        self._open_files.append(file)
        self._active = file
        if new.spare is not None:
            self._ready_spares.discard(new.spare)
            self._missing_spares.discard(new.spare)
        self._disk.sync_directory()
        self.generation = new.generation
        return spare is None

    def _create_log_file(self, new: NewFile) -> str:
        name = unfinished_name(log_name(new.generation))
        self._disk.create(name, new.size_bytes)
        return name

    def _write_header(self, file: WalFile, new: NewFile) -> None:
        header = FileHeader(
            wal_id=self._wal_id,
            generation=new.generation,
            first_lsn=new.first_lsn,
            created_at_ms=self._clock.wall_ms(),
        )
        file.pwritev([encode_file_header(header)], 0)
        file.fdatasync()

    @property
    def active(self) -> WalFile:
        """The file that takes the next frame."""
        assert self._active is not None, "a WAL opens its first file before its first frame"
        return self._active

    def write(self, run: FrameRun) -> None:
        """Write into the active file. Nothing of it counts before ``sync`` has returned."""
        self.active.pwritev(run.buffers, run.position)

    def sync(self) -> None:
        """Sync the open files in order, so that an earlier file is never less durable than a later one."""
        for file in self._open_files:
            file.fdatasync()
        for file in self._open_files[:-1]:
            file.close()
        del self._open_files[:-1]

    def close(self) -> None:
        for file in self._open_files:
            file.close()
        self._open_files.clear()
        self._active = None

    # The tidying lane.

    def forget_missing(self, spare: int) -> None:
        """No file is to be made from this spare. Called by the event loop."""
        self._missing_spares.discard(spare)

    def do_chore(self, chore: Chore) -> None:
        """Raises NoRoomError for a spare that could not be made."""
        match chore:
            case Retire(generation=generation, becomes_spare=None):
                self._disk.remove(log_name(generation))
                self._disk.sync_directory()
            case Retire(generation=generation, becomes_spare=int(number)):
                # Durable before the next file is removed: files leave the log oldest first, also across a crash.
                self._disk.rename(log_name(generation), spare_name(number))
                self._disk.sync_directory()
                self._ready_spares.add(number)
            case PrepareSpare(number=number, size_bytes=size_bytes):
                self._prepare_spare(number, size_bytes)
            case RemoveSpare(number=number):
                self._missing_spares.discard(number)
                if number in self._ready_spares:
                    self._ready_spares.remove(number)
                    self._disk.remove(spare_name(number))

    def _prepare_spare(self, number: int, size_bytes: int) -> None:
        name = spare_name(number)
        try:
            with _told_when_full(size_bytes):
                self._disk.create(unfinished_name(name), size_bytes)
                try:
                    self._disk.rename(unfinished_name(name), name)
                except OSError as error:
                    if _is_full(error):
                        self._disk.remove(unfinished_name(name))
                    raise
        except NoRoomError:
            self._missing_spares.add(number)
            raise
        self._disk.sync_directory()
        self._ready_spares.add(number)


@contextmanager
def _told_when_full(size_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if _is_full(error):
            raise NoRoomError(size_bytes, error) from error
        raise


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _NO_ROOM
