"""A Kafka record batch (magic 2) as an opaque thing: read its header, check it, patch it. Records stay undecoded.

     0        8       12        16  17    21     23        27            35            43
     ┌────────┬───────┬─────────┬───┬─────┬──────┬─────────┬─────────────┬─────────────┬─
     │ base   │batch  │partition│mag│crc  │attri-│last     │base         │max          │
     │ offset │length │leader   │ic │32c  │butes │offset   │timestamp    │timestamp    │
     │ i64    │i32    │epoch i32│i8 │u32  │i16   │delta i32│i64          │i64          │
     └────────┴───────┴─────────┴───┴─────┴──────┴─────────┴─────────────┴─────────────┴─
     43          51        53        57       61
    ─┬───────────┬─────────┬─────────┬────────┬───────────────┐
     │producer   │producer │base     │record  │ records, all  │
     │id         │epoch    │sequence │count   │ under one     │
     │i64        │i16      │i32      │i32     │ codec         │
    ─┴───────────┴─────────┴─────────┴────────┴───────────────┘

    big endian; batch length counts the bytes after itself (from 12 on)
    the CRC covers everything from attributes (21) to the end: base offset and leader epoch may be patched freely
    attributes: 0–2 codec · 3 log-append time · 4 transactional · 5 control · 6 base timestamp is a delete horizon

Owns the 61 header bytes. Must not decode records (records.py) or inflate (codecs.py), nor copy a payload it checks.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from streamhouse.core.errors import CorruptBatch, InvalidRequest, UnsupportedVersion
from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_RECORDS_PER_BATCH
from streamhouse.wire.buffers import BytesLike, byte_view
from streamhouse.wire.codecs import Codec

HEADER_BYTES: Final = 61
MAGIC: Final = 2
MIN_RECORD_BYTES: Final = 7  # length, attributes, two deltas, two lengths and a header count, one byte each
NO_LEADER_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

HEADER: Final = struct.Struct(">qiibIhiqqqhii")

_LENGTH_END = 12
_EPOCH_AT = 12
_CRC_AT = 17
_CHECKED_FROM = 21
_MAX_TIMESTAMP_AT = 35
_MAX_INT64 = 2**63 - 1
_LAST_CODEC = int(Codec.ZSTD)  # looking an enum's member up takes longer than all else that is done with it here
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")


class TimestampType(enum.IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """A tuple, because one is made for every batch: a frozen dataclass takes three times as long to fill."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, header included."""
        return _LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The codec id as stored, 0 to 7; compares equal to a Codec where there is one."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_BIT else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        """Written by an idempotent or transactional producer."""
        return self.producer_id > NO_PRODUCER_ID


def read_header(buf: BytesLike, pos: int = 0) -> BatchHeader:
    """Read the header at ``pos`` and check that the whole batch lies within ``buf``. The CRC is not checked.

    Raises CorruptBatch.
    """
    available = memoryview(buf).nbytes - pos
    if pos < 0 or available < HEADER_BYTES:
        raise CorruptBatch(
            f"record batch at byte {pos}: {max(available, 0)} bytes left, its header takes {HEADER_BYTES}"
        )
    (
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = HEADER.unpack_from(buf, pos)
    if magic != MAGIC:
        raise CorruptBatch(f"record batch at byte {pos}: magic is {magic}, only {MAGIC} is supported")
    size = _LENGTH_END + batch_length
    if size < HEADER_BYTES:
        raise CorruptBatch(f"record batch at byte {pos}: length {batch_length} is shorter than its own header")
    if size > MAX_BATCH_BYTES:
        raise CorruptBatch(f"record batch at byte {pos}: {size} bytes are over the limit of {MAX_BATCH_BYTES}")
    if size > available:
        raise CorruptBatch(f"record batch at byte {pos}: {size} bytes long, {available} bytes left")
    if base_offset < 0 or last_offset_delta < 0 or base_offset > _MAX_INT64 - last_offset_delta - 1:
        raise CorruptBatch(
            f"record batch at byte {pos}: base offset {base_offset} and last offset delta {last_offset_delta}"
            " make no range of offsets"
        )
    return BatchHeader(
        base_offset,
        batch_length,
        leader_epoch,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )


def validate(buf: BytesLike, pos: int = 0, *, allow_compacted: bool = False, check_crc: bool = True) -> BatchHeader:
    """Check length, CRC-32C, record count and codec of the batch at ``pos`` without touching its records.

    A batch holds one record for each of its offsets (R18); only what key compaction rewrote may hold fewer, or none.
    The CRC may be left out for bytes that an outer checksum already vouched for.
    Raises CorruptBatch, or UnsupportedVersion for a codec this build does not know.
    """
    header = read_header(buf, pos)
    check_batch(buf, pos, header, allow_compacted=allow_compacted, check_crc=check_crc)
    return header


def check_batch(
    buf: BytesLike, pos: int, header: BatchHeader, *, allow_compacted: bool = False, check_crc: bool = True
) -> None:
    """What validate checks beyond read_header, for a caller that has just read the header from there."""
    if check_crc:
        _check_crc(buf, pos, header)
    if header.attributes & CODEC_MASK > _LAST_CODEC:
        raise UnsupportedVersion(f"record batch at byte {pos}: codec {header.codec} is unknown")
    _check_count(header, pos, allow_compacted=allow_compacted)


def iter_batches(
    buf: BytesLike, *, check_crc: bool = True, allow_compacted: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Walk a run of whole batches laid end to end: each one's position and header.

    With ``check_crc=False`` only the checks of read_header are made: for bytes that passed validate before.
    """
    end = memoryview(buf).nbytes
    pos = 0
    while pos < end:
        header = validate(buf, pos, allow_compacted=allow_compacted) if check_crc else read_header(buf, pos)
        yield pos, header
        pos += header.size


