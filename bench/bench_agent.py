"""The leased write path without a network: append through a real agent's log, WAL, objects and metadata.

Payloads are half random, half text, as facts about compression would have it. CPU counts every thread of the process.

A virtual machine's memory may be the host's until it is first touched, and then the page cache pays 2 ms of kernel time
for every new MB of file, by any process. Throughput is therefore measured on memory touched a moment before.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from report import heading, row
from streamhouse.app.platform import StreamHouse
from streamhouse.app.process import tune
from streamhouse.core.ids import PartitionKey
from streamhouse.wire.records import Record, build_batch

MB = 1_000_000
_BARE_FILE_BYTES = 64 * 1024 * 1024


def payload(size: int, seed: int = 1) -> bytes:
    source = random.Random(seed)
    return source.randbytes(size // 2) + b"lorem ipsum " * (size // 24 + 1)


def batch_of(records: int, record_bytes: int) -> bytes:
    return build_batch(
        [Record(value=payload(record_bytes, seed)[:record_bytes], timestamp_ms=seed) for seed in range(records)]
    )


@asynccontextmanager
async def node(partitions: int, **settings: object) -> AsyncIterator[tuple[StreamHouse, list[PartitionKey]]]:
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as directory:
        async with StreamHouse.open(data_dir=directory, **settings) as sh:
            topic = await sh.create_topic("bench", partitions)
            await sh.agent.wait_leading(topic.partition_keys(), timeout_s=300)
            yield sh, topic.partition_keys()


async def pump(sh: StreamHouse, keys: list[PartitionKey], batch: bytes, count: int, *, window: int) -> None:
    """Append as fast as acknowledgements allow: ``window`` batches may be under way."""
    under_way: list[asyncio.Future[None]] = []
    for number in range(count):
        key = keys[number % len(keys)]
        if sh.agent.log.is_full(len(batch)):  # as every door does
            await sh.agent.log.wait_writable(key, len(batch))
        under_way.append(sh.agent.log.append(key, batch, acks=-1).done)
        if len(under_way) >= window:
            await under_way[-window // 2]
            under_way = [future for future in under_way if not future.done()]
    await asyncio.gather(*under_way)


def touch_memory(size_mb: int) -> None:
    """Fill the page cache with a file and give it back."""
    block = random.Random(1).randbytes(4 * 1024 * 1024)
    with tempfile.NamedTemporaryFile(prefix="bench-agent-") as file:
        for _ in range(size_mb // 4):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


async def throughput() -> None:
    heading("Append through the agent, WAL included (durability=wal, 4 partitions)")
    for name, batch, count, window in (
        ("256 KB batches of 1 KB records", batch_of(250, 1000), 4000, 64),
        ("small batches (1 record, 100 B)", batch_of(1, 100), 60_000, 2000),
    ):
        async with node(4) as (sh, keys):
            touch_memory(1500)
            await pump(sh, keys, batch, count // 10, window=window)
            cpu, wall = time.process_time(), time.perf_counter()
            await pump(sh, keys, batch, count, window=window)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            size = count * len(batch) / MB
            if len(batch) > 100_000:
                row(
                    name,
                    f"{size / cpu:,.0f} MB/s/core",
                    target="≥ 500 MB/s/core",
                    ratio=f"{size / wall:,.0f} MB/s wall",
                )
            else:
                row(
                    name,
                    f"{count / wall:,.0f} batches/s",
                    target="≥ 30,000/s",
                    ratio=f"{cpu / count * 1e6:.1f} µs CPU each",
                )


async def latency() -> None:
    heading("Acknowledgement at 5,000 records/s on a single node, beside the bare disk")
    seconds, rate = 10, 5000
    batch = batch_of(1, 1000)
    bare = {
        "one after another": _p99(_bare_fdatasync(seconds=3)),
        "the same bytes at the same pace": _p99(_paced_fdatasync(seconds=5, rate=rate, record_bytes=len(batch))),
    }
    async with node(4) as (sh, keys):
        taken: list[float] = []
        sent = 0
        began = time.perf_counter()
        while sent < seconds * rate:
            await asyncio.sleep(0.001)  # bursts of about five: a client that spins would take the WAL's turn
            due = min(seconds * rate, int((time.perf_counter() - began) * rate))
            for number in range(sent, due):
                at = time.perf_counter()
                done = sh.agent.log.append(keys[number % 4], batch, acks=-1).done
                done.add_done_callback(lambda _, at=at: taken.append(time.perf_counter() - at))
            sent = due
        await sh.flush()
    p50, p99 = sorted(taken)[len(taken) // 2], _p99(taken)
    row("p50 / p99 acknowledgement", f"{p50 * 1e3:.2f} / {p99 * 1e3:.2f} ms")
    for how, alone in bare.items():
        target = "p99 within 3 ×"
        row(f"bare fdatasync p99, {how}", f"{alone * 1e3:.2f} ms", target=target, ratio=f"{p99 / alone:.2f} ×")


def _p99(taken: list[float]) -> float:
    return sorted(taken)[int(len(taken) * 0.99)]


def _bare_fdatasync(*, seconds: float) -> list[float]:
    """4 KB written and synced into a preallocated file, one after another."""
    taken: list[float] = []
    with _zeros() as file:
        block, until = os.urandom(4096), time.perf_counter() + seconds
        while time.perf_counter() < until:
            taken.append(_write_and_sync(file, block, 4096 * len(taken)))
    return taken


def _paced_fdatasync(*, seconds: float, rate: int, record_bytes: int) -> list[float]:
    """What the load below brings to the disk, without anything around it: a disk that was idle takes longer."""
    taken: list[float] = []
    with _zeros() as file:
        block, sent, began = os.urandom(record_bytes), 0, time.perf_counter()
        while sent < seconds * rate:
            time.sleep(0.001)
            due = min(int(seconds * rate), int((time.perf_counter() - began) * rate))
            taken.append(_write_and_sync(file, block * (due - sent), record_bytes * sent))
            sent = due
    return taken


@contextmanager
def _zeros() -> Iterator[int]:
    with tempfile.NamedTemporaryFile(prefix="bench-agent-") as file:
        file.write(bytes(_BARE_FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        yield file.fileno()


def _write_and_sync(file: int, block: bytes, position: int) -> float:
    started = time.perf_counter()
    os.pwrite(file, block, position % (_BARE_FILE_BYTES // 2))
    os.fdatasync(file)
    return time.perf_counter() - started


async def tail_reads() -> None:
    heading("Tail reads from the cache")
    async with node(1) as (sh, keys):
        batch = batch_of(16, 1000)
        await pump(sh, keys, batch, 4000, window=256)
        end = (await sh.agent.reader.end_offsets(keys[0])).high_watermark
        cpu, size, offset = time.process_time(), 0, max(0, end - 50_000)
        for _ in range(20):
            at = offset
            while at < end:
                found = await sh.agent.reader.read(keys[0], at, max_bytes=256 * 1024)
                size += sum(len(piece) for piece in found.batches)
                at = found.next_offset
        cpu = time.process_time() - cpu
        row("256 KB reads of 16 KB batches", f"{size / MB / cpu:,.0f} MB/s/core", target="≥ 1,000 MB/s")


async def many_partitions() -> None:
    heading("Many partitions on one agent")
    figures = []
    for count in (1000, 10_000):
        with tempfile.TemporaryDirectory(prefix="bench-agent-") as directory:
            async with StreamHouse.open(data_dir=directory) as sh:
                await sh.create_topic("bench", count)
            cpu, wall = time.process_time(), time.perf_counter()
            async with StreamHouse.open(data_dir=directory) as sh:
                topic = await sh.topic("bench")
                await sh.agent.wait_leading(topic.partition_keys(), timeout_s=600)
                started = (time.process_time() - cpu, time.perf_counter() - wall)
                cpu, wall = time.process_time(), time.perf_counter()
                await asyncio.sleep(5)
                idle = (time.process_time() - cpu) / (time.perf_counter() - wall)
        figures.append(started[0] / count)
        row(
            f"{count:,} partitions: start to serving",
            f"{started[1]:.1f} s",
            ratio=f"{started[0] / count * 1e6:.0f} µs CPU each",
        )
        row(f"{count:,} partitions: idle", f"{idle * 100:.1f} % of a core")
    row("start-up CPU a partition, 10,000 against 1,000", f"{figures[1] / figures[0]:.2f} ×", target="linear: ≤ 1 ×")


async def puts() -> None:
    heading("PUTs depend on bytes and time, not on partitions (durability=object, 5 s, same bytes)")
    rates = {}
    for count in (1, 1000):
        async with node(count, durability="object") as (sh, keys):
            batch = batch_of(1, 100)
            objects_before = len([info async for info in sh.stores.objects.list()])
            wall = time.perf_counter()
            sent = 0
            while time.perf_counter() - wall < 5:
                for _ in range(40):
                    sh.agent.log.append(keys[sent % count], batch, acks=1)
                    sent += 1
                waiting = sh.agent.log.append(keys[sent % count], batch, acks=-1).done
                await waiting
                sent += 1
            took = time.perf_counter() - wall
            objects = len([info async for info in sh.stores.objects.list()]) - objects_before
            rates[count] = objects / took
            row(f"{count:,} partitions", f"{objects / took:.1f} PUTs/s")
    row("1,000 against 1", f"{rates[1000] / rates[1]:.2f} ×", target="1 ×")


def main() -> None:
    tune()
    for part in (throughput, latency, tail_reads, many_partitions, puts):
        asyncio.run(part())


if __name__ == "__main__":
    main()
