"""Entries, pages and batches for the pure checks, with readable defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from verify_world import START_MS

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    Entry,
    EntryKind,
    EntryPage,
    EpochStart,
    LogState,
    PartitionState,
    WriteMode,
)
from streamhouse.objectstore.keys import CompactedKey, SegmentKey, SharedBlobKey
from streamhouse.wire.records import Record, build_batch

KEY = PartitionKey(TopicId(UUID(int=7)), 3)
OTHER = PartitionKey(TopicId(UUID(int=7)), 4)
OBJECT_ID = UUID("11111111-2222-4333-8444-555555555555")


def entry(base: int, end: int, kind: EntryKind = EntryKind.SEGMENT, **changes: Any) -> Entry:
    epoch = changes.get("epoch", 1)
    place = {"log": KEY, "base_offset": base, "created_ms": START_MS, "object_id": OBJECT_ID}
    name = {
        EntryKind.WAL: lambda: SharedBlobKey(created_ms=START_MS, object_id=OBJECT_ID),
        EntryKind.SEGMENT: lambda: SegmentKey(epoch=epoch, **place),
        EntryKind.COMPACTED: lambda: CompactedKey(end_offset=end, **place),
    }[kind]
    made = Entry(
        base_offset=base,
        end_offset=end,
        kind=kind,
        object_key=str(name()) if 0 <= base <= end else "objects/none",
        byte_offset=0,
        byte_length=1000,
        record_count=end - base + 1,
        encoding=KAFKA_BATCHES if kind is EntryKind.WAL else SEGMENT_V1,
        min_timestamp_ms=START_MS,
        max_timestamp_ms=START_MS + end,
        epoch=epoch,
        created_at_ms=START_MS,
    )
    return replace(made, **changes)


def state(watermark: int, *, log_start: int = 0, epoch: int = 1) -> PartitionState:
    return PartitionState(
        key=KEY,
        log_state=LogState.OPEN,
        high_watermark=watermark,
        log_start_offset=log_start,
        last_stable_offset=watermark,
        leader_epoch=epoch,
        write_mode=WriteMode.LEASED,
        gc_horizon_ms=0,
        compaction_cursor=0,
    )


def page(*ranges: tuple[int, int], watermark: int, log_start: int = 0, more: bool = False) -> EntryPage:
    return EntryPage(
        partition=state(watermark, log_start=log_start),
        entries=tuple(entry(base, end) for base, end in ranges),
        more=more,
    )


def led(*starts: tuple[int, int]) -> list[EpochStart]:
    """Leaderships: (epoch, first offset)."""
    return [
        EpochStart(epoch=epoch, start_offset=start, agent_id="a", wal_id=OBJECT_ID, started_at_ms=START_MS)
        for epoch, start in starts
    ]


def batch(base: int, count: int = 2, *, epoch: int = 1, **fields: Any) -> bytes:
    records = [Record(value=b"%06d" % (base + each), timestamp_ms=START_MS + base + each) for each in range(count)]
    return build_batch(records, base_offset=base, leader_epoch=epoch, **fields)
