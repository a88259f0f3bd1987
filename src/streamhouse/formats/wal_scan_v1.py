"""Scans WAL files: what one file's bytes hold, where and why they end, and how several files join (R12). Pure.

A file's frames are good up to the first break. What stands there decides what the break means:

    CLEAN    nothing but zeros to the end: the preallocated rest
    STALE    frames of an older generation, left from the file's previous use
    TORN     a half-written frame, or bytes of no known origin: what a crash leaves behind the last sync
    CORRUPT  further on lies a frame of this generation whose last synced LSN covers the break: what is broken had been
             synced, so a crash did not do it. Refuse to start
    NO_HEADER  the file's own header is unreadable, so nothing in it counts: a crash while it was made or recycled

STALE, TORN and CLEAN all mean "the log ends here". STALE and TORN cannot always be told apart, and need not be.

Owns the verdicts. Must not do IO, copy payloads, or decide what to do with a frame. Time is linear in the bytes, and
memory constant, whatever they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from streamhouse.core.errors import CorruptFrame
from streamhouse.core.limits import MIB
from streamhouse.formats.wal_frame_v1 import (
    F_GENERATION,
    F_LAST_SYNCED_LSN,
    F_LSN,
    F_WAL_ID,
    FILE_HEADER_BYTES,
    FRAME_MAGIC,
    WAL_ID_AT,
    FileHeader,
    Frame,
    intact_fields,
    payload_end,
    read_file_header,
    read_frame,
)
from streamhouse.wire.buffers import BytesLike, byte_view

_ZERO_CHECK_BYTES: Final = MIB
_REFUSE_HINT: Final = (
    "synced data is damaged: do not start on this WAL; restore the file, or drain what is left by hand"
)


class Ending(StrEnum):
    CLEAN = "clean"
    STALE = "stale"
    TORN = "torn"
    CORRUPT = "corrupt"
    NO_HEADER = "no_header"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What one file holds. ``name`` is the caller's, for messages."""

    name: str
    header: FileHeader | None
    ending: Ending
    detail: str
    frame_count: int
    next_lsn: int
    """The LSN that was expected at the break."""
    end_position: int
    """The byte after the last good frame."""
    highest_synced_lsn: int
    """The highest last-synced LSN in any frame of this generation, also beyond the break."""
    highest_stray_lsn: int
    """NO_HEADER only: the highest LSN of this WAL's frames in the file, in any generation; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSequence:
    """The one log that several files make."""

    live: tuple[ScanResult, ...]
    """Files whose frames count, in LSN order."""
    discarded: tuple[ScanResult, ...]
    """Written after an unsynced break: nothing in them was acknowledged. Delete them before writing again."""
    spare: tuple[ScanResult, ...]
    """Files without a readable header and without a frame of this WAL."""
    next_lsn: int | None
    """What the next file starts with; None without a live file."""
    next_generation: int


def scan(buf: BytesLike, *, wal_id: UUID, name: str = "WAL file") -> ScanResult:
    """Check every frame of one file up to the first break, and say what the break is.

    Raises CorruptFrame for a file of another WAL, UnsupportedVersion for one written by a newer build.
    """
    view = byte_view(buf)
    try:
        header = read_file_header(view)
    except CorruptFrame as error:
        return _scan_without_header(view, wal_id, name, error)
    if header.wal_id != wal_id:
        raise CorruptFrame(
            f"{name}: belongs to WAL {header.wal_id}, not {wal_id}", hint="this data directory holds another's file"
        )
    own = (wal_id.bytes, header.generation)
    position, next_lsn, highest_synced_lsn = FILE_HEADER_BYTES, header.first_lsn, 0
    while (fields := intact_fields(view, position)) and (end := payload_end(view, position, fields)):
        if fields[F_WAL_ID : F_LSN + 1] != (*own, next_lsn):
            break
        highest_synced_lsn = max(highest_synced_lsn, fields[F_LAST_SYNCED_LSN])
        next_lsn += 1
        position = end
    beyond = _look_beyond(view, position, header)
    ending, detail = _verdict(view, position, next_lsn, header, beyond)
    return ScanResult(
        name=name,
        header=header,
        ending=ending,
        detail=detail,
        frame_count=next_lsn - header.first_lsn,
        next_lsn=next_lsn,
        end_position=position,
        highest_synced_lsn=max(highest_synced_lsn, beyond.highest_synced_lsn),
        highest_stray_lsn=0,
    )


def frames(buf: BytesLike, result: ScanResult) -> Iterator[Frame]:
    """The good frames of a scanned file, in order. Their payloads are views into ``buf``."""
    position = FILE_HEADER_BYTES
    while position < result.end_position:
        frame = read_frame(buf, position, check_payload=False)
        yield frame
        position = frame.end_position


def check_sequence(scans: Iterable[ScanResult]) -> WalSequence:
    """Join the scans of all files of one WAL into one log of consecutive LSNs. Raises CorruptFrame (R12).

    A file that starts beyond the break of the one before it was written after bytes that never reached the disk. If one
    of its frames says that they did, the WAL is corrupt; if not, nothing in it was acknowledged and it is discarded.
    Files are recycled oldest first, and a file starts where recovery ended, so any other overlap or gap is damage.
    """
    live: list[ScanResult] = []
    discarded: list[ScanResult] = []
    spare: list[ScanResult] = []
    generation = 0
    expected_lsn: int | None = None
    for result in sorted(scans, key=lambda result: result.header.generation if result.header else 0):
        if result.header is None:
            spare.append(result)
            continue
        if result.ending is Ending.CORRUPT:
            raise CorruptFrame(f"{result.name}: {result.detail}", hint=_REFUSE_HINT)
        if result.header.generation == generation:
            raise CorruptFrame(f"{result.name}: generation {generation} appears twice", hint=_REFUSE_HINT)
        generation = result.header.generation
        first_lsn = result.header.first_lsn
        if expected_lsn is None or first_lsn == expected_lsn:
            live.append(result)
            expected_lsn = result.next_lsn
        elif first_lsn < expected_lsn:
            raise CorruptFrame(
                f"{result.name}: starts at LSN {first_lsn}, but {live[-1].name} goes up to {expected_lsn - 1}",
                hint=_REFUSE_HINT,
            )
        elif result.highest_synced_lsn >= expected_lsn:
            raise CorruptFrame(
                f"{live[-1].name}: ends before LSN {expected_lsn} ({live[-1].detail}), but {result.name} says that LSN"
                f" {result.highest_synced_lsn} had been synced",
                hint=_REFUSE_HINT,
            )
        else:
            discarded.append(result)
    for result in spare:
        if result.highest_stray_lsn >= (expected_lsn or 1):
            raise CorruptFrame(
                f"{result.name}: {result.detail}, but it holds frames up to LSN {result.highest_stray_lsn}",
                hint=_REFUSE_HINT,
            )
    return WalSequence(
        live=tuple(live),
        discarded=tuple(discarded),
        spare=tuple(spare),
        next_lsn=expected_lsn,
        next_generation=generation + 1,
    )


@dataclass(slots=True)
class _Beyond:
    """What a scan has found behind a break."""

    highest_synced_lsn: int = 0
    synced_at: int = -1
    highest_generation: int = 0
    stale: bool = False


def _look_beyond(view: memoryview, start: int, header: FileHeader) -> _Beyond:
    beyond = _Beyond()
    for position, fields in _resynchronise(view, start, header.wal_id):
        generation, last_synced_lsn = fields[F_GENERATION], fields[F_LAST_SYNCED_LSN]
        beyond.highest_generation = max(beyond.highest_generation, generation)
        if generation < header.generation:
            beyond.stale = True
        elif generation == header.generation and last_synced_lsn > beyond.highest_synced_lsn:
            beyond.highest_synced_lsn, beyond.synced_at = last_synced_lsn, position
    return beyond


def _resynchronise(view: memoryview, start: int, wal_id: UUID) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Every intact frame header of this WAL at any byte from ``start`` on.

    A payload may hold anything, also the magic over and over; the WAL's random id beside it keeps candidates rare.
    """
    gap = WAL_ID_AT - len(FRAME_MAGIC)
    pattern = re.compile(re.escape(FRAME_MAGIC) + b"(?=[\\s\\S]{%d}" % gap + re.escape(wal_id.bytes) + b")")
    for match in pattern.finditer(view, start):
        fields = intact_fields(view, match.start())
        if fields is not None:
            yield match.start(), fields


