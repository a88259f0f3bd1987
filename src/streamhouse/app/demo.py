"""Demo data: three topics, with JSON records of orders, user events and metrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamhouse.app.platform import StreamHouse
from streamhouse.core.errors import TopicExists
from streamhouse.metadata.contract import Topic
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record

RECORDS_PER_PARTITION: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTopic:
    name: str
    partition_count: int
    value: Callable[[int, int], dict[str, object]]
    """What record ``number`` of a partition says."""


DEMO_TOPICS: Final = (
    DemoTopic(
        name="orders",
        partition_count=3,
        value=lambda partition, number: {
            "order_id": f"o-{partition}-{number}",
            "amount": round(9.5 + (number * 37 % 900) / 10, 2),
            "currency": "EUR",
        },
    ),
    DemoTopic(
        name="user-events",
        partition_count=2,
        value=lambda partition, number: {"user": f"u{number * 7 % 40}", "event": ("view", "click", "buy")[number % 3]},
    ),
    DemoTopic(
        name="metrics",
        partition_count=4,
        value=lambda partition, number: {"host": f"web-{partition}", "cpu": (number * 13 % 100) / 100},
    ),
)


def demo_records(demo: DemoTopic, partition: int, *, now_ms: int) -> list[Record]:
    return [
        Record(
            key=f"{demo.name}-{number}".encode(),
            value=json.dumps(demo.value(partition, number)).encode(),
            timestamp_ms=now_ms,
        )
        for number in range(RECORDS_PER_PARTITION)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPartition:
    """One partition after loading: what was written, and the last of it as it was read back."""

    topic: str
    partition: int
    high_watermark: int
    records_read: int
    last_value: str


async def load_demo(sh: StreamHouse) -> list[LoadedPartition]:
    """Create the demo topics where missing, write to every partition, read it back. Running it again appends."""
    loaded: list[LoadedPartition] = []
    for demo in DEMO_TOPICS:
        topic = await ensure_topic(sh, demo)
        for key in topic.partition_keys():
            records = demo_records(demo, key.partition, now_ms=sh.clock.wall_ms())
            produced = await sh.produce_batch(topic.name, key.partition, records, codec=Codec.LZ4)
            found = await sh.read(topic.name, key.partition, produced.offset)
            loaded.append(
                LoadedPartition(
                    topic=topic.name,
                    partition=key.partition,
                    high_watermark=produced.offset + produced.count,
                    records_read=len(found),
                    last_value=(found[-1].value or b"").decode(),
                )
            )
    return loaded


async def ensure_topic(sh: StreamHouse, demo: DemoTopic) -> Topic:
    try:
        return await sh.create_topic(demo.name, demo.partition_count)
    except TopicExists:
        return await sh.topic(demo.name)
