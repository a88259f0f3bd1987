"""Simulated Spark drivers: each writes batches with the sink's own commit, is killed in between, and tries again.

A batch goes to some partitions of one topic. A driver that is killed, or a second one that runs beside it, uploads the
same rows again, and the first intent counts. For the checker a batch is like one of an idempotent producer: whole, in
order, at most once, and in the log for good once the driver was told so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from simulator.clients import Client
from simulator.history import ACKS_ALL, Write
from simulator.loop import SimClock
from simulator.metadata import remote_metadata
from simulator.network import Weather
from simulator.store import RemoteStore
from simulator.world import RetryLimit, World, key_of
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.metadata.contract import KAFKA_BATCHES, IntentSlice, ObjectRef, Topic
from streamhouse.objectstore.keys import SharedBlobKey
from streamhouse.objectstore.retries import RetryingStore
from streamhouse.spark.sink_commit import BatchId, SinkCommit, TopicShare
from streamhouse.wire.batch import read_header
from streamhouse.wire.records import Record, build_batch

_COMMIT_TIMEOUT_MS: Final = 3000


class Sink:
    def __init__(self, world: World, name: str) -> None:
        self.client = Client(world, name)
        self.world = world
        self.dice = self.client.dice
        self._name = name
        self._weather, self._store_weather = Weather(), Weather(latency_ms=(2.0, 20.0), timeout_ms=700.0)
        self._metadata = remote_metadata(
            world.metadata, world.loop, self.dice.child("metadata"), self._weather, name=f"{name} to metadata"
        )
        remote = RemoteStore(
            world.objects,
            world.loop,
            self.dice.child("store"),
            self._store_weather,
            name=f"{name} to objects",
            tell=lambda call, stage: None,
        )
        self._objects = RetryingStore(
            remote, clock=SimClock(world.loop), randomness=self.dice, policy=world.scenario.store_retries
        )
        self._retries = RetryLimit(world)

    async def run(self) -> None:
        scenario = self.world.scenario
        for weather in (self._weather, self._store_weather):
            weather.lost_request = scenario.lost_request
            weather.lost_reply = scenario.lost_reply
            weather.delayed = scenario.delayed
            weather.repeated = scenario.repeated
        for number in range(scenario.sink_batches):
            if self.world.over:
                return
            topic = self.world.topics[self.dice.pick(sorted(self.world.topics))]
            await self._write(topic, number, self._new_writes(topic, number))
            await self.world.rest(self.dice.uniform(0, 800) / 1000)

    def _new_writes(self, topic: Topic, number: int) -> list[Write]:
        writes: list[Write] = []
        for key in topic.partition_keys():
            if writes and self.dice.chance(0.3):
                continue
            rows = self.dice.between(1, 3)
            values = [
                f"{self._name}:{number:03d}:{key.partition}:{row}".ljust(self.world.scenario.value_bytes, ".")
                for row in range(rows)
            ]
            write = Write(
                producer=self._name,
                key=key_of(key),
                values=tuple(values),
                acks=ACKS_ALL,
                invoked_ms=self.world.now_ms(),
                sequence=number,
            )
            writes.append(write)
            self.world.history.writes.append(write)
        return writes

    async def _write(self, topic: Topic, number: int, writes: Sequence[Write]) -> None:
        """Write a batch, again and again, until it is known to be in the log or its topic is gone."""
        batch = BatchId(query_id=self._name, batch_id=number)
        while True:
            if self.world.over:
                self._weather.calm()
                self._store_weather.calm()
            drivers = 2 if self.dice.chance(0.2) else 1
            tried = await asyncio.gather(
                *(self._one_driver(topic, batch, writes) for _ in range(drivers)), return_exceptions=True
            )
            if any(outcome is None for outcome in tried):
                self._acknowledge(topic, number, writes)
                return
            error = next(outcome for outcome in tried if isinstance(outcome, BaseException))
            if not isinstance(error, (StreamHouseError, TimeoutError)):
                raise error
            if self.world.topics[topic.name].topic_id != topic.topic_id:
                return
            if self._retries.too_long():
                self.world.problem(f"{batch} is not written: {error}")
                return
            await asyncio.sleep(self.dice.uniform(0, 0.3))

    def _acknowledge(self, topic: Topic, number: int, writes: Sequence[Write]) -> None:
        self.world.note(f"batch {number} of {self._name} is in the log")
        for write in writes:
            adopted = self.world.adopted.get((self._name, number, write.key))
            if adopted is None:
                self.world.problem(f"batch {number} of {self._name} is said to be complete, but was not adopted")
                continue
            write.acked_ms = self.world.now_ms()
            write.taken_ms = adopted.at_ms
            write.base_offset, write.epoch = adopted.base_offset, adopted.epoch

    async def _one_driver(self, topic: Topic, batch: BatchId, writes: Sequence[Write]) -> None:
        """May be killed at any moment; what it has sent is on its way all the same."""
        killed = not self.world.over and self.dice.chance(0.25)
        async with asyncio.timeout(self.dice.uniform(0, 0.4) if killed else None):
            slices = await self._upload(topic, writes)
            share = TopicShare(topic=topic.name, topic_id=topic.topic_id, leaderless=False, slices=tuple(slices))
            await SinkCommit(self._metadata, timeout_ms=_COMMIT_TIMEOUT_MS).commit(batch, [share])

    async def _upload(self, topic: Topic, writes: Sequence[Write]) -> list[IntentSlice]:
        """Rows of a partition as one slice or as several, as chance will have it; always in order."""
        created_ms = await self._metadata.now_ms()
        blob = BlobWriter(created_at_ms=created_ms)
        for write in writes:
            write.attempts += 1
            body = blob.add(topic.name, PartitionKey(topic.topic_id, write.key[1]))
            for values in self._cut(write.values):
                data = build_batch([Record(key=b"key", value=value.encode(), timestamp_ms=1) for value in values])
                body.append(data, read_header(data))
        finished = blob.finish()
        key = str(SharedBlobKey(created_ms=created_ms, object_id=self.dice.uuid()))
        await self._objects.put(key, [b"".join(finished.buffers)], accept_equal=True)
        ref = ObjectRef(key=key, size_bytes=finished.size, created_at_ms=created_ms)
        slices = []
        for piece in finished.slices:
            position = piece.byte_offset
            for header in piece.batches:
                smallest_ms, largest_ms = declared_times_ms(header)
                slices.append(
                    IntentSlice(
                        partition=piece.key.partition,
                        object=ref,
                        byte_offset=position,
                        byte_length=header.size,
                        record_count=header.record_count,
                        encoding=KAFKA_BATCHES,
                        min_timestamp_ms=smallest_ms,
                        max_timestamp_ms=largest_ms,
                    )
                )
                position += header.size
        return slices

    def _cut(self, values: tuple[str, ...]) -> list[tuple[str, ...]]:
        at = self.dice.between(1, len(values))
        return [part for part in (values[:at], values[at:]) if part]
