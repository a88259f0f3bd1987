"""Where the Python API differs from the Kafka port on purpose (docs/python.md).

Everything else is the same through both: tests/broker/test_behaviours.py.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_api_only import PORT, ask

from streamhouse import StreamHouse
from streamhouse.core.errors import ConfigError, NotLeader
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.wire.records import Record, build_batch

WAIT_S = 60


async def write(address: str, topic: str, partition: int = 0) -> int:
    """The error code of a Kafka client's write that is sent once."""
    batch = build_batch([Record(value=b"by Kafka", timestamp_ms=1)])
    data = {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
    answer = await ask(address, 0, 9, acks=-1, timeout=30_000, topic_data=[data])
    return int(answer.responses[0].partition_responses[0].error_code)


async def read(address: str, topic: str, partition: int) -> int:
    wanted = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    answer = await ask(
        address, 1, 11, max_wait=0, min_bytes=1, max_bytes=1 << 20, topics=[{"topic": topic, "partitions": [wanted]}]
    )
    return int(answer.responses[0].partitions[0].error_code)


async def test_a_topic_that_is_not_known_here_yet_is_looked_up_for_python_and_refused_to_a_client(
    tmp_path: Path,
) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB", **PORT) as sh:
        (address,) = sh.kafka_addresses
        topic = await sh.create_topic("t", 1)
        sh.broker.view.forgot(topic)  # as if another process had just created it
        assert await write(address, "t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await sh.produce_batch("t", 0, [Record(value=b"by Python", timestamp_ms=1)])).offset == 0
        assert await write(address, "t") == ErrorCode.NONE


async def test_without_an_agent_python_is_told_of_the_setting_and_a_client_to_go_to_the_leader(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), embedded_agent=False, **PORT) as server:
        (address,) = server.kafka_addresses
        await server.create_topic("t", 1)
        for call in (server.produce("t", b"v"), server.read("t", 0, 0), server.list_offset("t", 0), server.flush()):
            with pytest.raises(ConfigError, match="no agent runs in this process"):
                await call
        assert await write(address, "t") == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_python_reads_what_another_agent_leads_and_does_not_write_it(
    tmp_path: Path, postgres_database: str
) -> None:
    stores: dict[str, Any] = {
        "metadata_url": postgres_database,
        "store_url": f"file://{tmp_path}/objects",
        "profile": "fast",
        "wal_file_bytes": "1MiB",
        **PORT,
    }
    async with (
        StreamHouse.open(data_dir=str(tmp_path / "a"), agent_id="a", **stores) as a,
        StreamHouse.open(data_dir=str(tmp_path / "b"), agent_id="b", **stores) as b,
    ):
        (address,) = b.kafka_addresses
        topic = await a.create_topic("t", 16)

        def led_by_a() -> list[int]:
            return [key.partition for key in topic.partition_keys() if a.agent.log.partition(key) is not None]

        async with asyncio.timeout(WAIT_S):
            while not 0 < len(led_by_a()) < 16:  # noqa: ASYNC110 -- both have some
                await asyncio.sleep(0.05)
            while True:  # a partition may move once more
                partition = led_by_a()[0]
                try:
                    sent = await a.produce("t", b"v", partition=partition)
                    break
                except NotLeader:
                    await asyncio.sleep(0.05)
        (record,) = await b.read("t", partition, sent.offset)
        assert record.value == b"v"
        assert await read(address, "t", partition) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(NotLeader):
            await b.produce("t", b"v", partition=partition)
