"""Reads what an earlier run left: scans every file, judges them as one log (R12), and returns the frames.

Blocking, and read-only except for one thing: what was found is synced before it is used. A process that was killed
leaves frames in the page cache that never reached the disk. If they were replayed and then lost in a power cut, there
would be a hole below what the next run syncs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from streamhouse.core.errors import CorruptFrame
from streamhouse.core.units import format_size
from streamhouse.formats.wal_frame_v1 import (
    F_KIND,
    F_LENGTH,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    WAL_ID_AT,
    FileHeader,
    Frame,
    FrameKind,
    intact_fields,
    read_frame,
)
from streamhouse.formats.wal_scan_v1 import ScanResult, check_sequence, frames, scan
from streamhouse.log.wal.disk import Disk, Listed
from streamhouse.log.wal.names import log_name
from streamhouse.log.wal.state import FrameGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredFile:
    header: FileHeader
    view: memoryview
    scanned: ScanResult
    frame_bytes: array[int]
    """The size of each frame by LSN; 0 for a frame without a batch."""
    frame_count: int
    """The frames with a batch."""
    batch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredLog:
    files: tuple[RecoveredFile, ...]
    discarded: tuple[int, ...]
    """Generations written behind an unsynced break: nothing in them was acknowledged."""
    torn_bytes: int
    next_lsn: int | None
    next_generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What earlier runs left in the WAL: every batch that was not settled, and some that were.

    Every frame that was reported as synced and was not settled is here. Frames that were settled, or never
    acknowledged, may be here too. Settle each one: its file stays until then.
    """

    wal_id: UUID
    frame_count: int
    batch_bytes: int
    file_count: int
    torn_bytes: int
    """The half-written frame at the end, if there was one: it was never acknowledged."""
    discarded_file_count: int
    _files: dict[int, RecoveredFile] = field(repr=False)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames in LSN order. Payloads are views of the mapped files; they stay valid while referenced."""
        for generation in list(self._files):
            if (file := self._files.get(generation)) is not None:
                yield from (frame for frame in frames(file.view, file.scanned) if frame.kind is FrameKind.DATA)

    def release(self, generation: int) -> None:
        """The file is settled: its disk space is freed when the last view of it is gone."""
        self._files.pop(generation, None)

    def __str__(self) -> str:
        """One line for the log."""
        if not self.file_count:
            return "a new write-ahead log"
        parts = [f"{self.frame_count} batches ({format_size(self.batch_bytes)}) in {self.file_count} files"]
        if self.torn_bytes:
            parts.append(f"a torn end of {format_size(self.torn_bytes)} cut off")
        if self.discarded_file_count:
            parts.append(f"{self.discarded_file_count} files behind it discarded")
        return "write-ahead log recovered: " + ", ".join(parts)


def recover(disk: Disk, log_files: Mapping[int, Listed], wal_id: UUID) -> RecoveredLog:
    """Raises CorruptFrame (R12), or UnsupportedVersion for what a newer build wrote."""
    names: dict[str, str] = {}
    views: dict[str, memoryview] = {}
    scans: list[ScanResult] = []
    for generation, listed in log_files.items():
        view = disk.read(listed.name)
        scanned = _scan(view, wal_id, generation, f"{disk.place}/{listed.name}")
        names[scanned.name], views[scanned.name] = listed.name, view
        scans.append(scanned)
    sequence = check_sequence(scans)
    for scanned in sequence.live:
        _sync(disk, names[scanned.name])
    files = tuple(_recovered_file(views[scanned.name], scanned) for scanned in sequence.live)
    return RecoveredLog(
        files=files,
        discarded=tuple(_header(scanned).generation for scanned in sequence.discarded),
        torn_bytes=_torn_bytes(files[-1].view, files[-1].scanned) if files else 0,
        next_lsn=sequence.next_lsn,
        next_generation=sequence.next_generation,
    )


def read_batches(disk: Disk, groups: Iterable[FrameGroup], wal_id: UUID) -> dict[int, bytes]:
    """The batches of these frames, by LSN. Blocking. Raises CorruptFrame if what was synced is not there any more."""
    found: dict[int, bytes] = {}
    for group in groups:
        name = log_name(group.generation)
        view = disk.read(name)
        position, lsn = FILE_HEADER_BYTES, group.first_lsn
        for wanted in group.lsns:
            while lsn < wanted:
                fields = intact_fields(view, position)
                if fields is None:
                    raise CorruptFrame(f"{disk.place}/{name}: no intact frame at byte {position}, LSN {lsn}")
                position += FRAME_HEADER_BYTES + fields[F_LENGTH]
                lsn += 1
            frame = read_frame(view, position)
            if (frame.wal_id, frame.generation, frame.lsn) != (wal_id, group.generation, wanted):
                raise CorruptFrame(f"{disk.place}/{name}: LSN {frame.lsn} at byte {position} where {wanted} must be")
            found[wanted] = bytes(frame.payload)
    return found


def _scan(view: memoryview, wal_id: UUID, generation: int, name: str) -> ScanResult:
    scanned = scan(view, wal_id=wal_id, name=name)
    # names.py: a file gets its name when its header is durable, so no crash explains either of these.
    if scanned.header is None:
        raise CorruptFrame(
            f"{name}: {scanned.detail}", hint="synced data is damaged: restore the file; do not start on this WAL"
        )
    if scanned.header.generation != generation:
        raise CorruptFrame(
            f"{name}: its header is of generation {scanned.header.generation}, its name says {generation}",
            hint="it was renamed or overwritten by hand: put the file back in its place",
        )
    return scanned


def _header(scanned: ScanResult) -> FileHeader:
    assert scanned.header is not None, "a file without one was refused"
    return scanned.header


def _recovered_file(view: memoryview, scanned: ScanResult) -> RecoveredFile:
    frame_bytes = array("I")
    position, frame_count, batch_bytes = FILE_HEADER_BYTES, 0, 0
    while position < scanned.end_position:
        fields = intact_fields(view, position)
        assert fields is not None, "the scan has passed it"
        is_batch = fields[F_KIND] == FrameKind.DATA
        frame_bytes.append(FRAME_HEADER_BYTES + fields[F_LENGTH] if is_batch else 0)
        frame_count += is_batch
        batch_bytes += fields[F_LENGTH]
        position += FRAME_HEADER_BYTES + fields[F_LENGTH]
    return RecoveredFile(
        header=_header(scanned),
        view=view,
        scanned=scanned,
        frame_bytes=frame_bytes,
        frame_count=frame_count,
        batch_bytes=batch_bytes,
    )


def _sync(disk: Disk, name: str) -> None:
    file = disk.open(name)
    try:
        file.fdatasync()
    finally:
        file.close()


def _torn_bytes(view: memoryview, scanned: ScanResult) -> int:
    """The size of the frame that was being written at the break, if it is known. For messages, not for decisions.

    Behind a break there are often remains of the file's previous use. Only what begins like a frame of this generation
    was being written when the process ended.
    """
    header = _header(scanned)
    start = scanned.end_position
    own = header.wal_id.bytes + header.generation.to_bytes(8, "big")
    begun = bytes(view[start : start + WAL_ID_AT + len(own)])
    if not begun.startswith(FRAME_MAGIC) or begun[WAL_ID_AT:] != own:
        return 0
    fields = intact_fields(view, start)
    frame_bytes = FRAME_HEADER_BYTES + (fields[F_LENGTH] if fields else 0)
    return min(frame_bytes, len(view) - start)
