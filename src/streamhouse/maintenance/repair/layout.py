"""Finds out where the batches of a segment lie when one of its ends is damaged.

    footer   index    what tells where batches lie                    blocks may be compressed
    whole    whole    the index                                       yes
    damaged  whole    the index, if the footer's fields still lead    yes
                      to it; else the batches themselves
    whole    damaged  the batches themselves, up to the index         no: only the index says where a block begins
    damaged  damaged  the batches themselves                          no

What a damaged footer says is a guess. It does no harm: the index that it leads to must have the CRC that the footer
gives it and agree with the entry in every number, each block must have the CRC that the index gives it, and each batch
its own.

A whole footer of a newer version is not damaged. UnsupportedVersion then says that this build must leave it alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.errors import CorruptData, ObjectNotFound, ReadPastEnd, UnsupportedVersion
from streamhouse.core.ids import PartitionKey
from streamhouse.formats.segment_v1 import FOOTER_BYTES, HEAD_BYTES, ByteRange, Footer, unchecked_index_place
from streamhouse.formats.segment_v1_index import Index, parse_index
from streamhouse.formats.segment_v1_reader import RangedReader
from streamhouse.maintenance.compaction.sources import check_footer, damaged
from streamhouse.metadata.contract import Entry
from streamhouse.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLayout:
    """What is known of a segment without its head."""

    index: Index | None
    """None when the batches must be walked from the first one on."""
    batch_bytes: ByteRange
    """No batch lies outside."""
    is_exact: bool
    """True when the footer is whole: the batches then fill ``batch_bytes``."""
    is_sparse: bool
    """Key compaction wrote it (R18)."""


async def read_layout(key: PartitionKey, entry: Entry, store: ObjectStore) -> SegmentLayout:
    """Raises DamagedObject when the segment is missing, cut off, or another one than its entry says;
    UnsupportedVersion, StoreError."""
    size = entry.byte_length
    if size < HEAD_BYTES + FOOTER_BYTES:
        raise damaged(key, entry, f"{size} bytes cannot hold a segment")
    reader, tail = RangedReader(size), memoryview(b"")
    footer: Footer | None
    try:
        while (need := reader.need()) is not None:
            data = await store.get_range(entry.object_key, need.offset, need.length)
            tail = tail or data
            reader.feed(data)
        footer = reader.footer
    except ObjectNotFound as error:
        raise damaged(key, entry, error.message, missing=True) from error
    except ReadPastEnd as error:
        raise damaged(key, entry, error.message) from error
    except CorruptData:
        footer = _footer_of(reader)
    if footer is None:
        return _without_footer(key, entry, tail)
    try:
        check_footer(footer, key, entry)
    except CorruptData as error:
        raise damaged(key, entry, error.message) from error
    return SegmentLayout(
        index=None if reader.need() is not None else reader.index,
        batch_bytes=ByteRange(offset=HEAD_BYTES, length=footer.index_offset - HEAD_BYTES),
        is_exact=True,
        is_sparse=footer.sparse,
    )


def find_index(tail: memoryview, key: PartitionKey, entry: Entry) -> Index | None:
    """The index of a segment whose footer is damaged, out of the object's last bytes; None if nothing leads to it."""
    place, end = unchecked_index_place(tail), entry.byte_length - FOOTER_BYTES
    for index_offset in dict.fromkeys((place.index_offset, end - place.index_length)):
        start = len(tail) - (entry.byte_length - index_offset)
        if start < 0 or not HEAD_BYTES <= index_offset < end:
            continue
        data = tail[start : len(tail) - FOOTER_BYTES]
        footer = Footer(
            key=key,
            block_count=place.block_count,
            base_offset=entry.base_offset,
            end_offset=entry.end_offset,
            record_count=entry.record_count,
            min_timestamp_ms=entry.min_timestamp_ms,
            max_timestamp_ms=entry.max_timestamp_ms,
            index_offset=index_offset,
            index_length=len(data),
            index_crc=place.index_crc,
            sparse=_has_holes(entry),
        )
        try:
            return parse_index(data, footer)
        except (CorruptData, UnsupportedVersion):
            continue
    return None


def _without_footer(key: PartitionKey, entry: Entry, tail: memoryview) -> SegmentLayout:
    index = find_index(tail, key, entry)
    end = entry.byte_length - FOOTER_BYTES
    if index is not None:
        last = index.blocks[-1]
        end = last.file_offset + last.stored_length
    return SegmentLayout(
        index=index,
        batch_bytes=ByteRange(offset=HEAD_BYTES, length=end - HEAD_BYTES),
        is_exact=False,
        is_sparse=_has_holes(entry),
    )


def _footer_of(reader: RangedReader) -> Footer | None:
    try:
        return reader.footer
    except ValueError:  # it is what is damaged
        return None


def _has_holes(entry: Entry) -> bool:
    return entry.record_count < entry.end_offset - entry.base_offset + 1
