"""The demo of S1.19: three topics, a segment written to and read back from every partition, and what landed where.

It walks the path that an agent takes for every flush, one step at a time, against the real stores: lease, batches at
the next offsets, segment, create-only upload, fenced commit; then back: lookup, ranged reads, records. Running it again
appends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamhouse.app.platform import StreamHouse
from streamhouse.core.errors import CorruptData, NotLeader, TopicExists
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.formats.segment_v1_index import range_of
from streamhouse.formats.segment_v1_reader import RangedReader, decode_run
from streamhouse.formats.segment_v1_writer import FinishedSegment, write_segment
from streamhouse.metadata.contract import (
    SEGMENT_V1,
    BatchRun,
    EntryKind,
    Holder,
    Lease,
    LeasedSlice,
    ObjectRef,
    SliceOutcome,
    Topic,
    Verdict,
)
from streamhouse.objectstore.keys import SegmentKey
from streamhouse.wire.batch import BatchHeader, iter_batches, read_header
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch, decode_records

AGENT_ID: Final = "demo-agent"
RECORDS_PER_BATCH: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTopic:
    name: str
    partition_count: int
    value: Callable[[int, int], dict[str, object]]
    """What record ``offset`` of a partition says."""


DEMO_TOPICS: Final = (
    DemoTopic(
        name="orders",
        partition_count=3,
        value=lambda partition, offset: {
            "order_id": f"o-{partition}-{offset}",
            "amount": round(9.5 + (offset * 37 % 900) / 10, 2),
            "currency": "EUR",
        },
    ),
    DemoTopic(
        name="user-events",
        partition_count=2,
        value=lambda partition, offset: {"user": f"u{offset * 7 % 40}", "event": ("view", "click", "buy")[offset % 3]},
    ),
    DemoTopic(
        name="metrics",
        partition_count=4,
        value=lambda partition, offset: {"host": f"web-{partition}", "cpu": (offset * 13 % 100) / 100},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRow:
    """One partition after the demo: who leads it, where it ends, and what this run wrote and read back."""

    topic: str
    partition: int
    leader: str
    epoch: int
    ttl_ms: int
    high_watermark: int
    records_read: int
    object_key: str
    object_bytes: int
    sample: str
    """The last record's value, as it was read back."""


async def run_demo(
    sh: StreamHouse, *, batches: int = 2, progress: Callable[[str], None] = lambda _: None
) -> list[DemoRow]:
    """Create what is missing, write one segment to every partition, read it back, tell what is there."""
    holder = Holder(agent_id=AGENT_ID, incarnation=sh.randomness.uuid(), wal_id=sh.randomness.uuid())
    rows: list[DemoRow] = []
    for demo in DEMO_TOPICS:
        topic = await _ensure_topic(sh, demo)
        for key in topic.partition_keys():
            progress(f"{topic.name}/{key.partition}")
            lease = await sh.stores.metadata.acquire_partition_lease(key, holder, ttl_ms=sh.settings.lease.ttl_ms)
            written = await _write(sh, demo, key, lease, batches)
            rows.append(await _read_back(sh, topic, key, lease, written))
    return rows


async def _ensure_topic(sh: StreamHouse, demo: DemoTopic) -> Topic:
    try:
        return await sh.create_topic(demo.name, demo.partition_count)
    except TopicExists:
        return await sh.topic(demo.name)


async def _write(sh: StreamHouse, demo: DemoTopic, key: PartitionKey, lease: Lease, batches: int) -> SliceOutcome:
    taken = [
        _batch(
            demo, key, lease, base_offset=lease.high_watermark + number * RECORDS_PER_BATCH, now_ms=sh.clock.wall_ms()
        )
        for number in range(batches)
    ]
    headers = [read_header(batch) for batch in taken]
    segment = write_segment(zip(taken, headers, strict=True), key=key)
    # The store's clock, not ours: the garbage collector compares this stamp with its own (R6).
    created_ms = await sh.stores.metadata.now_ms()
    name = str(
        SegmentKey(
            log=key,
            base_offset=segment.footer.base_offset,
            epoch=lease.epoch,
            created_ms=created_ms,
            object_id=sh.randomness.uuid(),
        )
    )
    await sh.stores.objects.put(name, segment.buffers)
    uploaded = ObjectRef(key=name, size_bytes=segment.size, created_at_ms=created_ms)
    piece = _slice(key, lease, segment, headers, uploaded)
    (outcome,) = await sh.stores.metadata.commit_leased(AppendId(sh.randomness.uuid()), [piece])
    if outcome.verdict is not Verdict.COMMITTED:
        raise NotLeader(f"{demo.name}/{key.partition}", current_leader=None, hint=f"the commit was {outcome.verdict}")
    return outcome


def _batch(demo: DemoTopic, key: PartitionKey, lease: Lease, *, base_offset: int, now_ms: int) -> bytes:
    records = [
        Record(
            key=f"{demo.name}-{offset}".encode(),
            value=json.dumps(demo.value(key.partition, offset)).encode(),
            timestamp_ms=now_ms,
        )
        for offset in range(base_offset, base_offset + RECORDS_PER_BATCH)
    ]
    return build_batch(records, codec=Codec.LZ4, base_offset=base_offset, leader_epoch=lease.epoch)


def _slice(
    key: PartitionKey, lease: Lease, segment: FinishedSegment, headers: list[BatchHeader], uploaded: ObjectRef
) -> LeasedSlice:
    return LeasedSlice(
        key=key,
        epoch=lease.epoch,
        base_offset=segment.footer.base_offset,
        kind=EntryKind.SEGMENT,
        object=uploaded,
        byte_offset=0,
        byte_length=segment.size,
        encoding=SEGMENT_V1,
        batches=tuple(
            BatchRun(
                record_count=header.record_count,
                byte_length=header.size,
                min_timestamp_ms=header.base_timestamp,
                max_timestamp_ms=header.max_timestamp,
            )
            for header in headers
        ),
    )


async def _read_back(sh: StreamHouse, topic: Topic, key: PartitionKey, lease: Lease, written: SliceOutcome) -> DemoRow:
    """As any reader would: look the first offset up, fetch footer and index, then the blocks, then decode."""
    found = await sh.stores.metadata.find_entry(key, written.base_offset)
    entry = found.entry
    if entry is None or entry.base_offset != written.base_offset:
        raise CorruptData(
            f"{topic.name}/{key.partition}: offset {written.base_offset} was committed but is not indexed"
        )
    reader = RangedReader(entry.byte_length)
    while (need := reader.need()) is not None:
        reader.feed(await sh.stores.objects.get_range(entry.object_key, need.offset, need.length))
    blocks = reader.index.blocks_from(written.base_offset)
    wanted = range_of(blocks)
    stored = await sh.stores.objects.get_range(entry.object_key, wanted.offset, wanted.length)
    records = [
        record
        for run in decode_run(stored, blocks)
        for position, _ in iter_batches(run)
        for record in decode_records(run, position)
    ]
    offsets = [record.offset for record in records]
    if offsets != list(range(written.base_offset, written.end_offset + 1)):
        raise CorruptData(f"{topic.name}/{key.partition}: read {len(offsets)} records, not those that were written")
    now_ms = await sh.stores.metadata.now_ms()
    return DemoRow(
        topic=topic.name,
        partition=key.partition,
        leader=lease.agent_id,
        epoch=lease.epoch,
        ttl_ms=lease.expires_at_ms - now_ms,
        high_watermark=found.partition.high_watermark,
        records_read=len(records),
        object_key=entry.object_key,
        object_bytes=entry.byte_length,
        sample=(records[-1].value or b"").decode(),
    )
