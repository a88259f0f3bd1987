"""librdkafka consumers of both protocols in one group: a rolling upgrade and downgrade, without a skipped record.

Records are written the whole time. Each consumer commits what it has read. A record may be read twice when a partition
moves, as always in Kafka; none may be left out, and the offsets that were committed never go back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from streamhouse.testing.plugin import RunningStreamHouse, running

WAIT_S = 90.0
PARTITIONS = 4
CONFIGS: dict[str, dict[str, Any]] = {
    "range": {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 100, "session.timeout.ms": 45_000},
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "heartbeat.interval.ms": 100,
        "session.timeout.ms": 45_000,
    },
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "data_dir": str(tmp_path / "streamhouse"),
        "kafka_enabled": True,
        "kafka_listen": "127.0.0.1:0",
        "group_consumer_heartbeat": "100ms",
        "group_initial_rebalance_delay": "0ms",
    }


class Writer:
    """Writes one numbered record to each partition in turn, whenever it is asked to."""

    def __init__(self, address: str) -> None:
        self._client = Producer({"bootstrap.servers": address})
        self.written = 0

    def write(self) -> None:
        self._client.produce("orders", value=b"%d" % self.written, partition=self.written % PARTITIONS)
        self._client.poll(0)
        self.written += 1

    def flush(self) -> None:
        assert self._client.flush(WAIT_S) == 0


class Reader:
    def __init__(self, address: str, config: dict[str, Any], read: set[int]) -> None:
        self._client = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "rolling",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **config,
            }
        )
        self._client.subscribe(["orders"])
        self._read = read

    def poll(self) -> None:
        message = self._client.poll(0.05)
        if message is None:
            return
        error = message.error()
        assert error is None or not error.fatal(), error
        if error is None:
            self._read.add(int(message.value() or b""))
            try:
                self._client.commit(message, asynchronous=False)
            except KafkaException as refused:  # the partition has moved; its next reader reads the record again
                failure = refused.args[0]
                assert isinstance(failure, KafkaError)
                assert not failure.fatal(), failure

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self._client.assignment()}

    def close(self) -> None:
        self._client.close()


class Rolling:
    def __init__(self, platform: RunningStreamHouse) -> None:
        self.address = platform.api.kafka_addresses[0]
        platform.run(platform.api.create_topic("orders", PARTITIONS))
        self.writer = Writer(self.address)
        self.read: set[int] = set()
        self.readers: list[Reader] = []
        self.offsets: dict[int, int] = {}

    def start(self, config: str) -> None:
        self.readers.append(Reader(self.address, CONFIGS[config], self.read))

    def stop(self) -> None:
        """The oldest one."""
        self.readers.pop(0).close()

    def until(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < deadline_s, ([reader.partitions for reader in self.readers], len(self.read))
            self.writer.write()
            for reader in self.readers:
                reader.poll()

    def shared(self) -> bool:
        """Whether each partition has one reader, and each reader has a partition."""
        owned = [reader.partitions for reader in self.readers]
        return all(owned) and sorted(partition for each in owned for partition in each) == list(range(PARTITIONS))

    def check_offsets(self) -> None:
        """Committed offsets never go back."""
        admin = AdminClient({"bootstrap.servers": self.address})
        asked = [ConsumerGroupTopicPartitions("rolling")]
        (found,) = (each.result() for each in admin.list_consumer_group_offsets(asked).values())
        for each in found.topic_partitions:
            assert each.offset >= self.offsets.get(each.partition, 0)
            self.offsets[each.partition] = each.offset

    def kind(self) -> str:
        admin = AdminClient({"bootstrap.servers": self.address})
        listed = admin.list_consumer_groups().result().valid
        return next(group.type.name for group in listed if group.group_id == "rolling")

    def finish(self) -> None:
        self.writer.flush()
        written = self.writer.written
        self.until(lambda: set(range(written)) <= self.read)
        for reader in self.readers:
            reader.close()
        self.writer.flush()


@pytest.fixture
def rolling(options: dict[str, Any]) -> Iterator[Rolling]:
    with running(options) as platform:
        yield Rolling(platform)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("classic", ["range", "cooperative"])
def test_a_rolling_upgrade_and_downgrade_skip_no_record(rolling: Rolling, classic: str) -> None:
    for _ in range(2):
        rolling.start(classic)
    rolling.until(rolling.shared)
    assert rolling.kind() == "CLASSIC"
    for config, kinds in (("consumer", ("CONSUMER", "CONSUMER")), (classic, ("CONSUMER", "CLASSIC"))):
        for kind in kinds:
            rolling.stop()
            rolling.start(config)
            rolling.until(rolling.shared)
            assert rolling.kind() == kind
            rolling.check_offsets()
    rolling.finish()


@pytest.mark.timeout(600)
def test_a_group_of_both_protocols_continues_after_a_restart(options: dict[str, Any]) -> None:
    with running(options) as before:
        rolling = Rolling(before)
        rolling.start("range")
        rolling.start("consumer")
        rolling.until(rolling.shared)
        rolling.check_offsets()
        rolling.writer.flush()
        options["kafka_listen"] = rolling.address
    with running(options):
        rolling.until(rolling.shared)
        assert rolling.kind() == "CONSUMER"
        rolling.check_offsets()
        rolling.finish()
