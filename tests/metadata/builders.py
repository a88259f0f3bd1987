"""Slices, batches and intents with readable defaults, for every test of a metadata store. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    BatchRun,
    Compaction,
    CompactionSource,
    Entry,
    EntryKind,
    Intent,
    IntentKey,
    IntentSlice,
    LeaderlessSlice,
    LeasedSlice,
    ObjectRef,
)

START_MS = 1_700_000_000_000
"""What the store's clock shows when a test begins; it stands still until the test moves it."""
RECORD_BYTES = 100
TTL_MS = 30_000


def batch(
    count: int = 1,
    *,
    at_ms: int = START_MS,
    until_ms: int | None = None,
    size: int | None = None,
    producer: int | None = None,
    epoch: int = 0,
    sequence: int = 0,
) -> BatchRun:
    """``count`` records stamped ``at_ms`` … ``until_ms``; with ``producer``, an idempotent one's."""
    return BatchRun(
        record_count=count,
        byte_length=count * RECORD_BYTES if size is None else size,
        min_timestamp_ms=at_ms,
        max_timestamp_ms=at_ms if until_ms is None else until_ms,
        producer_id=-1 if producer is None else producer,
        producer_epoch=-1 if producer is None else epoch,
        base_sequence=-1 if producer is None else sequence,
    )


def leased_slice(
    key: PartitionKey,
    ref: ObjectRef,
    *batches: BatchRun,
    epoch: int,
    base: int,
    kind: EntryKind = EntryKind.SEGMENT,
    byte_offset: int = 0,
) -> LeasedSlice:
    runs = batches or (batch(),)
    return LeasedSlice(
        key=key,
        epoch=epoch,
        base_offset=base,
        kind=kind,
        object=ref,
        byte_offset=byte_offset,
        byte_length=sum(run.byte_length for run in runs),
        encoding=SEGMENT_V1 if kind is EntryKind.SEGMENT else KAFKA_BATCHES,
        batches=runs,
    )


def leaderless_slice(key: PartitionKey, *batches: BatchRun, byte_offset: int = 0) -> LeaderlessSlice:
    runs = batches or (batch(),)
    return LeaderlessSlice(
        key=key,
        byte_offset=byte_offset,
        byte_length=sum(run.byte_length for run in runs),
        encoding=KAFKA_BATCHES,
        batches=runs,
    )


def intent_slice(
    partition: int, ref: ObjectRef, count: int = 1, *, byte_offset: int = 0, at_ms: int = START_MS
) -> IntentSlice:
    return IntentSlice(
        partition=partition,
        object=ref,
        byte_offset=byte_offset,
        byte_length=count * RECORD_BYTES,
        record_count=count,
        encoding=KAFKA_BATCHES,
        min_timestamp_ms=at_ms,
        max_timestamp_ms=at_ms,
    )


def intent(key: IntentKey, *slices: IntentSlice) -> Intent:
    return Intent(key=key, slices=slices)


def compaction_of(
    key: PartitionKey,
    entries: Sequence[Entry],
    ref: ObjectRef,
    randomness: Randomness,
    *,
    records: int | None = None,
    max_timestamp_ms: int | None = None,
) -> Compaction:
    """Replace ``entries`` by one; ``records`` and ``max_timestamp_ms`` differ when key compaction dropped some."""
    counted = sum(entry.record_count for entry in entries)
    target = Entry(
        base_offset=entries[0].base_offset,
        end_offset=entries[-1].end_offset,
        kind=EntryKind.COMPACTED,
        object_key=ref.key,
        byte_offset=0,
        byte_length=ref.size_bytes,
        record_count=counted if records is None else records,
        encoding=SEGMENT_V1,
        min_timestamp_ms=min(entry.min_timestamp_ms for entry in entries),
        max_timestamp_ms=max(entry.max_timestamp_ms for entry in entries)
        if max_timestamp_ms is None
        else max_timestamp_ms,
        epoch=entries[-1].epoch,
        created_at_ms=ref.created_at_ms,
    )
    return Compaction(
        key=key,
        compaction_id=randomness.uuid(),
        sources=tuple(
            CompactionSource(base_offset=one.base_offset, end_offset=one.end_offset, object_key=one.object_key)
            for one in entries
        ),
        target=target,
        object=ref,
    )


def assert_dense(entries: Sequence[Entry], *, log_start: int, watermark: int) -> None:
    """Invariant 2: no gap, no overlap, from (an entry that holds) the log start to the watermark."""
    expected = entries[0].base_offset if entries else watermark
    assert expected <= log_start or log_start == watermark
    for entry in entries:
        assert entry.base_offset == expected, f"gap or overlap at {expected}: {entry}"
        assert entry.end_offset >= entry.base_offset
        assert entry.end_offset >= log_start, f"{entry} lies wholly below the log start {log_start}"
        expected = entry.end_offset + 1
    assert expected == watermark
