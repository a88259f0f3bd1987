"""A group's coordinator moves to another agent in the middle of things, and real clients go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from streamhouse import StreamHouse
from streamhouse.metadata.contract import SlotKey, slot_of

PATIENCE_S = 30.0
RECORDS = 4


@asynccontextmanager
async def fleet_agent(directory: Path, dsn: str, name: str) -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(
        data_dir=str(directory / name),
        metadata_url=dsn,
        store_url=f"file://{directory}/objects",
        agent_id=name,
        flush_interval="20ms",
        profile="fast",
        wal_file_bytes="1MiB",
        group_initial_rebalance_delay="0ms",
        kafka_enabled=True,
        kafka_listen="127.0.0.1:0",
    ) as sh:
        yield sh


async def coordinators(sh: StreamHouse) -> dict[SlotKey, str]:
    leases = await sh.stores.metadata.list_leases()
    return {lease.key: lease.agent_id for lease in leases if isinstance(lease.key, SlotKey) and not lease.expired}


async def a_group_of(sh: StreamHouse, name: str) -> str:
    """A group that the agent ``name`` coordinates when it is there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            held = [slot for slot, agent in (await coordinators(sh)).items() if agent == name]
            if held:
                return next(group for group in map("group-{}".format, range(10_000)) if slot_of(group) == held[0])
            await asyncio.sleep(0.05)


async def coordinated_by(sh: StreamHouse, group: str, name: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await coordinators(sh)).get(slot_of(group)) == name:
                return
            await asyncio.sleep(0.02)


def write(address: str) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(RECORDS):
        producer.produce("orders", value=b"%d" % number, partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0


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
        deadline_s = time.monotonic() + 2 * PATIENCE_S
        while len(found) < RECORDS and time.monotonic() < deadline_s:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(180)
async def test_a_consumer_reads_on_when_its_coordinator_moves_before_it_fetches_offsets(
    tmp_path: Path, postgres_database: str
) -> None:
    """librdkafka does not repeat an OffsetFetch that is answered with NOT_COORDINATOR: it has its partitions and reads
    nothing until the next rebalance. A long heartbeat interval keeps it from noticing the move by itself."""
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
                asyncio.run_coroutine_threadsafe(move(), loop).result(PATIENCE_S)

        config = {"heartbeat.interval.ms": 60_000, "session.timeout.ms": 120_000}
        found = await asyncio.to_thread(read, address, group, on_assign, config)
        assert moved.is_set()
        assert sorted(found) == [b"%d" % number for number in range(RECORDS)]
