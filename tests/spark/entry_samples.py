"""Entries and logs made up for tests of planning."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, Entry, EntryKind
from streamhouse.spark.plan import ReadRange

TOPIC = TopicId(uuid.UUID(int=1))


def entry(base: int, count: int, size_bytes: int, *, whole: bool = False) -> Entry:
    return Entry(
        base_offset=base,
        end_offset=base + count - 1,
        kind=EntryKind.WAL if whole else EntryKind.SEGMENT,
        object_key=f"o/{base}",
        byte_offset=0,
        byte_length=size_bytes,
        record_count=count,
        encoding=KAFKA_BATCHES if whole else SEGMENT_V1,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        epoch=1,
        created_at_ms=0,
    )


def log(partition: int, sizes: Sequence[tuple[int, int]], *, start: int = 0, whole: bool = False) -> ReadRange:
    """A whole partition: (records, bytes) of each entry."""
    entries, base = [], start
    for count, size_bytes in sizes:
        entries.append(entry(base, count, size_bytes, whole=whole))
        base += count
    return ReadRange(
        topic="orders", key=PartitionKey(TOPIC, partition), from_offset=start, to_offset=base, entries=tuple(entries)
    )