def _verdict(view: memoryview, position: int, next_lsn: int, header: FileHeader, beyond: _Beyond) -> tuple[Ending, str]:
    if beyond.highest_synced_lsn >= next_lsn:
        return Ending.CORRUPT, (
            f"LSN {next_lsn} at byte {position} is broken, but the frame at byte {beyond.synced_at} says that LSN"
            f" {beyond.highest_synced_lsn} had been synced"
        )
    if beyond.highest_generation > header.generation:
        return Ending.CORRUPT, (
            f"the header is of generation {header.generation}, but there are frames of {beyond.highest_generation}"
        )
    if _is_zero(view, position):
        return Ending.CLEAN, f"ends at byte {position}, zeros follow"
    if beyond.stale and not _starts_own_frame(view, position, header):
        return Ending.STALE, f"ends at byte {position}, frames of an older generation follow"
    return Ending.TORN, f"LSN {next_lsn} at byte {position} was not written whole"


def _scan_without_header(view: memoryview, wal_id: UUID, name: str, error: CorruptFrame) -> ScanResult:
    highest = max((fields[F_LSN] for _, fields in _resynchronise(view, 0, wal_id)), default=0)
    return ScanResult(
        name=name,
        header=None,
        ending=Ending.NO_HEADER,
        detail=error.message,
        frame_count=0,
        next_lsn=0,
        end_position=0,
        highest_synced_lsn=0,
        highest_stray_lsn=highest,
    )


def _starts_own_frame(view: memoryview, position: int, header: FileHeader) -> bool:
    """Whether the bytes at the break begin like a frame of this very generation."""
    start = bytes(view[position : position + WAL_ID_AT + 24])
    return start[:4] == FRAME_MAGIC and start[WAL_ID_AT:] == header.wal_id.bytes + header.generation.to_bytes(8, "big")


def _is_zero(view: memoryview, start: int) -> bool:
    for position in range(start, len(view), _ZERO_CHECK_BYTES):
        chunk = bytes(view[position : position + _ZERO_CHECK_BYTES])
        if chunk != bytes(len(chunk)):
            return False
    return True
