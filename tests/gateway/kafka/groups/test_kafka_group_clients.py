"""Groups as real clients use them, against a running platform."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from streamhouse.testing.plugin import RunningStreamHouse, running

with warnings.catch_warnings():  # kafka-python reads its schemas by a deprecated function
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer

WAIT_S = 60.0
RECORDS = 40


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStreamHouse]:
    directory: Path = tmp_path_factory.mktemp("groups")
    options = {
        "data_dir": str(directory / "streamhouse"),
        "kafka_enabled": True,
        "kafka_listen": "127.0.0.1:0",
        "group_consumer_heartbeat": "100ms",
    }
    with running(options) as ready:
        ready.run(ready.api.create_topic("orders", 4))
        producer = Producer({"bootstrap.servers": ready.api.kafka_addresses[0]})
        for number in range(RECORDS):
            producer.produce("orders", value=b"%d" % number, key=b"%d" % number)
        assert producer.flush(WAIT_S) == 0
        yield ready


class Reader:
    """One librdkafka consumer."""

    def __init__(self, platform: RunningStreamHouse, group: str, **config: Any) -> None:
        self.client = Consumer(
            {
                "bootstrap.servers": platform.api.kafka_addresses[0],
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **{name.replace("_", "."): value for name, value in config.items()},
            }
        )
        self.read: list[bytes] = []

    def poll(self) -> None:
        message = self.client.poll(0.05)
        if message is not None and message.error() is None:
            self.read.append(message.value())

    @property
    def partitions(self) -> set[int]:
        return {each.partition for each in self.client.assignment()}


def until(done: Callable[[], bool], *readers: Reader) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, [(len(reader.read), reader.partitions) for reader in readers]
        for reader in readers:
            reader.poll()


@pytest.mark.parametrize(
    "config",
    [
        {"partition_assignment_strategy": "range", "heartbeat_interval_ms": 100},
        {"partition_assignment_strategy": "cooperative-sticky", "heartbeat_interval_ms": 100},
        {"group_protocol": "consumer"},
        {"group_protocol": "consumer", "group_remote_assignor": "range"},
    ],
    ids=["range", "cooperative-sticky", "kip-848", "kip-848 range"],
)
def test_two_share_the_work_and_one_takes_over(platform: RunningStreamHouse, config: dict[str, Any]) -> None:
    group = "-".join(["share", *map(str, config.values())])
    first = Reader(platform, group, **config)
    first.client.subscribe(["orders"])
    until(lambda: len(first.read) == RECORDS, first)
    first.client.commit(asynchronous=False)
    second = Reader(platform, group, **config)
    second.client.subscribe(["orders"])
    until(lambda: len(first.partitions) == len(second.partitions) == 2, first, second)
    assert not first.partitions & second.partitions
    first.client.close()
    until(lambda: len(second.partitions) == 4, second)
    second.client.close()
    assert sorted(first.read, key=int) == [b"%d" % number for number in range(RECORDS)]
    assert second.read == []  # all of it had been committed


def test_a_pattern_is_matched_by_the_coordinator(platform: RunningStreamHouse) -> None:
    reader = Reader(platform, "pattern", group_protocol="consumer")
    reader.client.subscribe(["^ord.*"])
    until(lambda: len(reader.read) == RECORDS, reader)
    platform.run(platform.api.create_topic("ordinary", 1))
    until(lambda: any(each.topic == "ordinary" for each in reader.client.assignment()), reader)
    reader.client.close()


def test_a_static_member_comes_back_to_its_own_partitions(platform: RunningStreamHouse) -> None:
    first = Reader(platform, "static", group_instance_id="one")
    second = Reader(platform, "static", group_instance_id="two")
    for reader in (first, second):
        reader.client.subscribe(["orders"])
    until(lambda: len(first.partitions) == len(second.partitions) == 2, first, second)
    had, generation = second.partitions, _state(platform, "static")
    second.client.close()  # a static member does not leave
    again = Reader(platform, "static", group_instance_id="two")
    again.client.subscribe(["orders"])
    until(lambda: again.partitions == had, first, again)
    assert _state(platform, "static") == generation
    for reader in (first, again):
        reader.client.close()


def _state(platform: RunningStreamHouse, group: str) -> int:
    loaded = platform.api.agent.broker.groups.registry.find(group)
    assert loaded is not None
    return loaded.machine.generation  # type: ignore[union-attr]


def test_what_an_admin_sees_and_deletes(platform: RunningStreamHouse) -> None:
    reader = Reader(platform, "watched")
    reader.client.subscribe(["orders"])
    until(lambda: len(reader.read) == RECORDS, reader)
    reader.client.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": platform.api.kafka_addresses[0]})
    (described,) = (each.result() for each in admin.describe_consumer_groups(["watched"]).values())
    assert described.state.name == "STABLE"
    assert sum(len(member.assignment.topic_partitions) for member in described.members) == 4
    listed = {group.group_id: group.state.name for group in admin.list_consumer_groups().result().valid}
    assert listed["watched"] == "STABLE"
    reader.client.close()
    asked = [ConsumerGroupTopicPartitions("watched")]
    (offsets,) = (each.result() for each in admin.list_consumer_group_offsets(asked).values())
    assert sum(each.offset for each in offsets.topic_partitions) == RECORDS
    reset = [ConsumerGroupTopicPartitions("watched", [TopicPartition("orders", 0, 0)])]
    for altered in admin.alter_consumer_group_offsets(reset).values():
        altered.result()
    for deleted in admin.delete_consumer_groups(["watched"]).values():
        deleted.result()
    assert "watched" not in {group.group_id for group in admin.list_consumer_groups().result().valid}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_reads_commits_and_resumes(platform: RunningStreamHouse) -> None:
    def consumer() -> KafkaConsumer:
        return KafkaConsumer(
            "orders",
            bootstrap_servers=platform.api.kafka_addresses[0],
            group_id="kafka-python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=2_000,
        )

    first = consumer()
    values = []
    for record in first:
        values.append(record.value)
        if len(values) == RECORDS:
            break
    first.commit()
    first.close()
    assert len(set(values)) == RECORDS
    second = consumer()
    assert list(second) == []
    second.close()


async def test_aiokafka_reads_commits_and_resumes(platform: RunningStreamHouse) -> None:
    def consumer() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            "orders",
            bootstrap_servers=platform.api.kafka_addresses[0],
            group_id="aiokafka",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    first = consumer()
    await first.start()
    values = [(await first.getone()).value for _ in range(RECORDS)]
    await first.commit()
    await first.stop()
    assert len(set(values)) == RECORDS
    second = consumer()
    await second.start()
    assert await second.getmany(timeout_ms=500) == {}
    await second.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_after_a_restart_without_a_rebalance(tmp_path: Path, protocol: str) -> None:
    options = {"data_dir": str(tmp_path / "streamhouse"), "kafka_enabled": True, "kafka_listen": "127.0.0.1:0"}
    moved: list[object] = []
    with running(options) as before:
        before.run(before.api.create_topic("orders", 2))
        reader = Reader(before, "steady", group_protocol=protocol)
        reader.client.subscribe(["orders"], on_revoke=lambda client, partitions: moved.append(partitions))
        before.run(before.api.produce("orders", b"one", partition=0))
        until(lambda: reader.read == [b"one"], reader)
        reader.client.commit(asynchronous=False)
        options["kafka_listen"] = before.api.kafka_addresses[0]
    with running(options) as after:
        after.run(after.api.produce("orders", b"two", partition=1))
        until(lambda: reader.read == [b"one", b"two"], reader)
        reader.client.commit(asynchronous=False)
        assert moved == []
        reader.client.close()
