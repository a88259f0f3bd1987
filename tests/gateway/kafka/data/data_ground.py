"""A real StreamHouse behind the handlers of the data APIs, called with bytes as a client sends them, but no socket."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from streamhouse import StreamHouse
from streamhouse.broker.broker import Broker
from streamhouse.broker.cluster_view import ClusterView, Leader, Node
from streamhouse.broker.fetch import Fetch
from streamhouse.broker.leading import Leading
from streamhouse.broker.log_offsets import LogOffsets
from streamhouse.broker.produce import Produce
from streamhouse.broker.reads import Reads
from streamhouse.broker.writers import LeaderlessWriter, LeasedWriter
from streamhouse.broker.writes import Writes
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, ClientConnection, ServerMemory, apis
from streamhouse.gateway.kafka.handlers import (  # noqa: F401 -- they register themselves
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_21_delete_records,
    api_23_offset_for_leader_epoch,
    api_61_describe_producers,
)
from streamhouse.gateway.kafka.wire.schema import read_request, read_response, write_request, write_response
from streamhouse.metadata.contract import Durability, Topic, WriteMode
from streamhouse.wire.records import Record, build_batch

PRODUCE, FETCH, LIST_OFFSETS, DELETE_RECORDS, EPOCH_END, PRODUCERS = 0, 1, 2, 21, 23, 61
OTHER = Node(node_id=7, agent_id="agent-7", host="other.example", port=9999, rack="zone-b")


class TestView(ClusterView):
    """The real view, and what a test says of leaders elsewhere."""

    __test__ = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.elsewhere: dict[PartitionKey, Leader] = {}

    def leader(self, key: PartitionKey) -> Leader | None:
        return self.elsewhere.get(key) or super().leader(key)


class Ground:
    def __init__(self, sh: StreamHouse, broker: Broker, view: TestView) -> None:
        self.sh = sh
        self.broker = broker
        self.view = view
        self.client = new_client()
        self.memory = ServerMemory(sh.clock, max_fetch_sessions=sh.settings.kafka.fetch_sessions)

    async def topic(self, name: str = "t", partitions: int = 1, **configs: str) -> Topic:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        topic = await self.sh.create_topic(name, partitions, configs=named)
        self.view.learned(topic)
        return topic

    def start(
        self, api_key: int, version: int, fields: Mapping[str, Any], *, client: ClientConnection | None = None
    ) -> Any:
        """What the handler returns: buffers, something to await, or None."""
        body = bytearray(write_request(api_key, version, fields))
        return self.start_bytes(api_key, version, body, client=client)

    def start_bytes(
        self, api_key: int, version: int, body: bytearray, *, client: ClientConnection | None = None
    ) -> Any:
        api = apis()[api_key]
        call = Call(
            api_key=api_key,
            version=version,
            correlation_id=1,
            client=client or self.client,
            broker=self.broker,
            memory=self.memory,
        )
        if api.hot is None:
            assert api.cold is not None
            return self._cold(api.cold(call, read_request(api_key, version, memoryview(bytes(body)))), api_key, version)
        result = api.hot(call, memoryview(body))
        body[:] = b"\xee" * len(body)  # a server receives the next request into the same memory
        return result

    async def _cold(self, answer: Any, api_key: int, version: int) -> Any:
        return (write_response(api_key, version, await answer),)

    async def ask(
        self, api_key: int, version: int, fields: Mapping[str, Any], *, client: ClientConnection | None = None
    ) -> Any:
        """The response as a Message; None where there is none."""
        return await self.answer(api_key, version, self.start(api_key, version, fields, client=client))

    async def answer(self, api_key: int, version: int, result: Any) -> Any:
        if inspect.isawaitable(result):
            result = await asyncio.wait_for(cast("Any", result), 20)
        if result is None:
            return None
        return read_response(api_key, version, memoryview(b"".join(result)))

    # The usual questions, of one partition.

    async def produce(
        self, records: bytes | None, *, topic: str = "t", partition: int = 0, acks: int = -1, version: int = 9
    ) -> Any:
        """The partition's part of the response."""
        request = produce_request({topic: {partition: records}}, acks=acks)
        response = await self.ask(PRODUCE, version, request)
        return response.responses[0].partition_responses[0]

    async def fetch(
        self, offset: int = 0, *, topic: str = "t", partition: int = 0, version: int = 12, **more: Any
    ) -> Any:
        request = fetch_request({topic: {partition: offset}}, **more)
        response = await self.ask(FETCH, version, request)
        return response.responses[0].partitions[0]


def new_client() -> ClientConnection:
    return ClientConnection(host="127.0.0.1", listener="default")


def batch_of(*values: bytes | None, base_ms: int | None = None, **more: Any) -> bytes:
    times = range(len(values)) if base_ms is None else range(base_ms, base_ms + len(values))
    return build_batch(
        [Record(value=value, timestamp_ms=time) for value, time in zip(values, times, strict=True)], **more
    )


def produce_request(
    topics: Mapping[Any, Mapping[int, bytes | None]], *, acks: int = -1, timeout: int = 30_000, **more: Any
) -> dict[str, Any]:
    return {
        "acks": acks,
        "timeout": timeout,
        "topic_data": [
            {
                ("name" if isinstance(name, str) else "topic_id"): name,
                "partition_data": [{"index": index, "records": records} for index, records in partitions.items()],
            }
            for name, partitions in topics.items()
        ],
        **more,
    }


def fetch_request(
    topics: Mapping[Any, Mapping[int, Any]],
    *,
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    **more: Any,
) -> dict[str, Any]:
    """``topics``: by name or id, then partition: an offset, or the fields of a partition."""
    return {
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "topics": [
            {
                ("topic" if isinstance(name, str) else "topic_id"): name,
                "partitions": [
                    {
                        "partition": partition,
                        "partition_max_bytes": partition_max_bytes,
                        **(wanted if isinstance(wanted, dict) else {"fetch_offset": wanted}),
                    }
                    for partition, wanted in partitions.items()
                ],
            }
            for name, partitions in topics.items()
        ],
        **more,
    }


@asynccontextmanager
async def ground(directory: Path, **settings: Any) -> AsyncIterator[Ground]:
    settings.setdefault("wal_file_bytes", "1MiB")  # opens quicker
    async with StreamHouse.open(data_dir=str(directory), **settings) as sh:
        agent = sh.agent
        view = TestView(
            metadata=sh.stores.metadata,
            agent_id="me",
            liveness_timeout_ms=60_000,
            heartbeat_interval_ms=20_000,
            alone=True,
        )
        view.node_id = 1
        leased = LeasedWriter(log=agent.log, leases=agent.member.lease_table, view=view, clock=sh.clock)
        writes = Writes(
            writers={WriteMode.LEASED: leased, WriteMode.LEADERLESS: LeaderlessWriter(view)},
            reader=agent.reader,
            metadata=sh.stores.metadata,
            view=view,
        )
        reads = Reads(
            reader=agent.reader, writes=writes, metadata=sh.stores.metadata, view=view, durability=Durability.WAL
        )
        leading = Leading(view, writes)
        broker = replace(
            agent.broker,
            view=view,
            produce=Produce(writes, view),
            fetch=Fetch(view=view, reads=reads, writes=writes),
            offsets=LogOffsets(reads, leading),
            leading=leading,
            writes=writes,
            reads=reads,
        )
        yield Ground(sh, broker, view)
