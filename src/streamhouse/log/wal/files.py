"""The hands of the WAL: carries out orders on a disk. Blocking; decides nothing.

Two lanes use it side by side, each in its own order: one writes (open_new, write, sync), one tidies up (do_chore). They
meet only at spares, which the writing lane takes once the other has made them ready.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.formats.wal_frame_v1 import FileHeader, encode_file_header
from streamhouse.log.wal.disk import Disk, WalFile
from streamhouse.log.wal.names import log_name, spare_name, unfinished_name
from streamhouse.log.wal.state import Chore, NewFile, PrepareSpare, RemoveSpare, Retire
from streamhouse.wire.buffers import BytesLike


@dataclass(slots=True, kw_only=True)
class Run:
    """Frames that follow each other in one file, and the file's opening where it begins one."""

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
        self._active: WalFile | None = None
        self._open_files: list[WalFile] = []  # the active one last
        self.generation = 0

    # The writing lane.

    def is_ready(self, new: NewFile) -> bool:
        """Whether the spare it is to be made from is there; it may still be on its way in the other lane."""
        return new.spare is None or new.spare in self._ready_spares

    def open_new(self, new: NewFile) -> None:
        """Header first, name second, frames last: each durable before the next (R12)."""
        if new.spare is None:
            name = unfinished_name(log_name(new.generation))
            self._disk.create(name, new.size_bytes)
        else:
            name = spare_name(new.spare)
            self._ready_spares.remove(new.spare)
        file = self._disk.open(name)
        self._open_files.append(file)
        self._active = file
        header = FileHeader(
            wal_id=self._wal_id,
            generation=new.generation,
            first_lsn=new.first_lsn,
            created_at_ms=self._clock.wall_ms(),
        )
        file.pwritev([encode_file_header(header)], 0)
        file.fdatasync()
        self._disk.rename(name, log_name(new.generation))
        self._disk.sync_directory()
        self.generation = new.generation

    @property
    def active(self) -> WalFile:
        """The file that takes the next frame."""
        assert self._active is not None, "a WAL opens its first file before its first frame"
        return self._active

    def write(self, runs: Sequence[Run]) -> None:
        """Nothing of it counts before ``sync`` has returned."""
        for run in runs:
            if run.opens is not None:
                self.open_new(run.opens)
            self.active.pwritev(run.buffers, run.position)

    def sync(self) -> None:
        """In order, so that an earlier file is never less durable than a later one."""
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

    def do_chore(self, chore: Chore) -> None:
        match chore:
            case Retire(generation=generation, becomes_spare=None):
                self._disk.remove(log_name(generation))
                self._disk.sync_directory()
            case Retire(generation=generation, becomes_spare=int(number)):
                # Durable before the next file goes: files leave the log oldest first, also across a crash.
                self._disk.rename(log_name(generation), spare_name(number))
                self._disk.sync_directory()
                self._ready_spares.add(number)
            case PrepareSpare(number=number, size_bytes=size_bytes):
                name = spare_name(number)
                self._disk.create(unfinished_name(name), size_bytes)
                self._disk.rename(unfinished_name(name), name)
                self._disk.sync_directory()
                self._ready_spares.add(number)
            case RemoveSpare(number=number):
                self._ready_spares.remove(number)
                self._disk.remove(spare_name(number))
