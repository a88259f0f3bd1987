"""Judges what the metadata store says of one partition: that its entries tile the log, and that each can be true. Pure.

Every page of entries comes from one consistent read, together with the partition's own row. Two pages do not: retention
and compaction go on between them. So a page is read from the last offset of the page before it, and begins with the
entry that covers this offset, be it the old one or the one that a compaction has put there. Each page is then judged by
itself: nothing that two reads say is ever compared, and what happens between two reads cannot look like damage.

    page 1   [0 … 9][10 … 19][20 … 29]                        read from 0
    page 2                   [20 … 29][30 … 39][40 … 49]      read from 29: the first entry covers it
         or           [10      …     29][30 … 39]             when a compaction came between
         or                            [30 … 39]              when the log start has moved past 29
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.maintenance.verify.findings import Finding, FindingKind, about
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, Entry, EntryKind, EntryPage, PartitionState
from streamhouse.objectstore.keys import CompactedKey, SegmentKey, SharedBlobKey, parse

_ENCODINGS = {
    EntryKind.WAL: KAFKA_BATCHES,
    EntryKind.SEGMENT: SEGMENT_V1,
    EntryKind.COMPACTED: SEGMENT_V1,
}


def check_page(page: EntryPage, from_offset: int) -> Iterator[Finding]:
    """Whether the entries of a page, read from ``from_offset`` on, cover every offset once, up to the watermark."""
    partition = page.partition
    key, watermark, log_start = partition.key, partition.high_watermark, partition.log_start_offset
    if not 0 <= log_start <= watermark:
        problem = f"the log start is {log_start}, and the watermark is {watermark}"
        yield _in_index(FindingKind.LOG_START, key, log_start, log_start - 1, problem)
    start = max(from_offset, log_start, 0)
    if not page.entries:
        if start < watermark:
            problem = f"there is no entry, and the watermark is {watermark}"
            yield _in_index(FindingKind.GAP, key, start, watermark - 1, problem)
        return
    expected = start
    for number, entry in enumerate(page.entries):
        base = entry.base_offset
        if base > expected:
            problem = f"no entry covers these offsets: the next one begins at {base}"
            yield _in_index(FindingKind.GAP, key, expected, base - 1, problem)
        elif base < expected and number:
            problem = f"the entry {base} to {entry.end_offset} begins before {expected}, where the one before it ends"
            yield _in_index(FindingKind.OVERLAP, key, base, min(expected - 1, entry.end_offset), problem)
        expected = entry.end_offset + 1
    if not page.more and expected != watermark:
        problem = f"the watermark is {watermark}, and the last entry ends at {expected - 1}"
        first, after = sorted((expected, watermark))
        yield _in_index(FindingKind.WATERMARK, key, first, after - 1, problem)


def check_entry(key: PartitionKey, entry: Entry) -> Iterator[Finding]:
    """Whether the entry's own fields agree with each other and with the name of its object."""
    offsets = entry.end_offset - entry.base_offset + 1
    if entry.base_offset < 0 or offsets < 1:
        yield about(FindingKind.ENTRY, key, entry, "an entry must cover one offset or more, from 0 on")
        return
    if entry.encoding != _ENCODINGS[entry.kind]:
        problem = f"the encoding of a {entry.kind} entry is {_ENCODINGS[entry.kind]!r}, not {entry.encoding!r}"
        yield about(FindingKind.ENTRY, key, entry, problem)
    counts = range(offsets + 1) if entry.kind is EntryKind.COMPACTED else range(offsets, offsets + 1)
    if entry.record_count not in counts:
        problem = f"the entry counts {entry.record_count} records for {offsets} offsets"
        yield about(FindingKind.RECORD_COUNT, key, entry, problem)
    if entry.record_count and entry.min_timestamp_ms > entry.max_timestamp_ms:
        problem = f"the smallest time is {entry.min_timestamp_ms}, the largest is {entry.max_timestamp_ms}"
        yield about(FindingKind.TIMESTAMPS, key, entry, problem)
    whole_object = entry.encoding == SEGMENT_V1
    if entry.byte_offset < 0 or entry.byte_length < 1 or (whole_object and entry.byte_offset):
        problem = f"the byte range {entry.byte_offset}+{entry.byte_length} cannot be one of a {entry.kind} entry"
        yield about(FindingKind.BYTE_RANGE, key, entry, problem)
    yield from _check_name(key, entry)


def check_epochs(partition: PartitionState, entries: Iterable[Entry], epochs: EpochLine) -> Iterator[Finding]:
    """Whether each entry was committed under the epoch that led at its offsets (invariant 4, seen afterwards).

    ``epochs`` must have been read after the entries.
    """
    for entry in entries:
        lowest, highest = epochs.between(entry.base_offset, entry.end_offset)
        # An entry of a commit lies in one leadership; a compaction may join entries of several.
        stands = lowest <= entry.epoch <= highest and (lowest == highest or entry.kind is EntryKind.COMPACTED)
        if entry.epoch > partition.leader_epoch:
            problem = f"the entry has epoch {entry.epoch}, the partition has only reached {partition.leader_epoch}"
            yield about(FindingKind.EPOCH, partition.key, entry, problem)
        elif not stands:
            led = f"epoch {lowest}" if lowest == highest else f"epochs {lowest} to {highest}"
            problem = f"the entry has epoch {entry.epoch}, and {led} led at its offsets"
            yield about(FindingKind.EPOCH, partition.key, entry, problem)


def can_be_read(findings: Iterable[Finding]) -> bool:
    """Whether the bytes of an entry with these findings can be told right from wrong at all."""
    hopeless = (FindingKind.ENTRY, FindingKind.BYTE_RANGE, FindingKind.WRONG_OBJECT)
    return not any(finding.kind in hopeless for finding in findings)


def _check_name(key: PartitionKey, entry: Entry) -> Iterator[Finding]:
    name = parse(entry.object_key)
    if entry.kind is EntryKind.WAL:
        if not isinstance(name, SharedBlobKey):
            yield about(FindingKind.WRONG_OBJECT, key, entry, "a WAL entry names a shared blob, and this is none")
        return
    if entry.kind is EntryKind.SEGMENT:
        fits = isinstance(name, SegmentKey) and (name.log, name.base_offset) == (key, entry.base_offset)
    else:
        place = (key, entry.base_offset, entry.end_offset)
        fits = isinstance(name, CompactedKey) and (name.log, name.base_offset, name.end_offset) == place
    if not fits:
        problem = f"the object's name is not that of a {entry.kind} object of this partition at these offsets"
        yield about(FindingKind.WRONG_OBJECT, key, entry, problem)
    elif isinstance(name, SegmentKey) and name.epoch != entry.epoch:
        problem = f"the object was written under epoch {name.epoch}, the entry has {entry.epoch}"
        yield about(FindingKind.EPOCH, key, entry, problem)


def _in_index(kind: FindingKind, key: PartitionKey, base_offset: int, end_offset: int, problem: str) -> Finding:
    return Finding(kind=kind, key=key, base_offset=base_offset, end_offset=end_offset, problem=problem)
