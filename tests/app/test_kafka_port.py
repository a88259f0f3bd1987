"""The Kafka port of an agent: when it is there, how it opens and closes, and what clients notice when agents go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streamhouse import StreamHouse
from streamhouse.app.front_ends import listeners
from streamhouse.core.errors import ConfigError
from streamhouse.core.settings import resolve

WAIT_S = 60
LOCAL = {"kafka_enabled": True, "kafka_listen": "127.0.0.1:0"}


def told(**flags: object) -> list[tuple[str, int, str, int]]:
    settings = resolve(flags={key.replace("__", "."): value for key, value in flags.items()}).require().settings
    return [(each.host, each.port, each.advertised_host, each.advertised_port) for each in listeners(settings)]


def test_clients_are_told_where_it_listens_unless_told_otherwise() -> None:
    assert told() == [("127.0.0.1", 9092, "127.0.0.1", 0)]
    assert told(kafka__advertised="outside:1234") == [("127.0.0.1", 9092, "outside", 1234)]
    assert told(agent__address="[2001:db8::1]:77") == [("127.0.0.1", 9092, "2001:db8::1", 77)]
    assert told(kafka__listen="127.0.0.1:1,127.0.0.1:2", kafka__advertised="in:3,out:4") == [
        ("127.0.0.1", 1, "in", 3),
        ("127.0.0.1", 2, "out", 4),
    ]


async def test_without_being_asked_for_there_is_no_port(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        assert sh.kafka_addresses == []
        assert sh.agent.kafka is None
        (agent,) = await sh.stores.metadata.list_agents()
        assert agent.listeners == {}


async def test_the_agent_registers_where_clients_reach_it(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **LOCAL) as sh:
        (agent,) = await sh.stores.metadata.list_agents()
        assert [agent.listeners["kafka"]] == sh.kafka_addresses
    async with StreamHouse.open(data_dir=str(tmp_path), **LOCAL, kafka_advertised="outside:9999") as sh:
        (agent,) = await sh.stores.metadata.list_agents()
        assert agent.listeners == {"kafka": "outside:9999"}


async def test_a_taken_port_stops_the_start_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"another process listens on {address}"):
            async with StreamHouse.open(data_dir=str(tmp_path), kafka_enabled=True, kafka_listen=address):
                pass
    async with StreamHouse.open(data_dir=str(tmp_path), kafka_enabled=True, kafka_listen=address) as sh:
        assert sh.kafka_addresses == [address]
        assert len(await sh.stores.metadata.list_agents()) == 1


async def test_records_written_by_a_client_are_there_after_a_restart_on_the_same_port(tmp_path: Path) -> None:
    async with AsyncExitStack() as clients:
        async with StreamHouse.open(data_dir=str(tmp_path), **LOCAL) as sh:
            (address,) = sh.kafka_addresses
            producer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, request_timeout_ms=20_000)
            await producer.start()
            clients.push_async_callback(producer.stop)
            await producer.send_and_wait("t", b"before")
        async with StreamHouse.open(data_dir=str(tmp_path), kafka_enabled=True, kafka_listen=address) as sh:
            async with asyncio.timeout(WAIT_S):
                await producer.send_and_wait("t", b"after")
            assert [record.value for record in await sh.read("t", 0, 0)] == [b"before", b"after"]
            await clients.aclose()


@asynccontextmanager
async def fleet_agent(tmp_path: Path, dsn: str, name: str) -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(
        data_dir=str(tmp_path / name),
        metadata_url=dsn,
        store_url=f"file://{tmp_path}/objects",
        agent_id=name,
        flush_interval="20ms",
        profile="fast",
        **LOCAL,
    ) as sh:
        yield sh


async def test_s3_17_a_producer_notices_nothing_when_an_agent_joins_and_leaves_in_order(
    tmp_path: Path, postgres_database: str
) -> None:
    partitions = 4
    async with fleet_agent(tmp_path, postgres_database, "a") as a:
        (address,) = a.kafka_addresses
        await a.create_topic("t", partitions)
        producer = AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True, linger_ms=1, metadata_max_age_ms=1_000
        )
        await producer.start()
        sent = dict.fromkeys(range(partitions), 0)
        leaders: set[str] = set()

        async def write(rounds: int) -> None:
            for _ in range(rounds):
                for partition in sent:
                    await producer.send_and_wait("t", str(sent[partition]).encode(), partition=partition)
                    sent[partition] += 1

        async with asyncio.timeout(WAIT_S):
            await write(2)
            async with fleet_agent(tmp_path, postgres_database, "b") as b:
                while not leaders >= {"a", "b"}:
                    await write(1)
                    leaders = {("b" if key in b.agent.log.led_keys() else "a") for key in await keys(a)}
                leaving = asyncio.create_task(write(20))
                await asyncio.sleep(0)
            await leaving
            await write(2)
        await producer.stop()
        for partition, count in sent.items():
            assert await values(address, partition, count) == [str(number).encode() for number in range(count)]


async def keys(sh: StreamHouse) -> list[object]:
    return list((await sh.topic("t")).partition_keys())


async def values(address: str, partition: int, count: int) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=address)
    await consumer.start()
    try:
        source = TopicPartition("t", partition)
        consumer.assign([source])
        await consumer.seek_to_beginning(source)
        assert (await consumer.end_offsets([source]))[source] == count
        async with asyncio.timeout(WAIT_S):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_there_is_a_broker_without_a_port(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        topic = await sh.create_topic("t", 2)
        leader = sh.agent.broker.view.leader(topic.partition_keys()[0])
        assert leader is not None
        assert not leader.node.listens
        assert sh.agent.broker.view.nodes() == (), "no client can connect to it"
        assert sh.agent.broker.view.leaders_of(topic) == [(-1, -1)] * 2
