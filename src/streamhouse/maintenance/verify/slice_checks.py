"""Judges a slice of a shared blob against its entry and against the blob's header. Pure.

Readers fetch a slice by its entry alone and never look at the header. The header says more: which bytes belong to which
partition, so that a shifted range is seen even where it happens to begin at a batch; and the CRC of a whole body, the
one check that sees batches which changed places.

A slice may be as large as a blob, 1 GiB. ``SliceWalk`` says which bytes it wants next, a window at a time, and takes
the whole batches in it; what is cut off at the window's end begins the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from streamhouse.core.errors import CorruptData, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_BATCH_BYTES
from streamhouse.formats.segment_v1 import ByteRange
from streamhouse.formats.shared_blob_v1 import ENCODING, BlobPartition, NeedMore, read_header
from streamhouse.maintenance.verify.batches import BatchWalk
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.maintenance.verify.findings import Finding, FindingKind, about, about_bytes
from streamhouse.metadata.contract import Entry
from streamhouse.wire.batch import HEADER_BYTES

_LENGTH: Final = Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobFacts:
    """What is known of a blob: its size, and what its header says if that was read."""

    size_bytes: int
    header_bytes: int = 0
    bodies: Mapping[PartitionKey, BlobPartition] | None = None
    """None when the header was not read, or is damaged."""
    problem: str = ""
    """What is wrong with the header."""
    is_newer: bool = False
    """The header is whole, and of a newer version."""


def read_facts(first_bytes: memoryview, size_bytes: int) -> BlobFacts | NeedMore:
    """The facts of a blob from its first bytes, or how many of them it takes."""
    try:
        header = read_header(first_bytes, object_size=size_bytes)
    except (CorruptData, UnsupportedVersion) as error:
        return BlobFacts(
            size_bytes=size_bytes,
            header_bytes=len(first_bytes),
            problem=error.message,
            is_newer=isinstance(error, UnsupportedVersion),
        )
    if isinstance(header, NeedMore):
        return header
    bodies = {partition.key: partition for partition in header.partitions}
    return BlobFacts(size_bytes=size_bytes, header_bytes=header.header_bytes, bodies=bodies)


def check_range(key: PartitionKey, entry: Entry, blob: BlobFacts) -> Iterator[Finding]:
    """Whether the blob's header is whole, and gives the entry's bytes to its partition."""
    if blob.problem:
        length = min(blob.header_bytes, blob.size_bytes)
        kind = FindingKind.NEWER_FORMAT if blob.is_newer else FindingKind.BLOB_HEADER
        yield about_bytes(kind, key, entry, blob.problem, byte_offset=0, byte_length=length)
    end = entry.byte_offset + entry.byte_length
    if end > blob.size_bytes:
        problem = f"the entry's bytes end at {end}, the object at {blob.size_bytes}"
        yield about(FindingKind.BYTE_RANGE, key, entry, problem)
    elif blob.bodies is not None:
        body = blob.bodies.get(key)
        if body is None:
            problem = f"the blob holds nothing of this partition, but of {len(blob.bodies)} others"
            yield about(FindingKind.WRONG_OBJECT, key, entry, problem)
            return
        body_end = body.byte_offset + body.byte_length
        if body.encoding != ENCODING:
            problem = f"the blob's header gives this partition the unknown encoding {body.encoding!r}"
            yield about(FindingKind.NEWER_FORMAT, key, entry, problem)
        if entry.byte_offset < body.byte_offset or end > body_end:
            problem = f"the blob's header gives this partition the bytes {body.byte_offset} to {body_end - 1}"
            yield about(FindingKind.BYTE_RANGE, key, entry, problem)


class SliceWalk:
    def __init__(
        self,
        key: PartitionKey,
        entry: Entry,
        blob: BlobFacts,
        epochs: EpochLine,
        *,
        window_bytes: int,
        deep: bool,
    ) -> None:
        self._key = key
        self._entry = entry
        self._walk = BatchWalk(entry, epochs, sparse=False, deep=deep)
        self._window_bytes = window_bytes
        self._position = entry.byte_offset
        self._end = entry.byte_offset + entry.byte_length
        self._wanted_bytes = window_bytes
        self._crc = 0
        self._has_faults = False
        body = None if blob.bodies is None else blob.bodies.get(key)
        is_whole = body is not None and (body.byte_offset, body.byte_length) == (entry.byte_offset, entry.byte_length)
        self._body = body if is_whole else None
        """The blob's word about exactly these bytes, if it has one: an entry may be a part of a body (R14)."""

    def need(self) -> ByteRange | None:
        """The bytes to feed next; None at the end of the slice, or when a batch was so damaged that the next one's
        place is unknown.
        """
        if self._walk.lost or self._position >= self._end:
            return None
        return ByteRange(offset=self._position, length=min(self._wanted_bytes, self._end - self._position))

    def feed(self, data: memoryview) -> list[Finding]:
        """Judge the whole batches in the bytes that ``need`` asked for."""
        cut, self._wanted_bytes = self._whole_batches(data)
        if not cut:
            return []
        findings = [
            Finding(
                kind=fault.kind,
                key=self._key,
                base_offset=fault.base_offset,
                end_offset=fault.end_offset,
                problem=fault.problem,
                object_key=self._entry.object_key,
                byte_offset=self._position + fault.position,
                byte_length=fault.length,
            )
            for fault in self._walk.take(data[:cut], 0, self._entry.end_offset)
        ]
        self._crc = crc32c(data[:cut], self._crc)
        self._position += cut
        self._has_faults |= bool(findings)
        return findings

    def finish(self) -> Iterator[Finding]:
        """After the last bytes: what only the whole slice can tell."""
        if self._walk.lost:
            return
        found, key, entry = self._walk.record_count, self._key, self._entry
        if found != entry.record_count:
            problem = f"the slice holds {found} records, its entry says {entry.record_count}"
            yield about(FindingKind.RECORD_COUNT, key, entry, problem)
        if self._body is None:
            return
        if found != self._body.record_count:
            problem = f"the slice holds {found} records, the blob's header says {self._body.record_count}"
            yield about(FindingKind.RECORD_COUNT, key, entry, problem)
        if self._crc != self._body.crc32c and not self._has_faults:
            problem = f"the body has the CRC-32C {self._crc:#x}, the blob's header says {self._body.crc32c:#x}"
            yield about(FindingKind.BLOB_BODY, key, entry, problem)

    def _whole_batches(self, data: memoryview) -> tuple[int, int]:
        """Where the last whole batch of the window ends, and how many bytes to ask for next.

        A batch that no window can hold, because its length makes no sense or it reaches past the slice, counts as
        whole: the walk says what is wrong with it.
        """
        position, size = 0, len(data)
        left_in_slice = self._end - self._position
        while position < size:
            is_last_window = size == left_in_slice
            if size - position < _LENGTH_END:
                return (size if is_last_window else position), self._window_bytes
            (length,) = _LENGTH.unpack_from(data, position + _LENGTH_AT)
            batch_bytes = _LENGTH_END + length
            if not HEADER_BYTES <= batch_bytes <= min(MAX_BATCH_BYTES, left_in_slice - position):
                return size, self._window_bytes
            if batch_bytes > size - position:
                return position, max(self._window_bytes, batch_bytes)
            position += batch_bytes
        return position, self._window_bytes
