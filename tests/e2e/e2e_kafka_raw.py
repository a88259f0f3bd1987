"""One Kafka connection by hand: a client that stays with the agent it has, whatever becomes of that agent."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.schema import read_response, write_request
from streamhouse.wire.records import Record, build_batch

NOT_LEADER: Final = 6
_PRODUCE: Final = 0
_VERSION: Final = 13
_CONSUMER_HEARTBEAT: Final = 68
_WAIT_S: Final = 180.0
_HEADER_BYTES: Final = 5  # of an answer: correlation id, no tagged fields


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> RawClient:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def produce(self, key: PartitionKey, value: str) -> None:
        """One record with acks=all; its answer is for ``answer``."""
        batch = build_batch([Record(offset=0, timestamp_ms=-1, value=value.encode())])
        partition = {"index": key.partition, "records": batch}
        body = write_request(
            _PRODUCE,
            _VERSION,
            {
                "transactional_id": None,
                "acks": -1,
                "timeout": 30_000,
                "topic_data": [{"topic_id": key.topic_id, "partition_data": [partition]}],
            },
        )
        self._writer.write(request_frame(_PRODUCE, _VERSION, 1, "by-hand", body))

    async def answer(self) -> int:
        """The error code of the one partition."""
        (topic,) = read_response(_PRODUCE, _VERSION, memoryview(await self._body())).responses
        (partition,) = topic.partition_responses
        return int(partition.error_code)

    async def join_consumer_group(self, group: str, member_id: str, topic: str) -> int:
        """One KIP-848 heartbeat of a new member. Its error code."""
        body = write_request(
            _CONSUMER_HEARTBEAT,
            1,
            {
                "group_id": group,
                "member_id": member_id,
                "member_epoch": 0,
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout": 60_000,
                "subscribed_topic_names": [topic],
                "subscribed_topic_regex": None,
                "server_assignor": None,
                "topic_partitions": [],
            },
        )
        self._writer.write(request_frame(_CONSUMER_HEARTBEAT, 1, 1, "by-hand", body))
        return int(read_response(_CONSUMER_HEARTBEAT, 1, memoryview(await self._body())).error_code)

    async def _body(self) -> bytes:
        async with asyncio.timeout(_WAIT_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return (await self._reader.readexactly(size))[_HEADER_BYTES:]

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
