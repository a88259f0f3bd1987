"""A task's rows on their way into objects: gathered, placed, encoded, uploaded as shared blobs.

    Arrow batches ──► gathered up to blob_bytes ──► topic by topic: rows → partitions → record batches ──► one LLS1 blob
                                                                                                            │
                           while the next rows are gathered and encoded, at most one upload is under way ◄──┘

An uploaded object counts only when the batch's intent names it. A lost, repeated or speculative attempt leaves
unreferenced objects. Every put is create-only under a unique key. A task needs no metadata store unless its rows name
their topics: the driver has looked everything else up. Knows nothing of Spark but its Arrow batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse.core import topic_config
from streamhouse.core.errors import InvalidRecord, InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MIB
from streamhouse.core.topic_config import TopicConfig
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.formats.shared_blob_v1_writer import BlobSlice, BlobWriter, FinishedBlob
from streamhouse.metadata.contract import KAFKA_BATCHES, IntentSlice, ObjectRef, Topic, WriteMode
from streamhouse.objectstore.keys import SharedBlobKey
from streamhouse.spark.connection import Connection
from streamhouse.spark.partitioning import place_rows
from streamhouse.spark.sink_commit import TopicShare
from streamhouse.spark.sink_options import WriteOptions
from streamhouse.wire.batch import HEADER_BYTES, read_header, stamp_log_append_time
from streamhouse.wire.codecs import Codec
from streamhouse.wire.columns_encode import encode_by_partition

_SLICE_BYTES: Final = 4 * MIB
"""The size of one entry: a reader of an offset fetches the slice that contains it."""
_ROOM_SHARE: Final = 16
"""This fraction of a topic's limit is kept free: incompressible data grows when compressed, with snappy by a
thousandth, and a batch is closed before its compressed size is known.
"""
_MAX_ROWS: Final = 2_000_000_000
"""Row numbers have 32 bits. Without this limit, empty rows could be gathered without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StampClock:
    """The metadata store's clock, as far as a machine can know it that has not asked.

    Only how long an object waits for its commit or for vacuum hangs on it: whether it may be committed and whether it
    may be deleted are decided by comparing the same stamp, right or wrong, with the same horizon (R6).
    """

    planned_ms: int
    """The time on the driver when the write was planned."""
    ahead_ms: int
    """How far the store's clock is ahead of the driver's. The machines of a cluster have nearly the same time."""

    def stamp_ms(self, wall_ms: int) -> int:
        return max(self.planned_ms, wall_ms + self.ahead_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    topic: Topic
    config: TopicConfig


@dataclass(slots=True, kw_only=True)
class _Gathered:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0
    rows: int = 0


class BlobSink:
    """Uploads the rows of one attempt of one task. ``add`` everything, then ``finish``."""

    def __init__(
        self,
        connection: Connection,
        options: WriteOptions,
        columns: Mapping[str, int],
        *,
        topic: Topic | None,
        stamps: StampClock,
        turn: int,
    ) -> None:
        """``topic``: the one for all rows, as the options name it."""
        self._connection = connection
        self._options = options
        self._columns = columns
        self._turn = turn
        """The partition at which rows without a key begin; different for each task."""
        self._targets: dict[str, _Target] = {}
        self._shares: dict[str, list[IntentSlice]] = {}
        self._gathered = _Gathered()
        self._upload: Future[None] | None = None
        self._stamps = stamps
        if topic is not None:
            self._know(topic)

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Raises what the stores raise, and for rows that cannot be written: InvalidRequest and what is below it."""
        for batch in batches:
            gathered = self._gathered
            if gathered.rows + batch.num_rows > _MAX_ROWS:
                self._flush()
                gathered = self._gathered
            gathered.batches.append(batch)
            gathered.size_bytes += batch.nbytes
            gathered.rows += batch.num_rows
            if gathered.size_bytes >= self._options.blob_bytes:
                self._flush()

    def finish(self) -> list[TopicShare]:
        """Upload the rest. Returns what is in objects now, by topic, in the order of the rows."""
        self._flush()
        self._wait_for_upload()
        return [
            TopicShare(
                topic=name,
                topic_id=self._targets[name].topic.topic_id,
                leaderless=self._targets[name].topic.write_mode is WriteMode.LEADERLESS,
                slices=tuple(slices),
            )
            for name, slices in self._shares.items()
        ]

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, _Gathered()
        if not gathered.rows:
            return
        table = pa.Table.from_batches(gathered.batches)
        created_ms = self._stamps.stamp_ms(self._connection.clock.wall_ms())
        writer = BlobWriter(created_at_ms=created_ms)
        for name, rows in self._by_topic(table):
            self._encode(writer, self._target(name), rows)
        blob = writer.finish()
        key = str(SharedBlobKey(created_ms=created_ms, object_id=self._connection.randomness.uuid()))
        ref = ObjectRef(key=key, size_bytes=blob.size, created_at_ms=created_ms)
        for piece in blob.slices:
            self._shares.setdefault(piece.topic, []).extend(_cut(piece, ref))
        self._wait_for_upload()
        self._upload = self._connection.spawn(self._put(key, blob))

    def _by_topic(self, table: pa.Table) -> Iterable[tuple[str, pa.Table]]:
        if self._options.topic is not None:
            yield self._options.topic, table
            return
        names = table.column(self._columns["topic"])
        if names.null_count:
            raise InvalidRecord("a row has no topic", hint="fill the column, or write one topic with the option topic")
        for name in pc.unique(names).to_pylist():
            yield name, table.filter(pc.equal(names, name))

    def _encode(self, writer: BlobWriter, target: _Target, rows: pa.Table) -> None:
        topic, config = target.topic, target.config
        key, value = self._column(rows, "key"), self._column(rows, "value")
        if config.compacts and (key is None or key.null_count):
            raise InvalidRecord(f"a row for {topic.name} has no key, and the topic keeps one record for each key")
        partitions = place_rows(
            rows.num_rows,
            key=key,
            named=self._column(rows, "partition"),
            partition_count=topic.partition_count,
            turn=self._turn,
            topic=topic.name,
        )
        self._turn += 1
        now_ms = self._connection.clock.wall_ms()
        room = config.max_message_bytes // _ROOM_SHARE
        encoded = encode_by_partition(
            key,
            value,
            _times(self._column(rows, "timestamp"), rows.num_rows, now_ms),
            self._column(rows, "headers"),
            partitions=partitions,
            partition_count=topic.partition_count,
            codec=self._codec(config),
            batch_bytes=max(HEADER_BYTES + 1, min(self._options.batch_bytes, config.max_message_bytes - room)),
        )
        for partition, batches in encoded.items():
            body = writer.add(topic.name, PartitionKey(topic.topic_id, partition))
            for batch in batches:
                if len(batch) > config.max_message_bytes:
                    raise LimitExceeded(
                        f"a row for {topic.name} takes {len(batch)} bytes, max.message.bytes allows"
                        f" {config.max_message_bytes}"
                    )
                data = _stamped(batch, now_ms) if config.log_append_time else batch
                body.append(data, read_header(data))

    def _column(self, rows: pa.Table, name: str) -> pa.ChunkedArray | None:
        place = self._columns.get(name)
        if place is None:
            return None
        column = rows.column(place)
        return None if pa.types.is_null(column.type) else column

    def _codec(self, config: TopicConfig) -> Codec:
        """The topic's config counts first, as it does for producers."""
        asked = config.compression_type.lower()
        if asked == "uncompressed":
            return Codec.NONE
        if asked != "producer":
            return Codec[asked.upper()]
        return Codec.LZ4 if self._options.codec is None else self._options.codec

    def _target(self, name: str) -> _Target:
        found = self._targets.get(name)
        if found is None:
            found = self._know(self._connection.run(self._find_topic(name)))
        return found

    def _know(self, topic: Topic) -> _Target:
        target = self._targets[topic.name] = _Target(topic=topic, config=topic_config.effective(topic.configs))
        return target

    async def _find_topic(self, name: str) -> Topic:
        return await (await self._connection.metadata()).get_topic(name)

    async def _put(self, key: str, blob: FinishedBlob) -> None:
        objects = await self._connection.objects()
        await objects.put(key, blob.buffers, accept_equal=True)

    def _wait_for_upload(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            upload.result()


def _cut(piece: BlobSlice, ref: ObjectRef) -> Iterable[IntentSlice]:
    """A partition's body, cut into entries of a size that is good to fetch."""
    begin = position = piece.byte_offset
    records = 0
    times: list[tuple[int, int]] = []
    for number, header in enumerate(piece.batches, start=1):
        position += header.size
        records += header.record_count
        times.append(declared_times_ms(header))
        if position - begin >= _SLICE_BYTES or number == len(piece.batches):
            yield IntentSlice(
                partition=piece.key.partition,
                object=ref,
                byte_offset=begin,
                byte_length=position - begin,
                record_count=records,
                encoding=KAFKA_BATCHES,
                min_timestamp_ms=min(smallest for smallest, _ in times),
                max_timestamp_ms=max(largest for _, largest in times),
            )
            begin, records, times = position, 0, []


def _times(column: pa.ChunkedArray | None, rows: int, now_ms: int) -> pa.Array | pa.ChunkedArray:
    if column is None:
        return pa.repeat(pa.scalar(now_ms, pa.int64()), rows)
    if not pa.types.is_timestamp(column.type):
        raise InvalidRequest(f"column timestamp is {column.type} in Arrow, not a timestamp")
    return pc.fill_null(column, pa.scalar(now_ms * 1000, pa.int64()).cast(column.type)) if column.null_count else column


def _stamped(batch: bytes, now_ms: int) -> bytearray:
    data = bytearray(batch)
    stamp_log_append_time(data, 0, timestamp_ms=now_ms)
    return data
