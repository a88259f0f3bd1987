"""An object of the log that is removed, changed or cut off under a running platform: what clients, the log of the
agent, its counters and its health say, and that everything goes on when it is restored. On a local directory and S3."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from streamhouse.cluster.contract import HealthState
from streamhouse.core.errors import DamagedObject
from streamhouse.log.reader.options import ReaderStats
from streamhouse.metadata.contract import Entry, ScanRange
from streamhouse.testing.plugin import RunningStreamHouse, running
from streamhouse.wire.records import Record

WAIT_S = 60.0
BEFORE, BAD, ALL = list(range(10)), range(10, 20), list(range(30))


@pytest.fixture(params=["local", "s3"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningStreamHouse]:
    """A platform without caches: it reads from the store. Three objects in partition 0, one in partition 1."""
    options: dict[str, Any] = {
        "data_dir": str(tmp_path / "streamhouse"),
        "kafka_enabled": True,
        "kafka_listen": "127.0.0.1:0",
        "memory_tail_cache_bytes": 0,
        "memory_block_cache_bytes": 0,
    }
    if request.param == "s3":
        s3 = request.getfixturevalue("s3_service")
        options |= {
            "store_url": f"s3://{s3.create_bucket()}/objects",
            "store_endpoint_url": s3.endpoint_url,
            "store_region": s3.region,
            "store_access_key_id": s3.access_key,
            "store_secret_access_key": s3.secret_key,
        }
    with running(options) as ready:
        topic = ready.run(ready.api.create_topic("orders", 2))
        assert ready.run(ready.api.agent.wait_leading(topic.partition_keys(), timeout_s=WAIT_S))
        for partition, first in ((0, 0), (0, 10), (0, 20), (1, 0)):
            records = [Record(value=b"%d" % number, timestamp_ms=1_000 + number) for number in range(first, first + 10)]
            ready.run(ready.api.produce_batch("orders", partition, records))
            ready.run(ready.api.flush())
        yield ready


def entries(platform: RunningStreamHouse) -> list[Entry]:
    async def look() -> list[Entry]:
        metadata = platform.api.stores.metadata
        key = (await platform.api.topic("orders")).partition_keys()[0]
        (page,) = await metadata.scan_entries([ScanRange(key=key, from_offset=0)], limit=100)
        return list(page.entries)

    return platform.run(look())


class Victim:
    """The object with the offsets 10 to 19 of orders/0."""

    def __init__(self, platform: RunningStreamHouse) -> None:
        self.platform = platform
        (self.entry,) = (each for each in entries(platform) if each.base_offset == BAD.start)
        self.store = platform.api.stores.objects
        self.stored = bytes(platform.run(self.store.get(self.entry.object_key)))

    def remove(self) -> None:
        self.platform.run(self.store.delete([self.entry.object_key]))

    def flip(self) -> None:
        changed = bytearray(self.stored)
        changed[self.entry.byte_offset + self.entry.byte_length // 2] ^= 0x20
        self.replace(changed)

    def truncate(self) -> None:
        self.replace(self.stored[: self.entry.byte_offset + self.entry.byte_length // 2])

    def restore(self) -> None:
        self.replace(self.stored)

    def replace(self, data: bytes | bytearray) -> None:
        self.remove()
        self.platform.run(self.store.put(self.entry.object_key, data))


class Rd:
    """A librdkafka consumer of both partitions."""

    def __init__(self, platform: RunningStreamHouse) -> None:
        self.client = Consumer(
            {
                "bootstrap.servers": platform.api.kafka_addresses[0],
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self.client.assign([TopicPartition("orders", number, 0) for number in (0, 1)])
        self.read: dict[int, list[int]] = {0: [], 1: []}
        self.errors: list[KafkaError] = []
        self.failed: list[tuple[int, int]] = []

    def poll_until(self, reached: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not reached():
            assert time.monotonic() < deadline_s, (self.read, self.errors)
            message = self.client.poll(0.1)
            if message is None:
                continue
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if error is None:
                self.read[partition].append(offset)
            else:
                self.errors.append(error)
                self.failed.append((partition, offset))


def damage_lines(caplog: pytest.LogCaptureFixture, level: int = logging.ERROR) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "streamhouse.log.reader.damage" and record.levelno == level
    ]


def health(platform: RunningStreamHouse) -> tuple[HealthState, str]:
    async def look() -> tuple[HealthState, str]:
        found = platform.api.agent.member.health
        return found.state, found.reason

    return platform.run(look())


def stats(platform: RunningStreamHouse) -> ReaderStats:
    return platform.api.agent.reader.stats


def wait_until_well(platform: RunningStreamHouse) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while health(platform)[0] is not HealthState.OK:
        assert time.monotonic() < deadline_s, health(platform)
        time.sleep(0.05)


def check_told(platform: RunningStreamHouse, victim: Victim, caplog: pytest.LogCaptureFixture) -> None:
    """The line in the log, the counters, the health."""
    (line,) = damage_lines(caplog)
    state, reason = health(platform)
    assert state is HealthState.DEGRADED
    for text in (line, reason):
        assert "orders/0, offsets 10 to 19" in text
        assert f"of {victim.entry.object_key}" in text
        assert "bytes " in text
        assert "restore the object" in text
        assert "set consumers to offset 20" in text
    assert stats(platform).damaged_ranges == 1
    assert stats(platform).damaged_reads >= 1


@pytest.mark.parametrize("how", ["remove", "flip", "truncate"])
def test_a_librdkafka_consumer_gets_an_error_and_goes_on_when_the_object_is_restored(
    platform: RunningStreamHouse, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    victim = Victim(platform)
    getattr(victim, how)()
    reader = Rd(platform)
    try:
        reader.poll_until(lambda: len(reader.errors) >= 2 and reader.read[1] == BEFORE)
        assert {error.code() for error in reader.errors} == {KafkaError.INVALID_MSG}
        assert not any(error.fatal() for error in reader.errors)
        assert set(reader.failed) == {(0, 10)}
        assert reader.read[0] == BEFORE
        with pytest.raises(KafkaException) as caught:
            reader.client.offsets_for_times([TopicPartition("orders", 0, 1_015)], timeout=WAIT_S)
        assert caught.value.args[0].code() == KafkaError.INVALID_MSG
        check_told(platform, victim, caplog)

        victim.restore()
        reader.poll_until(lambda: len(reader.read[0]) >= len(ALL))
        assert reader.read == {0: ALL, 1: BEFORE}
        wait_until_well(platform)
        assert "can be read again" in damage_lines(caplog, logging.WARNING)[-1]
    finally:
        reader.client.close()


@pytest.mark.parametrize("how", ["remove", "flip", "truncate"])
def test_an_aiokafka_consumer_warns_and_stays_and_goes_on_when_the_object_is_restored(
    platform: RunningStreamHouse, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """aiokafka raises no error of a fetch but two; what it does not know it writes into its log."""
    victim = Victim(platform)
    getattr(victim, how)()

    def warned() -> int:
        return sum(
            "CorruptRecordException" in record.getMessage()
            for record in caplog.records
            if record.name == "aiokafka.consumer.fetcher"
        )

    async def story() -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=platform.api.kafka_addresses[0], enable_auto_commit=False, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            partitions = [AioPartition("orders", number) for number in (0, 1)]
            consumer.assign(partitions)
            read: dict[int, list[int]] = {0: [], 1: []}

            async def poll_until(reached: Callable[[], bool]) -> None:
                async with asyncio.timeout(WAIT_S):
                    while not reached():
                        for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                            read[partition.partition] += [record.offset for record in records]

            await poll_until(lambda: warned() >= 2 and read[1] == BEFORE)
            assert read[0] == BEFORE
            assert await consumer.position(partitions[0]) == 10
            check_told(platform, victim, caplog)
            victim.restore()
            await poll_until(lambda: len(read[0]) >= len(ALL))
            assert read == {0: ALL, 1: BEFORE}
        finally:
            await consumer.stop()

    asyncio.run(story())
    wait_until_well(platform)


def test_the_python_api_raises_an_error_that_says_what_to_do(
    platform: RunningStreamHouse, caplog: pytest.LogCaptureFixture
) -> None:
    victim = Victim(platform)
    for how in (victim.remove, victim.flip, victim.truncate):
        how()
        for wait_ms in (0, 600_000):  # an error does not wait
            with pytest.raises(DamagedObject) as caught:
                platform.run(platform.api.read("orders", 0, 12, wait_ms=wait_ms))
            told = str(caught.value)
            assert told.startswith("orders/0, offsets 10 to 19: bytes ")
            assert victim.entry.object_key in told
            assert "restore the object" in told
    check_told(platform, victim, caplog)
    victim.restore()
    wait_until_well(platform)
    assert platform.run(platform.api.read("orders", 0, 10))[0].offset == 10


def test_an_operator_may_set_a_consumer_past_the_damage_or_delete_the_records(platform: RunningStreamHouse) -> None:
    victim = Victim(platform)
    victim.remove()
    reader, other = Rd(platform), Rd(platform)
    try:
        for each in (reader, other):
            each.poll_until(lambda each=each: bool(each.errors))  # type: ignore[misc]
        reader.client.seek(TopicPartition("orders", 0, 20))
        reader.poll_until(lambda: len(reader.read[0]) >= 20)
        assert reader.read[0] == BEFORE + ALL[20:]
        assert health(platform)[0] is HealthState.DEGRADED

        admin = AdminClient({"bootstrap.servers": platform.api.kafka_addresses[0]})
        (deleted,) = admin.delete_records([TopicPartition("orders", 0, 20)]).values()
        assert deleted.result(WAIT_S).low_watermark == 20
        other.poll_until(lambda: len(other.read[0]) >= 20)  # by its auto.offset.reset
        assert other.read[0] == BEFORE + ALL[20:]
        wait_until_well(platform)
    finally:
        reader.client.close()
        other.client.close()