def patch(buf: bytearray | memoryview, pos: int, *, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place in the log, in place. Neither field is under the CRC, so it stays valid."""
    _require_header(buf, pos)
    _BASE_OFFSET.pack_into(buf, pos, base_offset)
    _LEADER_EPOCH.pack_into(buf, pos + _EPOCH_AT, leader_epoch)


def stamp_log_append_time(buf: bytearray | memoryview, pos: int, *, timestamp_ms: int) -> None:
    """Make ``timestamp_ms`` the time of every record, in place, and renew the CRC (`message.timestamp.type`).

    The records keep their deltas: readers of a log-append batch look at its max timestamp only.
    """
    header = read_header(buf, pos)
    _ATTRIBUTES.pack_into(buf, pos + _CHECKED_FROM, header.attributes | LOG_APPEND_TIME_BIT)
    _TIMESTAMP.pack_into(buf, pos + _MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(buf, pos + _CRC_AT, crc32c(byte_view(buf)[pos + _CHECKED_FROM : pos + header.size]))


def join_batch(
    payload: BytesLike,
    *,
    base_offset: int,
    partition_leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    record_count: int,
) -> bytes:
    """A whole batch: header, CRC and the ``payload``, which is already compressed as ``attributes`` says."""
    head = bytearray(HEADER_BYTES)
    try:
        HEADER.pack_into(
            head,
            0,
            base_offset,
            HEADER_BYTES - _LENGTH_END + memoryview(payload).nbytes,
            partition_leader_epoch,
            MAGIC,
            0,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        )
    except struct.error as error:
        raise InvalidRequest(f"a batch header cannot hold its fields: {error}") from None
    _CRC.pack_into(head, _CRC_AT, crc32c(payload, crc32c(memoryview(head)[_CHECKED_FROM:])))
    return b"".join((head, payload))


def _require_header(buf: BytesLike, pos: int) -> None:
    if pos < 0 or memoryview(buf).nbytes - pos < HEADER_BYTES:
        raise CorruptBatch(f"record batch at byte {pos}: its {HEADER_BYTES}-byte header does not fit the buffer")


def _check_crc(buf: BytesLike, pos: int, header: BatchHeader) -> None:
    actual = crc32c(byte_view(buf)[pos + _CHECKED_FROM : pos + _LENGTH_END + header.batch_length])
    if actual != header.crc:
        raise CorruptBatch(
            f"record batch at byte {pos}: {header.size} bytes have CRC-32C {actual:#x}, stored is {header.crc:#x}"
        )


def _check_count(header: BatchHeader, pos: int, *, allow_compacted: bool) -> None:
    count = header.record_count
    offsets = header.last_offset_delta + 1
    if count != offsets and not (allow_compacted and 0 <= count < offsets):
        raise CorruptBatch(f"record batch at byte {pos}: {count} records for {offsets} offsets")
    if count > MAX_RECORDS_PER_BATCH:
        raise CorruptBatch(f"record batch at byte {pos}: {count} records are over the limit of {MAX_RECORDS_PER_BATCH}")
    payload_bytes = header.batch_length + _LENGTH_END - HEADER_BYTES
    if not header.attributes & CODEC_MASK and count * MIN_RECORD_BYTES > payload_bytes:
        raise CorruptBatch(f"record batch at byte {pos}: {count} records cannot fit {payload_bytes} bytes")
