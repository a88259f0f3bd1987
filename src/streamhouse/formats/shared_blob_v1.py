"""The shared blob, LLS1: one flush of many partitions in one object. Reading and checking.

    0      4             8                                                             8 + header length
    ┌──────┬─────────────┬───────────────────────────────────────────────────────────┬────────┬────────┬───
    │"LLS1"│header length│{"version":1,"created_at_ms":…,"partitions":[…],           │ body 0 │ body 1 │ …
    │      │u32, big     │ "header_crc32c":"0123abcd"}                               │        │        │
    │      │endian       │                                                           │        │        │
    └──────┴─────────────┴───────────────────────────────────────────────────────────┴────────┴────────┴───

    a partition of the header:
      topic, topic_id      its name, and its id in Kafka's spelling
      partition            its number
      msg_count            records in the body
      encoding             "kafka-batch-v2": record batches laid end to end, each with base offset 0 and leader epoch -1
      body_offset          from the end of the header, so that it does not depend on the header's own length
      body_length, crc32c  of the body

    header_crc32c is the header's last key, 8 hexadecimal digits: the CRC-32C of every byte of the object before them
    bodies lie end to end in the header's order, and the last one ends the object

An entry in the metadata holds a slice's *absolute* byte range, so reading needs one ranged GET and no header. Such a
slice is checked by what its batches and the entry say (check_slice). Offsets are assigned after the blob was uploaded,
so they are patched in on read (place_slice); until then both patched fields have one fixed value, and any other is
damage.

Owns the layout and its checks. Must not do IO. shared_blob_v1_writer.py writes it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from crc32c import crc32c

from streamhouse.core.errors import CorruptBlob, InvalidRequest, UnsupportedVersion
from streamhouse.core.ids import PartitionKey, check_topic_name, parse_topic_id
from streamhouse.core.limits import MAX_BLOB_BYTES, MAX_BLOB_HEADER_BYTES, MAX_BLOB_PARTITIONS
from streamhouse.wire.batch import NO_LEADER_EPOCH, BatchHeader, iter_batches, patch
from streamhouse.wire.buffers import BytesLike, byte_view

MAGIC: Final = b"LLS1"
VERSION: Final = 1
ENCODING: Final = "kafka-batch-v2"
UNPLACED_OFFSET: Final = 0
UNPLACED_EPOCH: Final = NO_LEADER_EPOCH
PREFIX: Final = struct.Struct(">4sI")
CRC_KEY: Final = b',"header_crc32c":"'
CRC_TAIL_BYTES: Final = len(b'00000000"}')

_MIN_HEADER_BYTES: Final = 2 + len(CRC_KEY) + CRC_TAIL_BYTES
_MAX_INT32: Final = 2**31 - 1
_MAX_UINT32: Final = 2**32 - 1
_MAX_INT64: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedMore:
    """The header does not end within the bytes given: fetch the object's first ``total_bytes``."""

    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobPartition:
    topic: str
    key: PartitionKey
    record_count: int
    encoding: str
    byte_offset: int
    """The distance from the start of the object, as in a metadata entry."""
    byte_length: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobHeader:
    created_at_ms: int
    header_bytes: int
    """The bytes before the first body."""
    partitions: tuple[BlobPartition, ...]


def read_header(first_bytes: BytesLike, *, object_size: int) -> BlobHeader | NeedMore:
    """Read the header from the object's first bytes, or say how many it takes. A guess of 64 KiB mostly does.

    Raises CorruptBlob, also if the bodies do not fill the object exactly; UnsupportedVersion for a newer blob.
    """
    view = byte_view(first_bytes)
    if object_size > MAX_BLOB_BYTES:
        raise CorruptBlob(f"shared blob: {object_size} bytes are over the limit of {MAX_BLOB_BYTES}")
    if object_size < PREFIX.size + _MIN_HEADER_BYTES:
        raise CorruptBlob(f"shared blob: {object_size} bytes cannot hold a header")
    if len(view) < PREFIX.size:
        return NeedMore(total_bytes=PREFIX.size)
    magic, length = PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise CorruptBlob(f"shared blob: starts with {magic!r}, not {MAGIC!r}")
    total = PREFIX.size + length
    if not _MIN_HEADER_BYTES <= length <= MAX_BLOB_HEADER_BYTES or total > object_size:
        raise CorruptBlob(f"shared blob: a header of {length} bytes cannot be, in an object of {object_size}")
    if len(view) < total:
        return NeedMore(total_bytes=total)
    return _parse_header(view[:total], object_size)


