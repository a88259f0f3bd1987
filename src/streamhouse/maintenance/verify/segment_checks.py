"""Judges a segment against its entry: footer and index, then block by block. Pure.

What the formats refuse by themselves (``formats/segment_v1_reader.py``) is turned into findings with a place. The
checks are those of ``verify_segment``, and beyond it what only the entry knows: whose segment it is, its epoch, its
largest time. They need one run of blocks at a time, where ``verify_segment`` needs the whole object in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from streamhouse.core.errors import CorruptData, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.formats.segment_v1 import (
    FOOTER_BYTES,
    HEAD_BYTES,
    BlockCodec,
    BlockInfo,
    ByteRange,
    Footer,
    check_head,
)
from streamhouse.formats.segment_v1_index import Index
from streamhouse.formats.segment_v1_reader import RangedReader, decode_block
from streamhouse.maintenance.verify.batches import BatchFault, BatchWalk
from streamhouse.maintenance.verify.findings import Finding, FindingKind, about, about_bytes
from streamhouse.metadata.contract import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """Neighbouring blocks that one GET fetches. The first run of a segment begins with its head."""

    bytes: ByteRange
    blocks: tuple[BlockInfo, ...]

    @property
    def memory_bytes(self) -> int:
        """What is in memory while the run is judged: its bytes, and one inflated block."""
        inflated = max((each.raw_length for each in self.blocks if each.codec is not BlockCodec.RAW), default=0)
        return self.bytes.length + inflated


def block_runs(index: Index, run_bytes: int) -> Iterator[BlockRun]:
    """The blocks in runs of up to ``run_bytes``; a larger block is a run by itself."""
    start, blocks = 0, list[BlockInfo]()
    for block in index.blocks:
        end = block.file_offset + block.stored_length
        if blocks and end - start > run_bytes:
            yield _run(start, blocks)
            start, blocks = block.file_offset, []
        blocks.append(block)
    yield _run(start, blocks)


def footer_range(object_size: int) -> ByteRange:
    offset = max(object_size - FOOTER_BYTES, 0)
    return ByteRange(offset=offset, length=object_size - offset)


def feed(reader: RangedReader, data: memoryview, key: PartitionKey, entry: Entry, object_size: int) -> Finding | None:
    """Give the reader what it asked for. Returns a finding when footer or index is damaged."""
    try:
        reader.feed(data)
    except (CorruptData, UnsupportedVersion) as error:
        place, kind = footer_range(object_size), FindingKind.SEGMENT_FOOTER
        with suppress(ValueError):  # raised when the footer is what it does not know yet
            place, kind = reader.footer.index_range, FindingKind.SEGMENT_INDEX
        if isinstance(error, UnsupportedVersion):
            kind = FindingKind.NEWER_FORMAT
        return about_bytes(kind, key, entry, error.message, byte_offset=place.offset, byte_length=place.length)
    return None


def check_footer(key: PartitionKey, entry: Entry, footer: Footer) -> Iterator[Finding]:
    """Whether the segment is the one that its entry describes."""
    if footer.key != key:
        problem = f"the segment holds records of partition {footer.key}"
        yield about(FindingKind.WRONG_OBJECT, key, entry, problem)
        return
    stated, found = (entry.base_offset, entry.end_offset), (footer.base_offset, footer.end_offset)
    # Key compaction may have emptied an end of the range altogether (R18).
    within = footer.sparse and entry.base_offset <= footer.base_offset and footer.end_offset <= entry.end_offset
    if found != stated and not within:
        apart = footer.end_offset < entry.base_offset or entry.end_offset < footer.base_offset
        kind = FindingKind.WRONG_OBJECT if apart else FindingKind.OFFSETS
        yield about(kind, key, entry, f"the segment holds the offsets {found[0]} to {found[1]}")
    if footer.record_count != entry.record_count:
        problem = f"the segment holds {footer.record_count} records, its entry says {entry.record_count}"
        yield about(FindingKind.RECORD_COUNT, key, entry, problem)
    if footer.max_timestamp_ms > entry.max_timestamp_ms:
        problem = f"the segment has records of {footer.max_timestamp_ms}, its entry says {entry.max_timestamp_ms}"
        yield about(FindingKind.TIMESTAMPS, key, entry, problem)


def check_run(key: PartitionKey, entry: Entry, run: BlockRun, data: memoryview, walk: BatchWalk) -> list[Finding]:
    """Judge the bytes of a run: the head, if it begins with it, and every block."""
    findings: list[Finding] = []
    if run.bytes.offset == 0:
        findings.extend(_check_head(key, entry, data))
    for block in run.blocks:
        at = block.file_offset - run.bytes.offset
        findings.extend(_check_block(key, entry, block, data[at : at + block.stored_length], walk))
    return findings


def check_smallest_time(key: PartitionKey, entry: Entry, footer: Footer, walk: BatchWalk) -> Iterator[Finding]:
    """After the last block, all of which were whole: the footer's smallest time is that of its batches."""
    if walk.smallest_ms != footer.min_timestamp_ms:
        problem = f"the earliest batch is of {walk.smallest_ms}, the footer says {footer.min_timestamp_ms}"
        yield about(FindingKind.TIMESTAMPS, key, entry, problem)


