"""A group's coordinator moves to another agent in the middle of things, and real clients go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from streamhouse import StreamHouse
from streamhouse.metadata.contract import SlotKey, slot_of

WAIT_S = 30.0
RECORDS = 4


@asynccontextmanager
async def fleet_agent(directory: Path, dsn: str, name: str, *, heartbeat: str = "30s") -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(
        data_dir=str(directory / name),
        metadata_url=dsn,
        store_url=f"file://{directory}/objects",
        agent_id=name,
        flush_interval="20ms",
        profile="fast",
        wal_file_bytes="1MiB",
        group_initial_rebalance_delay="0ms",
        group_consumer_heartbeat=heartbeat,
        kafka_enabled=True,
        kafka_listen="127.0.0.1:0",
    ) as sh:
        yield sh


async def coordinators(sh: StreamHouse) -> dict[SlotKey, str]:
    leases = await sh.stores.metadata.list_leases()
    return {lease.key: lease.agent_id for lease in leases if isinstance(lease.key, SlotKey) and not lease.expired}


async def a_group_of(sh: StreamHouse, name: str) -> str:
    """A group that the agent ``name`` coordinates when it is there."""
    async with asyncio.timeout(WAIT_S):
        while True:
            held = [slot for slot, agent in (await coordinators(sh)).items() if agent == name]
            if held:
                return next(group for group in map("group-{}".format, range(10_000)) if slot_of(group) == held[0])
            await asyncio.sleep(0.05)


async def coordinated_by(sh: StreamHouse, group: str, name: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            if (await coordinators(sh)).get(slot_of(group)) == name:
                return
            await asyncio.sleep(0.02)


def write(address: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce("orders", value=b"%d" % number, partition=number % 2)
    assert producer.flush(WAIT_S) == 0


def read(address: str, group: str, on_assign: Callable[[], None], config: dict[str, Any]) -> list[bytes]:
    """What one librdkafka consumer of the group reads. ``on_assign`` runs between assignment and OffsetFetch."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )
    found: list[bytes] = []
    try:
        consumer.subscribe(["orders"], on_assign=lambda *_: on_assign())
        deadline_s = time.monotonic() + 2 * WAIT_S
        while len(found) < RECORDS and time.monotonic() < deadline_s:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "config",
    [{"heartbeat.interval.ms": 60_000, "session.timeout.ms": 120_000}, {"group.protocol": "consumer"}],
    ids=["classic", "kip-848"],
)
async def test_a_consumer_reads_on_when_its_coordinator_moves_before_it_fetches_offsets(
    tmp_path: Path, postgres_database: str, config: dict[str, Any]
) -> None:
    """librdkafka does not repeat an OffsetFetch that is answered with NOT_COORDINATOR: it has its partitions and reads
    nothing until the next rebalance. A long heartbeat interval keeps it from noticing the move by itself; with KIP-848,
    where the coordinator sets the interval, it is long enough."""
    async with AsyncExitStack() as agents:
        a = await agents.enter_async_context(fleet_agent(tmp_path, postgres_database, "a"))
        (address,) = a.kafka_addresses
        async with fleet_agent(tmp_path, postgres_database, "b"):
            group = await a_group_of(a, "b")
        await coordinated_by(a, group, "a")
        await a.create_topic("orders", 2)
        await asyncio.to_thread(write, address)
        loop, moved = asyncio.get_running_loop(), threading.Event()

        async def move() -> None:
            await agents.enter_async_context(fleet_agent(tmp_path, postgres_database, "b"))
            await coordinated_by(a, group, "b")

        def on_assign() -> None:
            if not moved.is_set():
                moved.set()
                asyncio.run_coroutine_threadsafe(move(), loop).result(WAIT_S)

        found = await asyncio.to_thread(read, address, group, on_assign, config)
        assert moved.is_set()
        assert sorted(found) == [b"%d" % number for number in range(RECORDS)]


class MixedGroup:
    """Two librdkafka consumers of one group, one of each protocol, polled by a thread of their own."""

    def __init__(self, address: str, group: str) -> None:
        common = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
        classic = {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 100}
        self.consumers = [Consumer({**common, **classic}), Consumer({**common, "group.protocol": "consumer"})]
        self.found: set[bytes] = set()
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    async def __aenter__(self) -> MixedGroup:
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """The agents run in this event loop, and consumers that close say goodbye to them."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        for consumer in self.consumers:
            consumer.subscribe(["orders"])
        while not self._stop.is_set():
            for consumer in self.consumers:
                message = consumer.poll(0.05)
                error = None if message is None else message.error()
                if error is not None and error.fatal():
                    self.errors.append(str(error))
                elif message is not None and error is None:
                    self.found.add(message.value() or b"")
        for consumer in self.consumers:
            consumer.close()

    async def until(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 2 * WAIT_S
        while not done():
            shares = [consumer.assignment() for consumer in self.consumers]
            assert time.monotonic() < deadline_s, (shares, len(self.found), self.errors)
            await asyncio.sleep(0.1)

    def shared(self) -> bool:
        return all(len(consumer.assignment()) == 1 for consumer in self.consumers)


@pytest.mark.timeout(300)
async def test_a_group_of_both_protocols_reads_on_when_its_coordinator_moves(
    tmp_path: Path, postgres_database: str
) -> None:
    def produce(address: str, names: list[bytes]) -> set[bytes]:
        producer = Producer({"bootstrap.servers": address})
        for number, name in enumerate(names):
            producer.produce("orders", value=name, partition=number % 2)
        assert producer.flush(WAIT_S) == 0
        return set(names)

    def agent(name: str) -> AbstractAsyncContextManager[StreamHouse]:
        return fleet_agent(tmp_path, postgres_database, name, heartbeat="200ms")

    async with agent("a") as a:
        (address,) = a.kafka_addresses
        async with agent("b"):
            group = await a_group_of(a, "b")
        await coordinated_by(a, group, "a")
        await a.create_topic("orders", 2)
        async with MixedGroup(address, group) as mixed:
            await mixed.until(mixed.shared)
            written = await asyncio.to_thread(produce, address, [b"before %d" % number for number in range(10)])
            await mixed.until(lambda: mixed.found == written)
            async with agent("b"):
                await coordinated_by(a, group, "b")
                written |= await asyncio.to_thread(produce, address, [b"at b %d" % number for number in range(10)])
                await mixed.until(lambda: mixed.found == written and mixed.shared())
            await coordinated_by(a, group, "a")
            written |= await asyncio.to_thread(produce, address, [b"at a %d" % number for number in range(10)])
            await mixed.until(lambda: mixed.found == written and mixed.shared())
        assert mixed.errors == []
