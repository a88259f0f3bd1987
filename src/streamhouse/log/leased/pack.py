"""Packs the chunks of a flush into objects: a segment for each large one, one shared blob for the others. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.ids import TopicId
from streamhouse.core.limits import MAX_BLOB_BYTES
from streamhouse.formats.segment_v1_writer import SegmentWriter
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.leased.partition import Chunk
from streamhouse.log.leased.pending import Runs
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, BatchRun, EntryKind, LeasedSlice, ObjectRef
from streamhouse.objectstore.keys import SegmentKey, SharedBlobKey
from streamhouse.wire.buffers import BytesLike

_JOIN_BELOW_BYTES: Final = 4096
_STEPS: Final = 128
_LEAST_STEP_BATCHES: Final = 8
_JOINED_AT_ONCE: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedObject:
    """Bytes to upload, and what the commit says about them."""

    object: ObjectRef
    buffers: Sequence[BytesLike]
    placed: tuple[Placed, ...]

    @property
    def bytes_by_topic(self) -> dict[TopicId, int]:
        """The bytes of each topic in the object, by which the cost of its upload is divided."""
        found: dict[TopicId, int] = {}
        for each in self.placed:
            topic_id = each.slice.key.topic_id
            found[topic_id] = found.get(topic_id, 0) + each.slice.byte_length
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    chunk: Chunk
    slice: LeasedSlice


Packing = Generator[None, None, list[PackedObject]]
"""Yields at intervals, so that the event loop can run while thousands of small batches are packed."""


def packing(
    large: Sequence[Chunk], small: Sequence[Chunk], *, created_ms: int, new_id: Callable[[], uuid.UUID]
) -> Packing:
    step = max(sum(len(chunk.batches) for chunk in (*large, *small)) // _STEPS, _LEAST_STEP_BATCHES)
    packed: list[PackedObject] = []
    for chunk in large:
        segment = yield from _segment(chunk, created_ms, new_id(), step)
        packed.append(segment)
    for part in _by_size(small):
        blob = yield from _blob(part, created_ms, new_id(), step)
        packed.append(blob)
    return packed


def _by_size(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Split so that no blob exceeds its limit; half of the limit leaves room for the header."""
    parts: list[list[Chunk]] = []
    size = 0
    for chunk in chunks:
        if not parts or size + chunk.size_bytes > MAX_BLOB_BYTES // 2:
            parts.append([])
            size = 0
        parts[-1].append(chunk)
        size += chunk.size_bytes
    return parts


def _segment(chunk: Chunk, created_ms: int, object_id: uuid.UUID, step: int) -> Generator[None, None, PackedObject]:
    partition = chunk.partition
    writer = SegmentWriter(key=partition.key)
    runs = Runs()
    buffers: list[BytesLike] = []
    for number, batch in enumerate(chunk.batches, start=1):
        buffers.extend(writer.append(batch.data, batch.header))
        runs.add(batch.header)
        if number % step == 0:
            yield
    segment = writer.finish()
    name = SegmentKey(
        log=partition.key,
        base_offset=chunk.base_offset,
        epoch=partition.epoch,
        created_ms=created_ms,
        object_id=object_id,
    )
    ref = ObjectRef(key=str(name), size_bytes=segment.size, created_at_ms=created_ms)
    piece = _slice(chunk, runs.finish(), ref, EntryKind.SEGMENT, SEGMENT_V1, 0, segment.size)
    buffers = yield from _joined_if_small([*buffers, *segment.buffers], segment.size)
    return PackedObject(object=ref, buffers=buffers, placed=(Placed(chunk=chunk, slice=piece),))


def _blob(
    chunks: Sequence[Chunk], created_ms: int, object_id: uuid.UUID, step: int
) -> Generator[None, None, PackedObject]:
    writer = BlobWriter(created_at_ms=created_ms)
    taken = 0
    runs = [Runs() for _ in chunks]
    for chunk, listed in zip(chunks, runs, strict=True):
        body = writer.add(chunk.partition.topic, chunk.partition.key)
        for batch in chunk.batches:
            body.append(batch.data, batch.header)
            listed.add(batch.header)
            taken += 1
            if taken % step == 0:
                yield
    blob = writer.finish()
    name = SharedBlobKey(created_ms=created_ms, object_id=object_id)
    ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=created_ms)
    placed = tuple(
        Placed(
            chunk=chunk,
            slice=_slice(chunk, listed.finish(), ref, EntryKind.WAL, KAFKA_BATCHES, part.byte_offset, part.byte_length),
        )
        for chunk, listed, part in zip(chunks, runs, blob.slices, strict=True)
    )
    buffers = yield from _joined_if_small(blob.buffers, blob.size)
    return PackedObject(object=ref, buffers=buffers, placed=placed)


def _joined_if_small(buffers: Sequence[BytesLike], size: int) -> Generator[None, None, list[BytesLike]]:
    """To pass thousands of tiny buffers on one by one costs more than to copy them once."""
    if size >= len(buffers) * _JOIN_BELOW_BYTES:
        return list(buffers)
    joined: list[BytesLike] = []
    for first in range(0, len(buffers), _JOINED_AT_ONCE):
        joined.append(b"".join(buffers[first : first + _JOINED_AT_ONCE]))
        if first:
            yield
    return joined


def _slice(
    chunk: Chunk,
    runs: tuple[BatchRun, ...],
    ref: ObjectRef,
    kind: EntryKind,
    encoding: str,
    byte_offset: int,
    byte_length: int,
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
        batches=runs,
    )
