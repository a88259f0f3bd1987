"""Produce and Fetch through their handlers, with a real log, WAL and tail cache behind them, and no socket.

Small batches: µs of CPU a request, of the whole process, WAL thread and flushes included; the append's own share stands
beside it. Large ones: ms of CPU a MB on the event loop, which is what limits a broker; the whole process beside it has
the kernel's share too, which copies every byte into the page cache twice, for the WAL and for its object.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from bench_agent import batch_of, touch_memory
from report import heading, row
from streamhouse.app.platform import StreamHouse
from streamhouse.app.process import tune
from streamhouse.broker.broker import Broker
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, ClientConnection, ServerMemory
from streamhouse.gateway.kafka.handlers.api_00_produce import produce
from streamhouse.gateway.kafka.handlers.api_01_fetch import fetch
from streamhouse.gateway.kafka.hot import fetch as fetch_codec
from streamhouse.gateway.kafka.hot import produce as produce_codec
from streamhouse.gateway.kafka.wire.schema import write_request

MB = 1_000_000
SMALL = batch_of(1, 100)
LARGE = batch_of(250, 1000)
MEMORY = ServerMemory(SystemClock(), max_fetch_sessions=1_000)


@asynccontextmanager
async def broker_with(partitions: int) -> AsyncIterator[tuple[StreamHouse, Broker, list[PartitionKey]]]:
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as directory:
        async with StreamHouse.open(data_dir=directory) as sh:
            topic = await sh.create_topic("bench", partitions)
            await sh.agent.wait_leading(topic.partition_keys(), timeout_s=60)
            yield sh, sh.agent.broker, topic.partition_keys()


def produce_body(version: int, partition: int, records: bytes, topic_id: Any) -> bytes:
    name = {"topic_id": topic_id} if version >= 13 else {"name": "bench"}
    data = [{**name, "partition_data": [{"index": partition, "records": records}]}]
    return write_request(0, version, {"acks": -1, "timeout": 30_000, "topic_data": data})


def fetch_body(version: int, partition: int, offset: int, max_bytes: int, topic_id: Any) -> bytes:
    name = {"topic_id": topic_id} if version >= 13 else {"topic": "bench"}
    wanted = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}]
    fields = {"max_wait": 500, "min_bytes": 1, "max_bytes": 50 * MB, "topics": [{**name, "partitions": wanted}]}
    return write_request(1, version, fields)


def call_of(broker: Broker, api_key: int, version: int) -> Call:
    client = ClientConnection(host="127.0.0.1", listener="bench")
    return Call(api_key=api_key, version=version, correlation_id=1, client=client, broker=broker, memory=MEMORY)


def cpu_us(work: Callable[[], object], count: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / count * 1e6


async def pump(call: Call, bodies: list[bytearray], count: int, *, window: int) -> None:
    under_way: list[asyncio.Future[Any]] = []
    for number in range(count):
        result = produce(call, memoryview(bodies[number % len(bodies)]))
        while not isinstance(result, asyncio.Future):  # refused: the buffer is full, because the disk is slower than we
            await asyncio.sleep(0.01)
            result = produce(call, memoryview(bodies[number % len(bodies)]))
        under_way.append(result)
        if len(under_way) >= window:
            await under_way[-window // 2]
            under_way = [each for each in under_way if not each.done()]
    await asyncio.gather(*under_way)


async def producing(version: int) -> None:
    for name, batch, count, window in (
        ("one record of 100 B", SMALL, 40_000, 500),
        ("256 KB", LARGE, 3_000, 64),
    ):
        async with broker_with(4) as (_, broker, keys):
            touch_memory(1000)
            call = call_of(broker, 0, version)
            bodies = [bytearray(produce_body(version, number, batch, keys[0].topic_id)) for number in range(4)]
            await pump(call, bodies, count // 10, window=window)
            cpu, thread = time.process_time(), time.thread_time()
            await pump(call, bodies, count, window=window)
            cpu, thread = time.process_time() - cpu, time.thread_time() - thread
            if batch is LARGE:
                size = count * len(batch) / MB
                whole = f"{cpu / size * 1e3:.2f} ms/MB with WAL thread, flushes and kernel"
                row(
                    f"produce v{version}, {name}", f"{thread / size * 1e3:.2f} ms/MB", target="≤ 0.5 ms/MB", ratio=whole
                )
                continue
            await asyncio.sleep(0.5)
            direct = time.process_time()
            for first in range(0, count, window):
                await asyncio.gather(
                    *(broker.writes.append(keys[n % 4], batch, acks=-1).done for n in range(first, first + window))
                )
            direct = time.process_time() - direct
            shares = f"append alone {direct / count * 1e6:.1f} µs"
            row(f"produce v{version}, {name}", f"{cpu / count * 1e6:.1f} µs CPU", target="≤ 35 µs", ratio=shares)


async def fetching(version: int) -> None:
    for name, batch, rounds, max_bytes in (("one record of 100 B", SMALL, 30_000, 1), ("1 MB", LARGE, 3_000, MB)):
        async with broker_with(1) as (_, broker, keys):
            sends = [broker.writes.append(keys[0], batch, acks=-1) for _ in range(120)]
            await asyncio.gather(*(each.done for each in sends))
            call = call_of(broker, 1, version)
            offsets = [each.base_offset for each in sends[:50]]
            bodies = [memoryview(fetch_body(version, 0, offset, max_bytes, keys[0].topic_id)) for offset in offsets]
            first = fetch(call, bodies[0])
            if inspect.isawaitable(first):
                await first
            sent = 0
            cpu = time.process_time()
            for number in range(rounds):
                buffers = fetch(call, bodies[number % 50])
                assert isinstance(buffers, list)
                sent += sum(map(len, buffers))
            cpu = time.process_time() - cpu
            if batch is SMALL:
                row(f"fetch v{version}, {name}", f"{cpu / rounds * 1e6:.1f} µs CPU", target="≤ 25 µs")
            else:
                row(f"fetch v{version}, {name}", f"{cpu / (sent / MB) * 1e3:.3f} ms/MB", target="≤ 0.5 ms/MB")


def codecs() -> None:
    heading("Codecs alone, one topic and partition")
    topic_id = UUID(int=7)
    for version in (7, 9, 13):
        body = memoryview(produce_body(version, 0, SMALL, topic_id))
        raw = produce_codec.read_request(version, body).topics[0].raw

        def answer(version: int = version, raw: bytes = raw) -> None:
            for _ in range(10_000):
                produce_codec.write_response(version, [(raw, [produce_codec.partition_ok(version, 0, 5, -1, 0)])])

        def read(version: int = version, body: memoryview = body) -> None:
            for _ in range(10_000):
                produce_codec.read_request(version, body)

        row(f"produce v{version} read / write", f"{cpu_us(read, 10_000):.1f} / {cpu_us(answer, 10_000):.1f} µs")
    for version in (11, 12, 17):
        body = memoryview(fetch_body(version, 0, 5, MB, topic_id))

        def read_fetch(version: int = version, body: memoryview = body) -> None:
            for _ in range(10_000):
                fetch_codec.read_request(version, body)

        row(f"fetch v{version} read", f"{cpu_us(read_fetch, 10_000):.1f} µs")


def main() -> None:
    tune()
    codecs()
    heading("Produce through the handler, WAL included (durability=wal, 4 partitions)")
    for version in (9, 13):
        asyncio.run(producing(version))
    heading("Fetch through the handler, from the tail cache")
    for version in (11, 17):
        asyncio.run(fetching(version))


if __name__ == "__main__":
    main()
