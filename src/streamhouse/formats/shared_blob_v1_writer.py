"""Packs a flush into an LLS1 blob (shared_blob_v1.py draws it) without copying a batch.

    writer = BlobWriter(created_at_ms=…)
    body = writer.add("orders", key)
    body.append(batch, header)            as often as batches arrive, for any number of partitions in any order
    blob = writer.finish()                blob.buffers, end to end, are the object; blob.slices go into the commit

Buffers are kept by reference: they must stay unchanged until the upload is over. Every refusal comes before a batch is
taken, so a full blob can be finished as it is and the batch goes into the next one (R11).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey, check_topic_name, topic_id_text
from streamhouse.core.limits import MAX_BLOB_BYTES, MAX_BLOB_HEADER_BYTES, MAX_BLOB_PARTITIONS
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.formats.shared_blob_v1 import (
    CRC_KEY,
    CRC_TAIL_BYTES,
    ENCODING,
    MAGIC,
    PREFIX,
    UNPLACED_EPOCH,
    UNPLACED_OFFSET,
    VERSION,
)
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike, byte_view

# The longest a partition's JSON gets beside its topic's name: 8 keys, a 22-character id, an encoding and five numbers.
_PARTITION_JSON_BYTES: Final = 200
_HEADER_JSON_BYTES: Final = 100
_HEAD: Final = struct.Struct(">qii")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobSlice:
    """One partition's share of a finished blob: what the metadata commit needs to know of it."""

    topic: str
    key: PartitionKey
    byte_offset: int
    """The distance from the start of the object."""
    byte_length: int
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    crc32c: int
    batches: tuple[BatchHeader, ...]
    """The headers as they came; in the blob the batches have the unplaced offset and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBlob:
    buffers: tuple[BytesLike, ...]
    slices: tuple[BlobSlice, ...]
    size: int


class _BlobSize:
    """The size of the blob so far. Shared by a writer and its bodies: if they knew each other, a cycle would keep the
    batches of every blob until the garbage collector's next look at older objects."""

    __slots__ = ("body_bytes", "header_bytes")

    def __init__(self) -> None:
        self.header_bytes = _HEADER_JSON_BYTES
        self.body_bytes = 0

    def reserve(self, batch_bytes: int) -> None:
        total = PREFIX.size + self.header_bytes + self.body_bytes + batch_bytes
        if total > MAX_BLOB_BYTES:
            raise LimitExceeded(f"a shared blob of {total} bytes is over the limit of {MAX_BLOB_BYTES}")
        self.body_bytes += batch_bytes


class BlobBody:
    """One partition's batches, in the order in which they get their offsets."""

    def __init__(self, size: _BlobSize, topic: str, key: PartitionKey) -> None:
        self._size = size
        self.topic = topic
        self.key = key
        self.byte_length = 0
        self.record_count = 0
        self.crc32c = 0
        self.buffers: list[BytesLike] = []
        self.batches: list[BatchHeader] = []

    def append(self, batch: BytesLike, header: BatchHeader) -> None:
        """Take one validated batch. ``header`` is what ``validate`` returned for it.

        Raises InvalidRequest for a batch that its header does not describe, LimitExceeded when the blob is full.
        """
        view = batch if type(batch) is bytes else byte_view(batch)
        if len(view) != header.size:
            raise InvalidRequest(f"{self.key}: a batch of {len(view)} bytes with a header for {header.size}")
        if header.record_count != header.last_offset_delta + 1 or header.record_count < 1:
            raise InvalidRequest(  # R18: offsets are counted from records when the slice is placed
                f"{self.key}: a batch of {header.record_count} records for {header.last_offset_delta + 1} offsets"
            )
        self._size.reserve(header.size)
        if header.base_offset == UNPLACED_OFFSET and header.partition_leader_epoch == UNPLACED_EPOCH:
            parts: tuple[BytesLike, ...] = (view,)
        else:
            parts = (_HEAD.pack(UNPLACED_OFFSET, header.batch_length, UNPLACED_EPOCH), byte_view(view)[_HEAD.size :])
        for part in parts:
            self.crc32c = crc32c(part, self.crc32c)
        self.buffers.extend(parts)
        self.batches.append(header)
        self.byte_length += header.size
        self.record_count += header.record_count


class BlobWriter:
    def __init__(self, *, created_at_ms: int) -> None:
        self._created_at_ms = created_at_ms
        self._bodies: dict[PartitionKey, BlobBody] = {}
        self._size = _BlobSize()

    @property
    def body_bytes(self) -> int:
        """Bytes of batches taken so far."""
        return self._size.body_bytes

    def add(self, topic: str, key: PartitionKey) -> BlobBody:
        """The body of one partition, made on first use.

        Raises LimitExceeded when the header could outgrow its limit.
        """
        body = self._bodies.get(key)
        if body is not None:
            return body
        entry_bytes = len(check_topic_name(topic)) + _PARTITION_JSON_BYTES
        if len(self._bodies) >= MAX_BLOB_PARTITIONS or self._size.header_bytes + entry_bytes > MAX_BLOB_HEADER_BYTES:
            raise LimitExceeded(f"a shared blob with {len(self._bodies)} partitions takes no more")
        self._size.header_bytes += entry_bytes
        body = self._bodies[key] = BlobBody(self._size, topic, key)
        return body

    def finish(self) -> FinishedBlob:
        """The object's bytes as buffers to be sent end to end, and where each partition lies in them.

        Partitions without a batch are left out. Raises InvalidRequest when nothing is left.
        """
        bodies = [body for body in self._bodies.values() if body.batches]
        if not bodies:
            raise InvalidRequest("a shared blob needs at least one batch")
        header = _encode_header(self._created_at_ms, bodies)
        slices: list[BlobSlice] = []
        position = len(header)
        for body in bodies:
            slices.append(_slice(body, position))
            position += body.byte_length
        buffers = (header, *(buffer for body in bodies for buffer in body.buffers))
        return FinishedBlob(buffers=buffers, slices=tuple(slices), size=position)


def _slice(body: BlobBody, position: int) -> BlobSlice:
    times = [declared_times_ms(header) for header in body.batches]
    return BlobSlice(
        topic=body.topic,
        key=body.key,
        byte_offset=position,
        byte_length=body.byte_length,
        record_count=body.record_count,
        min_timestamp_ms=min(smallest for smallest, _ in times),
        max_timestamp_ms=max(largest for _, largest in times),
        crc32c=body.crc32c,
        batches=tuple(body.batches),
    )


def _encode_header(created_at_ms: int, bodies: list[BlobBody]) -> bytes:
    partitions = []
    body_offset = 0
    for body in bodies:
        partitions.append(
            {
                "topic": body.topic,
                "topic_id": topic_id_text(body.key.topic_id),
                "partition": body.key.partition,
                "msg_count": body.record_count,
                "encoding": ENCODING,
                "body_offset": body_offset,
                "body_length": body.byte_length,
                "crc32c": body.crc32c,
            }
        )
        body_offset += body.byte_length
    fields = {"version": VERSION, "created_at_ms": created_at_ms, "partitions": partitions}
    text = json.dumps(fields, separators=(",", ":")).encode()[:-1] + CRC_KEY
    checked = PREFIX.pack(MAGIC, len(text) + CRC_TAIL_BYTES) + text
    return checked + b'%08x"}' % crc32c(checked)
