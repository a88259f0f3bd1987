"""Says which byte ranges hold the entries that are compacted, in the order of their offsets. Pure.

    slices of shared blobs     the entry's own range, cut into reads of READ_BYTES; neighbours in one blob share a read
    small segments             whole, in one read
    larger segments            footer and index first (IndexNeeded), then runs of blocks

No read is larger than READ_BYTES, except that of a single block with one very large batch, which cannot be cut. The
number of reads in flight then bounds the memory of a rewrite, whatever the size of its entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import CorruptSegment, DamagedObject
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_RANGES_PER_READ, MIB
from streamhouse.formats.segment_v1 import BlockInfo, ByteRange, Footer
from streamhouse.formats.segment_v1_index import Index, range_of
from streamhouse.metadata.contract import KAFKA_BATCHES, Entry

READ_BYTES: Final = 4 * MIB
"""The size of one request: large enough that its transfer outweighs its round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePart:
    """Bytes of one entry that are fetched together."""

    source: Entry
    range: ByteRange
    """The place of the bytes in the object."""
    blocks: tuple[BlockInfo, ...] = ()
    """The blocks that lie there, if the entry is a segment whose index was read before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRead:
    """One fetch: parts of one object, in the order in which they are copied."""

    object_key: str
    parts: tuple[SourcePart, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes that are fetched, with what lies between the parts."""
        return self.parts[-1].range.end - self.parts[0].range.offset

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [(part.range.offset, part.range.length) for part in self.parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexNeeded:
    """The segment is too large for one read: read its footer and index, then go on with ``block_reads``."""

    source: Entry


def source_reads(sources: Sequence[Entry], *, read_bytes: int = READ_BYTES) -> Iterator[SourceRead | IndexNeeded]:
    pending: list[SourcePart] = []
    for source in sources:
        if source.encoding == KAFKA_BATCHES:
            parts = _slice_parts(source, read_bytes)
        elif source.byte_length <= read_bytes:
            parts = iter([SourcePart(source=source, range=ByteRange(offset=0, length=source.byte_length))])
        else:
            yield from _as_read(pending)
            pending = []
            yield IndexNeeded(source=source)
            continue
        for part in parts:
            if pending and not _share_a_read(pending, part, read_bytes):
                yield from _as_read(pending)
                pending = []
            pending.append(part)
    yield from _as_read(pending)


def block_reads(source: Entry, index: Index, *, read_bytes: int = READ_BYTES) -> Iterator[SourceRead]:
    """The blocks of a segment, neighbours together."""
    run: list[BlockInfo] = []
    for block in index.blocks:
        if run and block.file_offset + block.stored_length - run[0].file_offset > read_bytes:
            yield _block_read(source, run)
            run = []
        run.append(block)
    if run:
        yield _block_read(source, run)


def check_footer(footer: Footer, key: PartitionKey, entry: Entry) -> None:
    """The object must be the one that its entry describes. Raises CorruptSegment."""
    found = (footer.key, footer.base_offset, footer.end_offset, footer.record_count)
    stated = (key, entry.base_offset, entry.end_offset, entry.record_count)
    within = entry.base_offset <= footer.base_offset and footer.end_offset <= entry.end_offset
    # Key compaction may have emptied an end of the range altogether (R18).
    thinned = footer.sparse and within and footer.key == key and footer.record_count == entry.record_count
    if found != stated and not thinned:
        raise CorruptSegment(
            f"segment: holds offsets {footer.base_offset} to {footer.end_offset} of {footer.key} in"
            f" {footer.record_count} records, its entry says otherwise ({entry.record_count} records)",
            hint="the object is not the one its metadata speaks of",
        )


def damaged(key: PartitionKey, source: Entry, problem: str, *, missing: bool = False) -> DamagedObject:
    return DamagedObject(
        where=str(key),
        base_offset=source.base_offset,
        end_offset=source.end_offset,
        object_key=source.object_key,
        byte_offset=source.byte_offset,
        byte_length=source.byte_length,
        problem=problem,
        missing=missing,
    )


def _slice_parts(source: Entry, read_bytes: int) -> Iterator[SourcePart]:
    end = source.byte_offset + source.byte_length
    for offset in range(source.byte_offset, end, read_bytes):
        yield SourcePart(source=source, range=ByteRange(offset=offset, length=min(read_bytes, end - offset)))


def _share_a_read(pending: Sequence[SourcePart], part: SourcePart, read_bytes: int) -> bool:
    first, last = pending[0], pending[-1]
    return (
        part.source.object_key == first.source.object_key
        and part.range.offset >= last.range.end
        and part.range.end - first.range.offset <= read_bytes
        and len(pending) < MAX_RANGES_PER_READ
    )


def _as_read(parts: Sequence[SourcePart]) -> Iterator[SourceRead]:
    if parts:
        yield SourceRead(object_key=parts[0].source.object_key, parts=tuple(parts))


def _block_read(source: Entry, run: Sequence[BlockInfo]) -> SourceRead:
    part = SourcePart(source=source, range=range_of(run), blocks=tuple(run))
    return SourceRead(object_key=source.object_key, parts=(part,))
