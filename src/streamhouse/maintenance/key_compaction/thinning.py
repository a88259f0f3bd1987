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
from typing import Protocol

from streamhouse.core.errors import LimitExceeded
from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_INFLATED_BATCH_BYTES
from streamhouse.maintenance.compaction.copying import Placed
from streamhouse.wire.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    BatchHeader,
    TimestampType,
    join_batch,
    read_header,
)
from streamhouse.wire.codecs import codec_of, compress
from streamhouse.wire.record_keys import RecordKeys
from streamhouse.wire.records import inflate_body
from streamhouse.wire.varint import MAX_INT64, MIN_INT64, append_varint, read_varint, read_varlong


class Superseded(Protocol):
    """What is known of newer records."""

    def is_superseded(self, key: bytes, offset: int) -> bool: ...


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


def _choose(records: RecordKeys, header: BatchHeader, rule: KeepRule, counts: RecordCounts) -> tuple[bytearray, int]:
    """Which records stay, one byte for each, and how many they are."""
    is_superseded, keys, bounds = rule.newer.is_superseded, records.keys, records.bounds
    without_key, without_value = records.without_key, records.without_value
    is_past = bool(header.attributes & DELETE_HORIZON_BIT) and header.base_timestamp <= rule.now_ms
    kept = bytearray(header.record_count)
    kept_count = 0
    counts.records += header.record_count
    for at, offset in enumerate(records.offsets):
        if without_key[at]:
            counts.keyless += 1
        elif is_superseded(keys[bounds[at] : bounds[at + 1]], offset):
            counts.superseded += 1
        elif is_past and without_value[at]:
            counts.tombstones += 1
        else:
            kept[at] = 1
            kept_count += 1
    return kept, kept_count


def _new_horizon_ms(records: RecordKeys, kept: bytearray, header: BatchHeader, rule: KeepRule) -> int | None:
    """None when the batch keeps no tombstone, or has its horizon already."""
    keeps_tombstone = any(stays and is_null for stays, is_null in zip(kept, records.without_value, strict=True))
    if header.attributes & DELETE_HORIZON_BIT or not keeps_tombstone:
        return None
    horizon_ms = min(rule.now_ms + rule.delete_retention_ms, MAX_INT64)
    oldest_ms = min(time_ms for at, time_ms in enumerate(records.timestamps_ms) if kept[at])
    # Without a horizon the tombstone stays for good. That is safe, and such times are no honest producer's.
    return horizon_ms if oldest_ms - horizon_ms >= MIN_INT64 else None


def _rebuilt(
    body: memoryview,
    header: BatchHeader,
    records: RecordKeys,
    kept: bytearray,
    kept_count: int,
    horizon_ms: int | None,
) -> bytes:
    has_own_times = header.timestamp_type is TimestampType.CREATE_TIME
    shift_ms = header.base_timestamp - horizon_ms if horizon_ms is not None and has_own_times else 0
    kept_body = _kept_records(body, kept, shift_ms)
    if len(kept_body) > MAX_INFLATED_BATCH_BYTES:
        raise _too_large(header, len(kept_body), MAX_INFLATED_BATCH_BYTES)
    payload = compress(codec_of(header.codec), kept_body)
    size = HEADER_BYTES + memoryview(payload).nbytes
    if size > MAX_BATCH_BYTES:
        raise _too_large(header, size, MAX_BATCH_BYTES)
    times_ms = (time_ms for at, time_ms in enumerate(records.timestamps_ms) if kept[at])
    return _joined(
        payload,
        header,
        attributes=header.attributes | (0 if horizon_ms is None else DELETE_HORIZON_BIT),
        base_timestamp=header.base_timestamp if horizon_ms is None else horizon_ms,
        max_timestamp=max(times_ms) if has_own_times else header.max_timestamp,
        record_count=kept_count,
    )


def _kept_records(body: memoryview, kept: bytearray, shift_ms: int) -> bytearray:
    """The bytes of the records that stay; ``shift_ms`` is added to their timestamp deltas."""
    out = bytearray()
    position, end = 0, len(body)
    for stays in kept:
        length, start = read_varint(body, position, end)
        after = start + length
        if stays and shift_ms:
            _append_shifted(out, body[start:after], shift_ms)
        elif stays:
            out += body[position:after]
        position = after
    return out


def _append_shifted(out: bytearray, record: memoryview, shift_ms: int) -> None:
    delta_ms, rest = read_varlong(record, 1, len(record))
    shifted = bytearray(record[:1])
    append_varint(shifted, delta_ms + shift_ms)
    append_varint(out, len(shifted) + len(record) - rest)
    out += shifted
    out += record[rest:]


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
