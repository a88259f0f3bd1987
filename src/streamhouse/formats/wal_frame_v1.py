"""The write-ahead log's file header and frame, version 1: encode and read one of each.

    File header, 4,096 bytes: one whole page, so that appending frames never rewrites the sectors it lies in
    0      4      8         10      12      16        32           40          48              56        4096
    ┌──────┬──────┬─────────┬───────┬───────┬─────────┬────────────┬───────────┬───────────────┬─────────┐
    │"SHWL"│crc32c│version=1│flags=0│zero   │wal id   │generation  │first lsn  │created_at_ms  │ zeros   │
    │      │u32   │u16      │u16    │u32    │uuid     │u64         │u64        │i64            │         │
    └──────┴──────┴─────────┴───────┴───────┴─────────┴────────────┴───────────┴───────────────┴─────────┘

    Frame, 104 bytes and the payload, laid end to end from byte 4,096 on
    0      4      8    9    10      12       16       20        24       40         48    56
    ┌──────┬──────┬────┬────┬───────┬────────┬────────┬─────────┬────────┬──────────┬─────┬─
    │"SHWF"│header│kind│acks│flags=0│payload │payload │partition│wal id  │generation│lsn  │
    │      │crc32c│u8  │i8  │u16    │length  │crc32c  │i32      │uuid    │u64       │u64  │
    │      │u32   │    │    │       │u32     │u32     │         │        │          │     │
    └──────┴──────┴────┴────┴───────┴────────┴────────┴─────────┴────────┴──────────┴─────┴─
    56           64        80     88           96            104
    ─┬───────────┬─────────┬──────┬────────────┬─────────────┬──────────────────────────┐
     │last synced│topic id │epoch │base offset │timestamp_ms │ payload: one record batch│
     │lsn u64    │uuid     │i64   │i64         │i64          │                          │
    ─┴───────────┴─────────┴──────┴────────────┴─────────────┴──────────────────────────┘

    big endian; each CRC-32C covers everything after itself in its header, and the frame's header holds the payload's
    LSNs start at 1 and are consecutive through all files of a WAL; generations start at 1, one more for each (re)use
    of a file; last synced LSN: the highest one whose fdatasync had returned when this frame was made, 0 for none

The payload has a CRC of its own so that a header can be trusted without reading up to 100 MiB behind it: that keeps the
search for frames after a break linear (wal_scan_v1.py). Producer id, epoch and sequence are read from the batch itself.
Owns these bytes. Must not do IO, and knows nothing of recovery.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from crc32c import crc32c

from streamhouse.core.errors import CorruptFrame, InvalidRequest, LimitExceeded, UnsupportedVersion
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import MAX_WAL_FRAME_BYTES
from streamhouse.wire.buffers import BytesLike, byte_view

FILE_MAGIC: Final = b"SHWL"
FRAME_MAGIC: Final = b"SHWF"
VERSION: Final = 1
FILE_HEADER_BYTES: Final = 4096
FRAME_HEADER_BYTES: Final = 104
MAX_PAYLOAD_BYTES: Final = MAX_WAL_FRAME_BYTES - FRAME_HEADER_BYTES
WAL_ID_AT: Final = 24
FIRST_LSN: Final = 1

_CHECKED_FROM: Final = 8
_PREFIX: Final = struct.Struct(">4sI")
_FILE_FIELDS: Final = struct.Struct(">HHI16sQQq")
_FRAME_FIELDS: Final = struct.Struct(">BbHIIi16sQQQ16sqqq")
# Places in the tuple that a frame's header unpacks to.
F_KIND, F_ACKS, F_FLAGS, F_LENGTH, F_PAYLOAD_CRC, F_PARTITION, F_WAL_ID, F_GENERATION, F_LSN, F_LAST_SYNCED_LSN = range(
    10
)

assert _CHECKED_FROM + _FRAME_FIELDS.size == FRAME_HEADER_BYTES


class FrameKind(IntEnum):
    DATA = 1
    """The payload is one record batch."""
    SYNCED = 2
    """No payload: carries its last synced LSN only. Written last at a clean stop, it covers every frame before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    wal_id: UUID
    generation: int
    first_lsn: int
    created_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    position: int
    payload: memoryview
    """A view into the bytes it was read from, not a copy."""
    kind: FrameKind
    acks: int
    partition: int
    wal_id: UUID
    generation: int
    lsn: int
    last_synced_lsn: int
    topic_id: TopicId
    epoch: int
    base_offset: int
    timestamp_ms: int

    @property
    def end_position(self) -> int:
        return self.position + FRAME_HEADER_BYTES + len(self.payload)


def encode_file_header(header: FileHeader) -> bytes:
    """One page. It is written and synced before the file's first frame (R12)."""
    if header.generation < 1 or header.first_lsn < FIRST_LSN:
        raise InvalidRequest(f"a WAL file cannot have generation {header.generation}, first LSN {header.first_lsn}")
    fields = _FILE_FIELDS.pack(
        VERSION, 0, 0, header.wal_id.bytes, header.generation, header.first_lsn, header.created_at_ms
    ).ljust(FILE_HEADER_BYTES - _CHECKED_FROM, b"\0")
    return _PREFIX.pack(FILE_MAGIC, crc32c(fields)) + fields


