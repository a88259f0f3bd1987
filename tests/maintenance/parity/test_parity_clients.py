"""Consumers on a log that key compaction has emptied in the middle read on Apache Kafka and on StreamHouse the same.

Each reads as a member of a group: once from the beginning, once from a committed offset at which no record is left.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Consumer
from parity_brokers import BATCH_BYTES, CLEAN_LATER, CLEAN_NOW, ParityBroker, ParityKafka, ParityStreamHouse, wait_for
from parity_client import Sent

from streamhouse.testing.services import find_kafka

TOPIC: Final = "emptied"
BASE_MS: Final = 1_700_000_000_000
KEYS: Final = 20
UPDATES: Final = 12
END: Final = KEYS + UPDATES * KEYS // 2 + 1
STAYS: Final = [*range(KEYS // 2, KEYS), *range(END - 1 - KEYS // 2, END)]
"""Half of the keys stay where they were written first, half at their last update, and the newest record of all."""
IN_THE_HOLE: Final = (KEYS + END) // 2
_TIMEOUT_S: Final = 60.0

Line = tuple[int, int, bytes, bytes]
"""Offset, time, key and value of a record."""


def empty_the_middle(broker: ParityBroker) -> None:
    broker.create(TOPIC, {"cleanup.policy": "compact", **CLEAN_LATER})
    _write(broker, range(KEYS), round_=0)
    for round_ in range(1, UPDATES + 1):
        _write(broker, range(KEYS // 2), round_=round_)
    _write(broker, [KEYS], round_=UPDATES + 1)
    broker.alter(TOPIC, CLEAN_NOW)
    broker.settle()
    if isinstance(broker, ParityStreamHouse):
        broker.restart()
    wait_for(lambda: _stays(broker) == STAYS, lambda: f"{broker.name} has {_stays(broker)}")


def _write(broker: ParityBroker, keys: range | list[int], *, round_: int) -> None:
    filling = b"." * (sum(BATCH_BYTES) // 2 // len(keys) - 27)  # a segment for each batch
    records = [Sent(key=b"%d" % key, value=b"%d-%d " % (key, round_) + filling, at_ms=round_) for key in keys]
    assert not broker.client.write(TOPIC, records, base_ms=BASE_MS, codec="none", idempotent=False)


def _stays(broker: ParityBroker) -> list[int]:
    return broker.client.look(TOPIC, base_ms=BASE_MS).offsets


def librdkafka(bootstrap: str, group: str) -> list[Line]:
    lines: list[Line] = []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while (not lines or lines[-1][0] < END - 1) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                lines.append((message.offset(), message.timestamp()[1], message.key(), message.value()))
    finally:
        consumer.close()
    return lines


def aiokafka(bootstrap: str, group: str) -> list[Line]:
    async def read() -> list[Line]:
        lines: list[Line] = []
        consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while not lines or lines[-1][0] < END - 1:
                    found = await consumer.getmany(timeout_ms=200)
                    lines += map(_record_line, found.get(TopicPartition(TOPIC, 0), ()))
        finally:
            await consumer.stop()
        return lines

    return asyncio.run(read())


def _record_line(record: Any) -> Line:
    return record.offset, record.timestamp, record.key, record.value


def java(bootstrap: str, group: str) -> list[Line]:
    """Kafka's own console consumer. It ends with the newest record, or when nothing comes any more."""
    count = sum(offset >= IN_THE_HOLE for offset in STAYS) if group.startswith("hole") else len(STAYS)
    shown = ("print.timestamp", "print.offset", "print.key")
    ran = find_kafka().run_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--group", group, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", str(int(_TIMEOUT_S * 1_000))),
        *(word for each in shown for word in ("--formatter-property", f"{each}=true")),
        timeout_s=2 * _TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return [_line(line) for line in ran.stdout.splitlines()]


def _line(line: str) -> Line:
    time_, offset, key, value = line.split("\t")
    return int(offset.removeprefix("Offset:")), int(time_.removeprefix("CreateTime:")), key.encode(), value.encode()


CLIENTS: Final = (librdkafka, aiokafka, java)
Reads = dict[tuple[str, str], list[Line]]


def read_by_all(broker: ParityBroker) -> Reads:
    reads: Reads = {}
    for client in CLIENTS:
        reads[client.__name__, "from the beginning"] = client(broker.client.bootstrap, f"start-{client.__name__}")
        group = f"hole-{client.__name__}"
        broker.client.commit(TOPIC, group, IN_THE_HOLE)
        reads[client.__name__, "from a hole"] = client(broker.client.bootstrap, group)
    return reads


@pytest.fixture(scope="package")
def kafka_reads(kafka: ParityKafka) -> Reads:
    empty_the_middle(kafka)
    return read_by_all(kafka)


def test_consumers_read_an_emptied_log_as_on_kafka(kafka_reads: Reads, streamhouse_broker: ParityStreamHouse) -> None:
    empty_the_middle(streamhouse_broker)
    reads = read_by_all(streamhouse_broker)
    assert reads == kafka_reads
    behind = [offset for offset in STAYS if offset >= IN_THE_HOLE]
    for (client, start), lines in reads.items():
        assert [line[0] for line in lines] == (behind if start == "from a hole" else STAYS), client
