"""A server without an agent: it leads nothing, and Kafka clients find the agents through it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from streamhouse import StreamHouse
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.headers import has_flexible_response, request_frame
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_response, write_request
from streamhouse.wire.records import Record, build_batch

WAIT_S = 60
PORT: dict[str, Any] = {"kafka_enabled": True, "kafka_listen": "127.0.0.1:0"}


async def ask(address: str, api: int, version: int, /, **fields: Any) -> Message:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_frame(api, version, 1, "test", write_request(api, version, fields)))
        body = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        writer.close()
    return read_response(api, version, memoryview(body)[5 if has_flexible_response(api, version) else 4 :])


async def test_s3_6_a_server_without_an_agent_tells_clients_where_the_agents_are(
    tmp_path: Path, postgres_database: str
) -> None:
    stores: dict[str, Any] = {
        "metadata_url": postgres_database,
        "store_url": f"file://{tmp_path}/objects",
        "profile": "fast",
        **PORT,
    }
    async with StreamHouse.open(data_dir=str(tmp_path / "agent"), agent_id="a", **stores) as agent:
        (agents_address,) = agent.kafka_addresses
        await agent.create_topic("t", 1)
        async with StreamHouse.open(data_dir=str(tmp_path / "api"), embedded_agent=False, **stores) as server:
            (address,) = server.kafka_addresses
            found = await ask(address, 3, 9, topics=[{"name": "t"}])
            assert [f"{broker.host}:{broker.port}" for broker in found.brokers] == [agents_address]
            (partition,) = found.topics[0].partitions
            assert (partition.error_code, partition.leader_id) == (0, found.brokers[0].node_id)
            async with asyncio.timeout(WAIT_S):
                while (coordinator := await ask(address, 10, 3, key="my-group", key_type=0)).error_code:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)  # as clients do: it answers within 50 ms, known or not
            assert f"{coordinator.host}:{coordinator.port}" == agents_address

            batch = build_batch([Record(value=b"v", timestamp_ms=1)])
            data = {"name": "t", "partition_data": [{"index": 0, "records": batch}]}
            refused = await ask(address, 0, 9, acks=-1, timeout=1000, topic_data=[data])
            code = refused.responses[0].partition_responses[0].error_code
            assert code == ErrorCode.NOT_LEADER_OR_FOLLOWER

            async with asyncio.timeout(WAIT_S):
                producer = AIOKafkaProducer(bootstrap_servers=address)
                await producer.start()
                await producer.send_and_wait("t", b"through the server")
                await producer.stop()
                consumer = AIOKafkaConsumer(
                    "t", bootstrap_servers=address, group_id="my-group", auto_offset_reset="earliest"
                )
                await consumer.start()
                assert (await consumer.getone()).value == b"through the server"
                await consumer.stop()


async def test_a_topic_can_be_created_where_no_agent_lives(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), embedded_agent=False, **PORT) as server:
        (address,) = server.kafka_addresses
        topic = {"name": "t", "num_partitions": 2, "replication_factor": -1, "assignments": [], "configs": []}
        created = await ask(address, 19, 5, topics=[topic], timeout=30_000)
        assert [(each.name, each.error_code) for each in created.topics] == [("t", 0)]
        found = await ask(address, 3, 9, topics=[{"name": "t"}])
        assert list(found.brokers) == []
        assert [each.error_code for each in found.topics[0].partitions] == [ErrorCode.LEADER_NOT_AVAILABLE] * 2
        assert [each.name for each in await server.topics()] == ["t"]