def _check_head(key: PartitionKey, entry: Entry, data: memoryview) -> Iterator[Finding]:
    try:
        check_head(data)
    except (CorruptData, UnsupportedVersion) as error:
        yield about_bytes(FindingKind.SEGMENT_HEAD, key, entry, error.message, byte_offset=0, byte_length=HEAD_BYTES)


def _check_block(
    key: PartitionKey, entry: Entry, block: BlockInfo, stored: memoryview, walk: BatchWalk
) -> Iterator[Finding]:
    try:
        run = decode_block(stored, block)
    except CorruptData as error:
        yield _in_block(FindingKind.BLOCK, key, entry, block, error.message)
        return
    walk.next_offset, walk.record_count, walk.largest_ms, walk.lost = block.base_offset, 0, None, False
    faults = False
    for fault in walk.take(run, 0, block.end_offset):
        faults = True
        yield _of_batch(key, entry, block, fault)
    if faults:
        return  # the sums below would only repeat it
    if walk.next_offset - 1 != block.end_offset:
        problem = f"the batches end at offset {walk.next_offset - 1}, the index says {block.end_offset}"
        yield _in_block(FindingKind.OFFSETS, key, entry, block, problem)
    if walk.record_count != block.record_count:
        problem = f"the batches hold {walk.record_count} records, the index says {block.record_count}"
        yield _in_block(FindingKind.RECORD_COUNT, key, entry, block, problem)
    if walk.largest_ms != block.max_timestamp_ms:
        problem = f"the largest time of its batches is {walk.largest_ms}, the index says {block.max_timestamp_ms}"
        yield _in_block(FindingKind.TIMESTAMPS, key, entry, block, problem)


def _of_batch(key: PartitionKey, entry: Entry, block: BlockInfo, fault: BatchFault) -> Finding:
    raw = block.codec is BlockCodec.RAW
    return Finding(
        kind=fault.kind,
        key=key,
        base_offset=fault.base_offset,
        end_offset=fault.end_offset,
        problem=fault.problem if raw else f"{fault.problem}; counted in the inflated block",
        object_key=entry.object_key,
        byte_offset=block.file_offset + fault.position if raw else block.file_offset,
        byte_length=fault.length if raw else block.stored_length,
    )


def _in_block(kind: FindingKind, key: PartitionKey, entry: Entry, block: BlockInfo, problem: str) -> Finding:
    return Finding(
        kind=kind,
        key=key,
        base_offset=block.base_offset,
        end_offset=block.end_offset,
        problem=problem,
        object_key=entry.object_key,
        byte_offset=block.file_offset,
        byte_length=block.stored_length,
    )


def _run(start: int, blocks: Sequence[BlockInfo]) -> BlockRun:
    end = blocks[-1].file_offset + blocks[-1].stored_length
    return BlockRun(bytes=ByteRange(offset=start, length=end - start), blocks=tuple(blocks))
