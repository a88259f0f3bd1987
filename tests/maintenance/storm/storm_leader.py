"""A leader that a test drives by hand: it uploads objects and commits them, each when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storm_place import Stores

from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.leased.pending import run_of
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    EntryKind,
    Holder,
    LeasedSlice,
    NewTopic,
    ObjectRef,
    Topic,
    Verdict,
)
from streamhouse.objectstore.keys import SegmentKey, SharedBlobKey
from streamhouse.wire.batch import read_header
from streamhouse.wire.records import Record, build_batch

TTL_MS: Final = 30_000


class Leader:
    """Leads partitions under one name and commits objects by hand, as an agent does it."""

    def __init__(self, stores: Stores, agent_id: str) -> None:
        self.stores = stores
        self.randomness = SystemRandomness()
        self.holder = Holder(agent_id=agent_id, incarnation=self.randomness.uuid(), wal_id=self.randomness.uuid())
        self.epochs: dict[PartitionKey, int] = {}
        self.next_offsets: dict[PartitionKey, int] = {}

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        """A new topic, and its leases."""
        topic = await self.new_topic(name, partitions, **configs)
        await self.lead(topic)
        return topic

    async def new_topic(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        new = NewTopic(
            topic_id=self.randomness.uuid(),  # type: ignore[arg-type]
            name=name,
            partition_count=partitions,
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        return await self.stores.metadata.create_topic(new)

    async def lead(self, topic: Topic) -> None:
        for key in topic.partition_keys():
            lease = await self.stores.metadata.acquire_partition_lease(key, self.holder, ttl_ms=TTL_MS)
            self.epochs[key], self.next_offsets[key] = lease.epoch, lease.high_watermark

    async def upload_blob(self, parts: dict[PartitionKey, list[str]]) -> list[LeasedSlice]:
        """One object with a batch of these values for each partition. Returns what is to be committed."""
        now_ms = await self.stores.metadata.now_ms()
        writer = BlobWriter(created_at_ms=now_ms)
        for key, values in parts.items():
            made = build_batch([Record(value=value.encode(), timestamp_ms=now_ms) for value in values])
            writer.add("storm", key).append(made, read_header(made))
        blob = writer.finish()
        name = SharedBlobKey(created_ms=now_ms, object_id=self.randomness.uuid())
        ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=now_ms)
        await self.stores.objects.put(ref.key, blob.buffers)
        return [
            LeasedSlice(
                key=piece.key,
                epoch=self.epochs[piece.key],
                base_offset=self.next_offsets[piece.key],
                kind=EntryKind.WAL,
                object=ref,
                byte_offset=piece.byte_offset,
                byte_length=piece.byte_length,
                encoding=KAFKA_BATCHES,
                batches=tuple(run_of(header) for header in piece.batches),
            )
            for piece in blob.slices
        ]

    async def upload_segment(self, key: PartitionKey, values: Sequence[str]) -> list[LeasedSlice]:
        now_ms, base, epoch = await self.stores.metadata.now_ms(), self.next_offsets[key], self.epochs[key]
        records = [Record(value=value.encode(), timestamp_ms=now_ms) for value in values]
        made = build_batch(records, base_offset=base, leader_epoch=epoch)
        segment = write_segment([(made, read_header(made))], key=key)
        name = SegmentKey(log=key, base_offset=base, epoch=epoch, created_ms=now_ms, object_id=self.randomness.uuid())
        ref = ObjectRef(key=str(name), size_bytes=segment.size, created_at_ms=now_ms)
        await self.stores.objects.put(ref.key, segment.buffers)
        return [
            LeasedSlice(
                key=key,
                epoch=epoch,
                base_offset=base,
                kind=EntryKind.SEGMENT,
                object=ref,
                byte_offset=0,
                byte_length=segment.size,
                encoding=SEGMENT_V1,
                batches=(run_of(read_header(made)),),
            )
        ]

    async def write(self, slices: Sequence[LeasedSlice]) -> None:
        """Commit, which must succeed."""
        verdicts = await self.commit(slices)
        assert set(verdicts) == {Verdict.COMMITTED}, verdicts

    async def commit(self, slices: Sequence[LeasedSlice]) -> list[Verdict]:
        append_id = AppendId(self.randomness.uuid())
        outcomes = await self.stores.metadata.commit_leased(append_id, list(slices))
        for piece, outcome in zip(slices, outcomes, strict=True):
            if outcome.verdict is Verdict.COMMITTED:
                self.next_offsets[piece.key] = outcome.end_offset + 1
        return [outcome.verdict for outcome in outcomes]
