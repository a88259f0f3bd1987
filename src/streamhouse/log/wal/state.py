"""The state of the WAL, without a disk: which file takes the next frame and where, which frames are still needed, which
files may go. Pure; lives on the event loop. The pump only carries out what is decided here.

    files   oldest ──────────────────────────────► newest
            ┌───────┐  ┌───────┐  ┌───────┐  ┌───────┐
            │settled│  │ ▒▒    │  │settled│  │▒▒▒▒ → │      ▒ not settled: neither committed nor dropped
            └───────┘  └───────┘  └───────┘  └───────┘
             may go     keeps itself and all later files

Files are removed oldest first, always in order: recovery takes a gap in the LSNs for damage (formats/wal_scan_v1.py).
A file is removed only when the header of a later one is durable, so that LSNs and generations never start again.

A spare file is ordered before it is needed, and a frame may get a place in it before it is made. So an append never
waits for the disk. When the disk has no room for a file, this ends: from then on a frame gets a place only in a file
that exists, and every other frame is refused before anything is assigned (R11), until a file could be made. Frames that
already have a place in a file that could not be made wait for it; no frame is taken behind them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from streamhouse.core.errors import BackPressureRejected, InvalidRequest, LimitExceeded
from streamhouse.core.limits import MAX_WAL_FRAME_BYTES
from streamhouse.core.units import format_size
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from streamhouse.log.wal.options import WalOptions

# Every file keeps room for the payload-less frame of a clean stop, which must not need a new file on a full disk.
_OVERHEAD_BYTES = FILE_HEADER_BYTES + FRAME_HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """An order: make this file ready for frames, from a spare or as a new file."""

    generation: int
    first_lsn: int
    size_bytes: int
    spare: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """An order: this file's frames are settled; keep it as a spare, or remove it."""

    generation: int
    becomes_spare: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSpare:
    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveSpare:
    number: int


