"""What tests of the source stand on: records in topics, compaction by hand, and a read carried out without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamhouse.app.platform import StreamHouse
from streamhouse.core.ids import PartitionKey
from streamhouse.formats.segment_v1_writer import SegmentWriter
from streamhouse.metadata.contract import (
    SEGMENT_V1,
    Compaction,
    CompactionSource,
    Entry,
    EntryKind,
    ObjectRef,
    ScanRange,
)
from streamhouse.objectstore.keys import CompactedKey
from streamhouse.spark.address import resolve_address
from streamhouse.spark.batch import BatchRead, Task, TaskReader
from streamhouse.spark.options import parse_read_options
from streamhouse.spark.rows import arrow_schema
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record

BASE_MS = 1_700_000_000_000


def sample(number: int) -> Record:
    """A record that can be told from every other, with a null here and there."""
    return Record(
        key=None if number % 7 == 0 else b"key-%d" % number,
        value=None if number % 11 == 0 else b"value-%d" % number,
        timestamp_ms=BASE_MS + number,
        headers=(Header("n", b"%d" % number), Header("empty", None)) if number % 3 == 0 else (),
    )


async def fill(
    api: StreamHouse, topic: str, partition: int, count: int, *, per_batch: int = 50, first: int = 0, flush: bool = True
) -> None:
    """Batches of every codec in turn."""
    codecs = list(Codec)
    for number, at in enumerate(range(first, first + count, per_batch)):
        records = [sample(each) for each in range(at, min(at + per_batch, first + count))]
        await api.produce_batch(topic, partition, records, codec=codecs[number % len(codecs)])
    if flush:
        await api.flush()


async def entries_of(api: StreamHouse, key: PartitionKey) -> list[Entry]:
    (page,) = await api.stores.metadata.scan_entries([ScanRange(key=key, from_offset=0)], limit=1000)
    return list(page.entries)


async def compact(api: StreamHouse, key: PartitionKey, *, delete: bool = True) -> Entry:
    """Put all that a partition holds into one LZ4 segment, as the compactor will; the former objects go at once."""
    sources = await entries_of(api, key)
    writer, buffers = SegmentWriter(key=key, compression="lz4"), []
    offset, end = sources[0].base_offset, sources[-1].end_offset + 1
    while offset < end:
        found = await api.agent.reader.read(key, offset, max_bytes=1 << 20)
        for batch in found.batches:
            for position, header in iter_batches(batch):
                buffers += writer.append(batch[position : position + header.size], header)
        offset = found.next_offset
    finished = writer.finish()
    now_ms, object_id = api.clock.wall_ms(), api.randomness.uuid()
    name = CompactedKey(
        log=key, base_offset=sources[0].base_offset, end_offset=end - 1, created_ms=now_ms, object_id=object_id
    )
    await api.stores.objects.put(str(name), [*buffers, *finished.buffers])
    target = Entry(
        base_offset=sources[0].base_offset,
        end_offset=end - 1,
        kind=EntryKind.COMPACTED,
        object_key=str(name),
        byte_offset=0,
        byte_length=finished.size,
        record_count=finished.footer.record_count,
        encoding=SEGMENT_V1,
        min_timestamp_ms=finished.footer.min_timestamp_ms,
        max_timestamp_ms=finished.footer.max_timestamp_ms,
        epoch=sources[-1].epoch,
        created_at_ms=now_ms,
    )
    compaction = Compaction(
        key=key,
        compaction_id=object_id,
        sources=tuple(
            CompactionSource(base_offset=e.base_offset, end_offset=e.end_offset, object_key=e.object_key)
            for e in sources
        ),
        target=target,
        object=ObjectRef(key=str(name), size_bytes=finished.size, created_at_ms=now_ms),
    )
    await api.stores.metadata.begin_compaction(compaction)
    await api.stores.metadata.apply_compaction(key, object_id)
    if delete:
        await api.stores.objects.delete([source.object_key for source in sources])
    return target


@dataclass(frozen=True, kw_only=True)
class PlannedRead:
    """A batch read between its planning and its tasks; everything in it has been through a pickle, as in Spark."""

    tasks: list[Task]
    reader: TaskReader
    columns: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        batches = [batch for task in self.tasks for batch in self.reader.read(task)]
        table = pa.Table.from_batches(batches, schema=arrow_schema(self.columns))
        return sorted(table.to_pylist(), key=lambda row: (row.get("topic"), row.get("partition"), row.get("offset")))


def plan(options: Mapping[str, str]) -> PlannedRead:
    parsed = parse_read_options(options, streaming=False)
    address = resolve_address(options, environ={})
    reader = TaskReader(address=address, columns=parsed.columns, fail_on_data_loss=parsed.fail_on_data_loss)
    tasks, reader = pickle.loads(pickle.dumps((BatchRead(address=address, options=parsed).plan(), reader)))
    return PlannedRead(tasks=tasks, reader=reader, columns=parsed.columns)


def read(options: Mapping[str, str]) -> list[dict[str, Any]]:
    return plan(options).rows()