def read_file_header(buf: BytesLike) -> FileHeader:
    """Raises CorruptFrame, or UnsupportedVersion for a newer file."""
    view = byte_view(buf)
    if len(view) < FILE_HEADER_BYTES:
        raise CorruptFrame(f"WAL file header: {len(view)} bytes, it takes {FILE_HEADER_BYTES}")
    magic, stored_crc = _PREFIX.unpack_from(view)
    if magic != FILE_MAGIC:
        raise CorruptFrame(f"WAL file header: starts with {magic!r}, not {FILE_MAGIC!r}")
    actual_crc = crc32c(view[_CHECKED_FROM:FILE_HEADER_BYTES])
    if actual_crc != stored_crc:
        raise CorruptFrame(f"WAL file header: CRC-32C is {actual_crc:#x}, stored is {stored_crc:#x}")
    version, flags, _, wal_id, generation, first_lsn, created_at_ms = _FILE_FIELDS.unpack_from(view, _CHECKED_FROM)
    if version != VERSION or flags:
        raise UnsupportedVersion(f"WAL file header: version {version}, flags {flags:#x}; this build reads {VERSION}, 0")
    return FileHeader(
        wal_id=UUID(bytes=wal_id), generation=generation, first_lsn=first_lsn, created_at_ms=created_at_ms
    )


def encode_frame_header(
    *payload: BytesLike,
    wal_id: UUID,
    generation: int,
    lsn: int,
    last_synced_lsn: int,
    topic_id: TopicId,
    partition: int,
    epoch: int,
    base_offset: int,
    timestamp_ms: int,
    acks: int,
    kind: FrameKind = FrameKind.DATA,
) -> bytes:
    """The 104 bytes that go before the payload, whose parts are read but not copied: writev([header, *payload])."""
    length = crc = 0
    for part in payload:
        length += memoryview(part).nbytes
        crc = crc32c(part, crc)
    if length > MAX_PAYLOAD_BYTES:
        raise LimitExceeded(f"WAL frame: a payload of {length} bytes is over the limit of {MAX_PAYLOAD_BYTES}")
    if not 0 <= last_synced_lsn < lsn or acks not in (-1, 0, 1):
        raise InvalidRequest(f"WAL frame: LSN {lsn} with last synced LSN {last_synced_lsn}, acks {acks}")
    fields = _FRAME_FIELDS.pack(
        kind,
        acks,
        0,
        length,
        crc,
        partition,
        wal_id.bytes,
        generation,
        lsn,
        last_synced_lsn,
        topic_id.bytes,
        epoch,
        base_offset,
        timestamp_ms,
    )
    return _PREFIX.pack(FRAME_MAGIC, crc32c(fields)) + fields


def intact_fields(view: memoryview, pos: int) -> tuple[Any, ...] | None:
    """The fields of the header at ``pos`` as they are stored (F_LENGTH and the like index them), or None if there is no
    intact header. Recovery passes millions of frames and builds no objects for them.

    Raises UnsupportedVersion for a kind or flag this build does not know.
    """
    if pos < 0 or len(view) - pos < FRAME_HEADER_BYTES:
        return None
    magic, stored_crc = _PREFIX.unpack_from(view, pos)
    if magic != FRAME_MAGIC or crc32c(view[pos + _CHECKED_FROM : pos + FRAME_HEADER_BYTES]) != stored_crc:
        return None
    fields = _FRAME_FIELDS.unpack_from(view, pos + _CHECKED_FROM)
    if fields[F_FLAGS] or fields[F_KIND] not in _KINDS:
        raise UnsupportedVersion(f"WAL frame at byte {pos}: kind {fields[F_KIND]}, flags {fields[F_FLAGS]:#x}")
    return fields


def payload_end(view: memoryview, pos: int, fields: tuple[Any, ...]) -> int | None:
    """Return the end of the frame at ``pos`` if its payload is whole, else None."""
    end: int = pos + FRAME_HEADER_BYTES + fields[F_LENGTH]
    if fields[F_LENGTH] > MAX_PAYLOAD_BYTES or end > len(view):
        return None
    return end if crc32c(view[pos + FRAME_HEADER_BYTES : end]) == fields[F_PAYLOAD_CRC] else None


def read_frame(buf: BytesLike, pos: int = 0, *, check_payload: bool = True) -> Frame:
    """Check and read the frame at ``pos``. Raises CorruptFrame or UnsupportedVersion.

    With ``check_payload=False`` the payload's CRC is taken as checked: for bytes that a scan has passed.
    """
    view = byte_view(buf)
    fields = intact_fields(view, pos)
    if fields is None:
        raise CorruptFrame(f"WAL frame at byte {pos}: no intact header there")
    if check_payload and payload_end(view, pos, fields) is None:
        raise CorruptFrame(f"WAL frame at byte {pos}, LSN {fields[F_LSN]}: its payload is cut or damaged")
    kind, acks, _, length, _, partition, wal_id, generation, lsn, last_synced_lsn, topic_id, *rest = fields
    epoch, base_offset, timestamp_ms = rest
    return Frame(
        position=pos,
        payload=view[pos + FRAME_HEADER_BYTES : pos + FRAME_HEADER_BYTES + length],
        kind=FrameKind(kind),
        acks=acks,
        partition=partition,
        wal_id=UUID(bytes=wal_id),
        generation=generation,
        lsn=lsn,
        last_synced_lsn=last_synced_lsn,
        topic_id=TopicId(UUID(bytes=topic_id)),
        epoch=epoch,
        base_offset=base_offset,
        timestamp_ms=timestamp_ms,
    )


_KINDS: Final = frozenset(FrameKind)