def check_slice(
    buf: BytesLike, *, byte_length: int, record_count: int, expected_crc32c: int | None = None
) -> tuple[BatchHeader, ...]:
    """Check the bytes of one slice against what its entry says, and give its batches' headers.

    Every byte is covered: by a batch's CRC, by the one value its patched fields may have, or by the batches' lengths
    having to add up. What only the body's own CRC sees is whole batches in another order.
    Raises CorruptBlob or CorruptBatch.
    """
    view = byte_view(buf)
    if len(view) != byte_length:
        raise CorruptBlob(f"shared blob slice: {len(view)} bytes, its entry says {byte_length}")
    if expected_crc32c is not None and crc32c(view) != expected_crc32c:
        raise CorruptBlob(f"shared blob slice: its bytes do not have the CRC-32C {expected_crc32c:#x}")
    headers: list[BatchHeader] = []
    found = 0
    for position, header in iter_batches(view):
        if header.base_offset != UNPLACED_OFFSET or header.partition_leader_epoch != UNPLACED_EPOCH:
            raise CorruptBlob(
                f"shared blob slice: the batch at byte {position} has base offset {header.base_offset} and leader epoch"
                f" {header.partition_leader_epoch}, not {UNPLACED_OFFSET} and {UNPLACED_EPOCH}"
            )
        headers.append(header)
        found += header.record_count
    if found != record_count:
        raise CorruptBlob(f"shared blob slice: {found} records, its entry says {record_count}")
    return tuple(headers)


def place_slice(
    buf: bytearray | memoryview, *, byte_length: int, record_count: int, base_offset: int, leader_epoch: int
) -> None:
    """Check a slice and give its batches their place in the log, in place. Raises as check_slice does."""
    position = 0
    for header in check_slice(buf, byte_length=byte_length, record_count=record_count):
        patch(buf, position, base_offset=base_offset, leader_epoch=leader_epoch)
        position += header.size
        base_offset += header.record_count


def verify_blob(buf: BytesLike) -> BlobHeader:
    """Check every byte of a whole blob. Raises CorruptBlob, CorruptBatch or UnsupportedVersion."""
    view = byte_view(buf)
    header = read_header(view, object_size=len(view))
    if isinstance(header, NeedMore):
        raise CorruptBlob(f"shared blob: {len(view)} bytes, its header takes {header.total_bytes}")
    for partition in header.partitions:
        if partition.encoding != ENCODING:
            raise UnsupportedVersion(f"shared blob: {partition.key} has the unknown encoding {partition.encoding!r}")
        check_slice(
            view[partition.byte_offset : partition.byte_offset + partition.byte_length],
            byte_length=partition.byte_length,
            record_count=partition.record_count,
            expected_crc32c=partition.crc32c,
        )
    return header


def _parse_header(view: memoryview, object_size: int) -> BlobHeader:
    checked = view[:-CRC_TAIL_BYTES]
    if bytes(view[-CRC_TAIL_BYTES:]) != b'%08x"}' % crc32c(checked) or bytes(checked[-len(CRC_KEY) :]) != CRC_KEY:
        raise CorruptBlob("shared blob: its header does not end with its own CRC-32C")
    try:
        fields = json.loads(bytes(view[PREFIX.size :]))
    except (ValueError, RecursionError) as error:
        raise CorruptBlob(f"shared blob: its header is not JSON: {error}") from error
    version = _int(fields, "version", _MAX_INT32)
    if version != VERSION:
        raise UnsupportedVersion(f"shared blob: version {version}; this build reads {VERSION}")
    listed = fields.get("partitions")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_BLOB_PARTITIONS:
        raise CorruptBlob(f"shared blob: its header lists no partitions, or more than {MAX_BLOB_PARTITIONS}")
    partitions: list[BlobPartition] = []
    end = len(view)
    for item in listed:
        partition = _parse_partition(item, header_bytes=len(view))
        if partition.byte_offset != end:
            raise CorruptBlob(f"shared blob: the body of {partition.key} starts at {partition.byte_offset}, not {end}")
        partitions.append(partition)
        end += partition.byte_length
    if end != object_size:
        raise CorruptBlob(f"shared blob: its bodies end at byte {end}, the object at {object_size}")
    if len({partition.key for partition in partitions}) != len(partitions):
        raise CorruptBlob("shared blob: its header lists a partition twice")
    return BlobHeader(
        created_at_ms=_int(fields, "created_at_ms", _MAX_INT64),
        header_bytes=len(view),
        partitions=tuple(partitions),
    )


def _parse_partition(item: Any, *, header_bytes: int) -> BlobPartition:
    topic, topic_id, encoding = (_text(item, name) for name in ("topic", "topic_id", "encoding"))
    try:
        key = PartitionKey(parse_topic_id(topic_id), _int(item, "partition", _MAX_INT32))
        check_topic_name(topic)
    except InvalidRequest as error:
        raise CorruptBlob(f"shared blob: {error.message}") from error
    return BlobPartition(
        topic=topic,
        key=key,
        record_count=_int(item, "msg_count", _MAX_INT64),
        encoding=encoding,
        byte_offset=header_bytes + _int(item, "body_offset", MAX_BLOB_BYTES),
        byte_length=_int(item, "body_length", MAX_BLOB_BYTES),
        crc32c=_int(item, "crc32c", _MAX_UINT32),
    )


def _int(fields: Any, name: str, highest: int) -> int:
    value = fields.get(name) if isinstance(fields, Mapping) else None
    if type(value) is not int or not 0 <= value <= highest:
        raise CorruptBlob(f"shared blob: {name!r} in its header is not a number from 0 to {highest}")
    return value


def _text(fields: Any, name: str) -> str:
    value = fields.get(name) if isinstance(fields, Mapping) else None
    if not isinstance(value, str):
        raise CorruptBlob(f"shared blob: {name!r} in its header is not text")
    return value