Chore = Retire | PrepareSpare | RemoveSpare
"""Housekeeping beside the write path, in its own order. A spare may be planned with as soon as it is ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameGroup:
    """Some frames of one file, in ascending order."""

    generation: int
    first_lsn: int
    """The LSN of the first frame in the file."""
    lsns: list[int]


class _LogFile:
    __slots__ = ("first_lsn", "frame_bytes", "generation", "position", "recyclable", "settled_prefix", "size_bytes",
                 "unsettled_count")  # fmt: skip

    def __init__(self, *, generation: int, first_lsn: int, size_bytes: int, recyclable: bool) -> None:
        self.generation = generation
        self.first_lsn = first_lsn
        self.size_bytes = size_bytes
        self.recyclable = recyclable
        self.position = FILE_HEADER_BYTES
        self.frame_bytes = array("I")  # by LSN; 0 once settled
        self.unsettled_count = 0
        self.settled_prefix = 0

    def oldest_unsettled_lsn(self) -> int:
        while not self.frame_bytes[self.settled_prefix]:
            self.settled_prefix += 1
        return self.first_lsn + self.settled_prefix


class WalState:
    def __init__(
        self, options: WalOptions, *, next_lsn: int, next_generation: int, spares: Iterable[int], next_spare: int
    ) -> None:
        self._options = options
        self._next_generation = next_generation
        self._next_spare = next_spare
        self._spares = list(spares)
        self._files: list[_LogFile] = []
        self._first_lsns: list[int] = []
        self._log_bytes = 0
        self._durable_generation = 0
        self._tried_spare: int | None = None
        """Ordered while there may be no room. No frame is planned for it before it is made."""
        self.file_missing = False
        """True when frames wait for the newest file and the disk has no room for it."""
        self.no_room = ""
        """Why the disk had no room for another file at the last attempt; empty when no file is missing."""
        self.files_not_made = 0
        self.next_lsn = next_lsn
        self.synced_lsn = next_lsn - 1
        self.unsettled_bytes = 0
        self.files_created = self.files_recycled = self.files_removed = 0

    # What is there.

    @property
    def file_count(self) -> int:
        return len(self._files)

    @property
    def spare_count(self) -> int:
        return len(self._spares)

    @property
    def size_bytes(self) -> int:
        """The bytes of all files together, as ordered."""
        spares = len(self._spares) + (self._tried_spare is not None)
        return self._log_bytes + spares * self._options.file_bytes

    @property
    def oldest_unsettled_lsn(self) -> int | None:
        """The frame that keeps the oldest file, and with it all others."""
        return next((file.oldest_unsettled_lsn() for file in self._files if file.unsettled_count), None)

    # Appending.

    def recovered_file(self, *, generation: int, first_lsn: int, size_bytes: int, frame_bytes: array[int]) -> None:
        """A file of an earlier run; 0 bytes for a frame that need not be settled. Never written to again (R12).

        In the end it is removed and not recycled: views of its payloads may outlive it. Takes ownership of the array.
        """
        file = _LogFile(generation=generation, first_lsn=first_lsn, size_bytes=size_bytes, recyclable=False)
        file.frame_bytes = frame_bytes
        file.unsettled_count = sum(map(bool, file.frame_bytes))
        file.position = size_bytes
        self._add_file(file)
        self.unsettled_bytes += sum(file.frame_bytes)

    def plan_first_file(self) -> NewFile:
        """The first file of this run, also if the directory is full: without it nothing could be freed."""
        return self._new_file(self._options.file_bytes)

    def plan_file(self, frame_bytes: int) -> NewFile | None:
        """The file that must be opened before a frame of this size can be assigned, or None. Changes nothing.

        Raises BackPressureRejected when there is no room now, LimitExceeded when there never can be.
        """
        active = self._files[-1]
        if self.file_missing:
            raise self._refusal()
        if active.position + frame_bytes + FRAME_HEADER_BYTES <= active.size_bytes:
            return None
        max_bytes = self._options.max_bytes
        # No file may take more than half: the one in use stays until the next has begun.
        largest = min(MAX_WAL_FRAME_BYTES, max_bytes // 2 - _OVERHEAD_BYTES)
        if frame_bytes > largest:
            raise LimitExceeded(
                f"a batch of {frame_bytes - FRAME_HEADER_BYTES} bytes does not fit into the write-ahead log; with"
                f" wal.max_bytes = {format_size(max_bytes)} it takes up to {largest - FRAME_HEADER_BYTES}",
                hint="send smaller batches",
            )
        size_bytes = max(self._options.file_bytes, frame_bytes + _OVERHEAD_BYTES)
        if self._log_bytes + size_bytes > max_bytes:
            raise BackPressureRejected(
                f"the write-ahead log is full: {self.unsettled_bytes} bytes in {len(self._files)} files wait for their"
                f" commit, the oldest since LSN {self.oldest_unsettled_lsn}; wal.max_bytes is {format_size(max_bytes)}"
            )
        new = self._new_file(size_bytes)
        if new.spare is None and self.no_room:
            raise self._refusal()
        return new

    def open_file(self, new: NewFile) -> None:
        """Continue in a planned file."""
        if new.spare is None:
            self.files_created += 1
        else:
            self._spares.remove(new.spare)
        self._next_generation = new.generation + 1
        self._add_file(
            _LogFile(
                generation=new.generation,
                first_lsn=new.first_lsn,
                size_bytes=new.size_bytes,
                recyclable=new.size_bytes == self._options.file_bytes,
            )
        )

    @property
    def generation(self) -> int:
        """The generation of the file that takes the next frame."""
        return self._files[-1].generation

    def assign(self, frame_bytes: int, *, needed: bool = True) -> int:
        """Give a frame that fits the next LSN and its place. Returns the position of its first byte."""
        active = self._files[-1]
        position = active.position
        active.position = position + frame_bytes
        if needed:
            active.frame_bytes.append(frame_bytes)
            active.unsettled_count += 1
            self.unsettled_bytes += frame_bytes
        else:
            active.frame_bytes.append(0)
        self.next_lsn += 1
        return position

    # Letting go.

    def synced(self, lsn: int, *, generation: int) -> None:
        """Record that all frames up to this LSN, and the header of this generation, are on the disk."""
        self.synced_lsn = lsn
        self._durable_generation = generation

    def settle(self, lsns: Iterable[int]) -> None:
        """Record frames as committed or dropped. A repeat is harmless. Raises InvalidRequest for a future LSN."""
        file: _LogFile | None = None
        for lsn in lsns:
            if file is None or not 0 <= lsn - file.first_lsn < len(file.frame_bytes):
                file = self._file_of(lsn)
                if file is None:
                    continue
            index = lsn - file.first_lsn
            frame_bytes = file.frame_bytes[index]
            if frame_bytes:
                file.frame_bytes[index] = 0
                file.unsettled_count -= 1
                self.unsettled_bytes -= frame_bytes

    def chores(self) -> list[Chore]:
        """The housekeeping that is due now. Each order is given once."""
        chores: list[Chore] = []
        while len(self._files) > 1 and self._may_go(self._files[0]):
            chores.append(self._retire())
        file_bytes, max_bytes = self._options.file_bytes, self._options.max_bytes
        while self._spares and self._has_too_many_spares():
            chores.append(RemoveSpare(number=self._spares.pop()))
            self.files_removed += 1
        wanted = not self._spares and self._options.max_spare_files and not self.no_room
        if wanted and self.size_bytes + file_bytes <= max_bytes:
            self.files_created += 1
            chores.append(PrepareSpare(number=self._take_spare_number(), size_bytes=file_bytes))
        return chores

    # A full disk.

    def spare_made(self, number: int) -> None:
        if number == self._tried_spare:
            self._tried_spare = None
            self.files_created += 1
            self._spares.append(number)
        if not self.file_missing:
            self.no_room = ""

    def spare_not_made(self, number: int, why: str) -> bool:
        """The disk has no room for this spare. Returns whether a file with frames must be made from it all the same."""
        self.files_not_made += 1
        self.no_room = why
        if number == self._tried_spare:
            self._tried_spare = None
            return False
        self.files_created -= 1
        if number in self._spares:
            self._spares.remove(number)
            return False
        return True

    def file_not_made(self, why: str) -> None:
        """Frames have a place in the newest file, and the disk has no room for it."""
        self.files_not_made += 1
        self.no_room = why
        self.file_missing = True

    def file_made(self) -> None:
        self.no_room = ""
        self.file_missing = False

    def try_for_room(self) -> PrepareSpare | None:
        """The order with which to find out whether there is room again. None: nothing is missing any more, or the file
        that frames wait for is being tried already, or no spare may be made anyway."""
        options = self._options
        if self._spares:
            self.no_room = ""
        busy = not self.no_room or self.file_missing or self._tried_spare is not None
        if busy or not options.max_spare_files or self.size_bytes + options.file_bytes > options.max_bytes:
            return None
        self._tried_spare = self._next_spare
        self._next_spare += 1
        return PrepareSpare(number=self._tried_spare, size_bytes=options.file_bytes)

    def no_room_problem(self) -> BackPressureRejected | None:
        """The error for writers while the disk has no room for another file."""
        return self._refusal() if self.no_room else None

    def _refusal(self) -> BackPressureRejected:
        return BackPressureRejected(
            self.no_room, hint="free space on that disk, or enlarge it; writes then go on without a restart"
        )

    def _has_too_many_spares(self) -> bool:
        # While frames wait for a file, its room is more important than spares.
        too_many = len(self._spares) > self._options.max_spare_files or self.size_bytes > self._options.max_bytes
        return too_many or self.file_missing

    def _may_go(self, file: _LogFile) -> bool:
        return not file.unsettled_count and file.generation < self._durable_generation

    def _retire(self) -> Retire:
        file = self._files.pop(0)
        self._first_lsns.pop(0)
        self._log_bytes -= file.size_bytes
        fits = (
            file.recyclable
            and not self.file_missing
            and len(self._spares) < self._options.max_spare_files
            and self.size_bytes + file.size_bytes <= self._options.max_bytes
        )
        self.files_recycled += fits
        self.files_removed += not fits
        return Retire(generation=file.generation, becomes_spare=self._take_spare_number() if fits else None)

    def _take_spare_number(self) -> int:
        number = self._next_spare
        self._next_spare += 1
        self._spares.append(number)
        return number

    def _new_file(self, size_bytes: int) -> NewFile:
        fits_spare = size_bytes == self._options.file_bytes and self._spares
        return NewFile(
            generation=self._next_generation,
            first_lsn=self.next_lsn,
            size_bytes=size_bytes,
            spare=self._spares[0] if fits_spare else None,
        )

    def _add_file(self, file: _LogFile) -> None:
        self._files.append(file)
        self._first_lsns.append(file.first_lsn)
        self._log_bytes += file.size_bytes

    def places(self, lsns: Iterable[int]) -> list[FrameGroup]:
        """Return the file of each of these frames. They must not be settled: only then their files stay."""
        groups: dict[int, FrameGroup] = {}
        for lsn in sorted(lsns):
            file = self._file_of(lsn)
            if file is None or not file.frame_bytes[lsn - file.first_lsn]:
                raise InvalidRequest(f"WAL: frame {lsn} was settled; it may be gone")
            group = FrameGroup(generation=file.generation, first_lsn=file.first_lsn, lsns=[])
            groups.setdefault(file.generation, group).lsns.append(lsn)
        return list(groups.values())

    def _file_of(self, lsn: int) -> _LogFile | None:
        """Return the file of a frame, or None if that file is gone."""
        if lsn >= self.next_lsn:
            raise InvalidRequest(f"WAL: LSN {lsn} was never assigned; the next one is {self.next_lsn}")
        index = bisect_right(self._first_lsns, lsn) - 1
        return self._files[index] if index >= 0 else None
