"""Real admin clients against the port: what they offer by their ordinary API does what it says."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from admin_ground import KafkaPort
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas by a function that Python retires
    from kafka import KafkaAdminClient

WAIT_S = 30


@pytest.fixture(scope="module")
def librdkafka(port: KafkaPort) -> AdminClient:
    return AdminClient({"bootstrap.servers": port.address})


@pytest.fixture(scope="module")
def pure_python(port: KafkaPort) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=port.address)
    yield client
    client.close()


def done(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(WAIT_S) for future in futures.values()]


def code(caught: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(caught.value.args[0].code())


def test_librdkafka_creates_describes_grows_and_deletes(port: KafkaPort, librdkafka: AdminClient) -> None:
    name = port.new_name()
    done(librdkafka.create_topics([NewTopic(name, 2, 3, config={"retention.ms": "5000"})]))
    assert len(librdkafka.list_topics(name, timeout=WAIT_S).topics[name].partitions) == 2
    done(librdkafka.create_partitions([NewPartitions(name, 5)]))
    assert len(librdkafka.list_topics(name, timeout=WAIT_S).topics[name].partitions) == 5
    with pytest.raises(KafkaException) as caught:
        done(librdkafka.create_topics([NewTopic(name, 2)]))
    assert code(caught) == 36
    done(librdkafka.delete_topics([name]))
    assert name not in librdkafka.list_topics(timeout=WAIT_S).topics


def test_librdkafka_describes_topics_and_the_cluster(port: KafkaPort, librdkafka: AdminClient) -> None:
    from confluent_kafka import TopicCollection

    name = port.new_topic(3)
    (topic,) = done(librdkafka.describe_topics(TopicCollection([name]), include_authorized_operations=True))
    assert [partition.id for partition in topic.partitions] == [0, 1, 2]
    assert all(partition.leader.port for partition in topic.partitions)
    cluster = librdkafka.describe_cluster().result(WAIT_S)
    assert f"{cluster.nodes[0].host}:{cluster.nodes[0].port}" == port.address
    assert cluster.controller.id == cluster.nodes[0].id


def test_librdkafka_reads_and_changes_configs(port: KafkaPort, librdkafka: AdminClient) -> None:
    name = port.new_topic()
    resource = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[ConfigEntry("retention.ms", "7000", incremental_operation=AlterConfigOpType.SET)],
    )
    done(librdkafka.incremental_alter_configs([resource]))
    (configs,) = done(librdkafka.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
    assert configs["retention.ms"].value == "7000"
    assert not configs["retention.ms"].is_default
    assert configs["segment.bytes"].is_default


def test_an_idempotent_producer_gets_its_id_and_writes(port: KafkaPort) -> None:
    name = port.new_topic(1)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": port.address, "enable.idempotence": True})
    for number in range(20):
        producer.produce(name, str(number), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    assert errors == [None] * 20
    records = port.platform.run(port.platform.api.read(name, 0, 0))
    assert [record.value for record in records] == [str(number).encode() for number in range(20)]


def test_a_transactional_producer_is_told_at_once(port: KafkaPort) -> None:
    producer = Producer({"bootstrap.servers": port.address, "transactional.id": "tx"})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(WAIT_S)
    assert code(caught) == 53


def test_kafka_python_creates_lists_and_deletes(port: KafkaPort, pure_python: Any) -> None:
    name = port.new_name()
    pure_python.create_topics({name: {"num_partitions": 3}})
    assert name in pure_python.list_topics()
    (described,) = pure_python.describe_topics([name])
    assert len(described["partitions"]) == 3
    pure_python.delete_topics([name])
    assert name not in pure_python.list_topics()


def test_kafka_python_sees_the_cluster_and_log_dirs(port: KafkaPort, pure_python: Any) -> None:
    port.new_topic()
    assert [f"{broker['host']}:{broker['port']}" for broker in pure_python.describe_cluster()["brokers"]] == [
        port.address
    ]
    assert pure_python.describe_log_dirs()


async def test_aiokafka_creates_describes_and_deletes(port: KafkaPort) -> None:
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin import NewTopic as Wanted

    name = port.new_name()
    client = AIOKafkaAdminClient(bootstrap_servers=port.address)
    async with asyncio.timeout(WAIT_S):
        await client.start()
        try:
            await client.create_topics([Wanted(name, 2, 1)])
            (described,) = await client.describe_topics([name])
            assert len(described["partitions"]) == 2
            await client.delete_topics([name])
            assert name not in await client.list_topics()
        finally:
            await client.close()
