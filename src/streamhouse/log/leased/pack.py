"""A flush's chunks as objects: a segment for each large one, one shared blob for the rest. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.limits import MAX_BLOB_BYTES
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.leased.partition import Chunk
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, EntryKind, LeasedSlice, ObjectRef
from streamhouse.objectstore.keys import SegmentKey, SharedBlobKey
from streamhouse.wire.buffers import BytesLike

_JOIN_BELOW_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedObject:
    """Bytes to upload, and what the commit will say about them."""

    object: ObjectRef
    buffers: Sequence[BytesLike]
    placed: tuple[Placed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    chunk: Chunk
    slice: LeasedSlice


def pack(
    large: Iterable[Chunk], small: Sequence[Chunk], *, created_ms: int, new_id: Callable[[], uuid.UUID]
) -> list[PackedObject]:
    packed = [_segment(chunk, created_ms, new_id()) for chunk in large]
    packed.extend(_blob(part, created_ms, new_id()) for part in _by_size(small))
    return packed


def _by_size(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Split so that no blob outgrows its limit; half of it leaves room for the header."""
    parts: list[list[Chunk]] = []
    size = 0
    for chunk in chunks:
        if not parts or size + chunk.size_bytes > MAX_BLOB_BYTES // 2:
            parts.append([])
            size = 0
        parts[-1].append(chunk)
        size += chunk.size_bytes
    return parts


def _segment(chunk: Chunk, created_ms: int, object_id: uuid.UUID) -> PackedObject:
    partition = chunk.partition
    segment = write_segment(((batch.data, batch.header) for batch in chunk.batches), key=partition.key)
    name = SegmentKey(
        log=partition.key,
        base_offset=chunk.base_offset,
        epoch=partition.epoch,
        created_ms=created_ms,
        object_id=object_id,
    )
    ref = ObjectRef(key=str(name), size_bytes=segment.size, created_at_ms=created_ms)
    piece = _slice(chunk, ref, EntryKind.SEGMENT, SEGMENT_V1, 0, segment.size)
    return PackedObject(object=ref, buffers=segment.buffers, placed=(Placed(chunk=chunk, slice=piece),))


def _blob(chunks: Sequence[Chunk], created_ms: int, object_id: uuid.UUID) -> PackedObject:
    writer = BlobWriter(created_at_ms=created_ms)
    for chunk in chunks:
        body = writer.add(chunk.partition.topic, chunk.partition.key)
        for batch in chunk.batches:
            body.append(batch.data, batch.header)
    blob = writer.finish()
    name = SharedBlobKey(created_ms=created_ms, object_id=object_id)
    ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=created_ms)
    placed = tuple(
        Placed(
            chunk=chunk,
            slice=_slice(chunk, ref, EntryKind.WAL, KAFKA_BATCHES, part.byte_offset, part.byte_length),
        )
        for chunk, part in zip(chunks, blob.slices, strict=True)
    )
    return PackedObject(object=ref, buffers=_joined_if_small(blob.buffers, blob.size), placed=placed)


def _joined_if_small(buffers: Sequence[BytesLike], size: int) -> Sequence[BytesLike]:
    """Thousands of tiny buffers cost more to hand around one by one than to copy once."""
    return [b"".join(buffers)] if size < len(buffers) * _JOIN_BELOW_BYTES else buffers


def _slice(
    chunk: Chunk, ref: ObjectRef, kind: EntryKind, encoding: str, byte_offset: int, byte_length: int
) -> LeasedSlice:
    return LeasedSlice(
        key=chunk.partition.key,
        epoch=chunk.partition.epoch,
        base_offset=chunk.base_offset,
        kind=kind,
        object=ref,
        byte_offset=byte_offset,
        byte_length=byte_length,
        encoding=encoding,
        batches=tuple(batch.run for batch in chunk.batches),
    )
