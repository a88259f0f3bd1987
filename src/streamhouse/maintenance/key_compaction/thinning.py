"""Takes superseded records out of one batch. Pure.

    a record is dropped when       a newer record of its key is mapped
                                   it has no key: it could never be superseded (as in Apache Kafka)
                                   it has no value (a tombstone) and the batch's delete horizon has passed

What stays keeps its offset, time, headers and bytes. The batch keeps base offset, last offset delta, leader epoch,
producer id, epoch and sequence, timestamp type and codec (R18). A batch from which nothing is dropped is passed on byte
for byte. A control batch is never touched.

**The delete horizon** says until when a tombstone must stay. It is set when a pass first keeps a tombstone, which is
when nothing older of its key is left, and is that time plus ``delete.retention.ms``. It stands where Kafka puts it:
attribute bit 6 is set, and the base timestamp *is* the horizon. So it survives every process, and no pass moves it.
Clients need not know it: a record's time is the base timestamp plus its own delta, and the deltas are counted from the
horizon too. A batch with log-append time has no use for its deltas and keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Protocol

from streamhouse.core.errors import LimitExceeded
from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_INFLATED_BATCH_BYTES
from streamhouse.maintenance.compaction.copying import Placed
from streamhouse.maintenance.key_compaction.key_loops import loops
from streamhouse.wire.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    BatchHeader,
    TimestampType,
    join_batch,
    read_header,
)
from streamhouse.wire.codecs import codec_of
from streamhouse.wire.codecs import compress as compress_body
from streamhouse.wire.record_keys import RecordKeys
from streamhouse.wire.records import inflate_body
from streamhouse.wire.varint import MAX_INT64, MIN_INT64


class Superseded(Protocol):
    """What is known of newer records."""

    def superseded(self, records: RecordKeys) -> bytes:
        """One byte for each record: 1 if a newer one of its key is known. What it says of records without a key means
        nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    newer: Superseded
    now_ms: int
    """The time of the metadata store when the pass began."""
    delete_retention_ms: int


@dataclass(slots=True, kw_only=True)
class RecordCounts:
    records: int = 0
    """Records that were looked at."""
    superseded: int = 0
    tombstones: int = 0
    """Tombstones that were dropped because their delete horizon had passed."""
    keyless: int = 0
    """Records that were dropped because they have no key."""

    @property
    def dropped(self) -> int:
        return self.superseded + self.tombstones + self.keyless

    def add(self, other: RecordCounts) -> None:
        self.records += other.records
        self.superseded += other.superseded
        self.tombstones += other.tombstones
        self.keyless += other.keyless


def thin_batch(batch: memoryview, header: BatchHeader, rule: KeepRule, counts: RecordCounts) -> Placed | None:
    """The batch with what stays of it, or None when no record stays. Raises CorruptData, LimitExceeded."""
    if header.is_control:
        return batch, header
    if not header.record_count:
        return None
    body = inflate_body(batch, 0, header, max_bytes=MAX_INFLATED_BATCH_BYTES)
    records = RecordKeys(body, header, values=True)
    kept, kept_count = _choose(records, header, rule, counts)
    if not kept_count:
        return None
    horizon_ms = _new_horizon_ms(records, kept, header, rule)
    if kept_count == header.record_count and horizon_ms is None:
        return batch, header
    made = _rebuilt(body, header, records, kept, kept_count, horizon_ms)
    return memoryview(made), read_header(made)


def empty_batch(header: BatchHeader) -> Placed:
    """The batch without its records: it still says which offsets it covered, and who wrote them. Its time is the
    largest that its records had, and it is not compressed."""
    made = _joined(
        b"",
        header,
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT),
        base_timestamp=header.max_timestamp,
        max_timestamp=header.max_timestamp,
        record_count=0,
    )
    return memoryview(made), read_header(made)


def _choose(records: RecordKeys, header: BatchHeader, rule: KeepRule, counts: RecordCounts) -> tuple[bytes, int]:
    """Which records stay, one byte for each, and how many they are."""
    is_past = bool(header.attributes & DELETE_HORIZON_BIT) and header.base_timestamp <= rule.now_ms
    keyless = _flags(records.without_key)
    superseded = _flags(rule.newer.superseded(records)) & ~keyless
    tombstones = _flags(records.without_value) & ~(keyless | superseded) if is_past else 0
    kept = _flags(b"\1" * header.record_count) & ~(keyless | superseded | tombstones)
    counts.records += header.record_count
    counts.keyless += keyless.bit_count()
    counts.superseded += superseded.bit_count()
    counts.tombstones += tombstones.bit_count()
    return kept.to_bytes(header.record_count, "little"), kept.bit_count()


def _flags(flags: bytes) -> int:
    """One byte for each record as one number, so that all are compared at once."""
    return int.from_bytes(flags, "little")


def _new_horizon_ms(records: RecordKeys, kept: bytes, header: BatchHeader, rule: KeepRule) -> int | None:
    """None when the batch keeps no tombstone, or has its horizon already."""
    if header.attributes & DELETE_HORIZON_BIT or not _flags(kept) & _flags(records.without_value):
        return None
    horizon_ms = min(rule.now_ms + rule.delete_retention_ms, MAX_INT64)
    oldest_ms = min(compress(records.timestamps_ms, kept))
    # Without a horizon the tombstone stays for good. That is safe, and such times are no honest producer's.
    return horizon_ms if oldest_ms - horizon_ms >= MIN_INT64 else None


def _rebuilt(
    body: memoryview,
    header: BatchHeader,
    records: RecordKeys,
    kept: bytes,
    kept_count: int,
    horizon_ms: int | None,
) -> bytes:
    has_own_times = header.timestamp_type is TimestampType.CREATE_TIME
    shift_ms = header.base_timestamp - horizon_ms if horizon_ms is not None and has_own_times else 0
    kept_body = loops.kept_records(body, kept, shift_ms)
    if len(kept_body) > MAX_INFLATED_BATCH_BYTES:
        raise _too_large(header, len(kept_body), MAX_INFLATED_BATCH_BYTES)
    payload = compress_body(codec_of(header.codec), kept_body)
    size = HEADER_BYTES + memoryview(payload).nbytes
    if size > MAX_BATCH_BYTES:
        raise _too_large(header, size, MAX_BATCH_BYTES)
    return _joined(
        payload,
        header,
        attributes=header.attributes | (0 if horizon_ms is None else DELETE_HORIZON_BIT),
        base_timestamp=header.base_timestamp if horizon_ms is None else horizon_ms,
        max_timestamp=max(compress(records.timestamps_ms, kept)) if has_own_times else header.max_timestamp,
        record_count=kept_count,
    )


def _joined(
    payload: bytes | bytearray | memoryview,
    header: BatchHeader,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
) -> bytes:
    return join_batch(
        payload,
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=record_count,
    )


def _too_large(header: BatchHeader, size_bytes: int, most_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"the batch at offset {header.base_offset} would have {size_bytes} bytes without its superseded records, and"
        f" {most_bytes} are allowed",
        hint="its producer compressed it harder than key compaction does: set its topic's cleanup.policy to delete",
    )
