"""What the driver finds out before it plans: topics, ends of logs, offsets for positions and times, and data loss."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import DataLost, InvalidSetting, PartitionNotFound, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import NewTopic
from streamhouse.metadata.sqlite.connections import MEMORY
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.spark.offsets import TopicPartition
from streamhouse.spark.options import ReadOptions, parse_read_options
from streamhouse.spark.plan import ReadRange
from streamhouse.spark.snapshot import (
    DataLoss,
    LogEnds,
    Snapshot,
    named_topic,
    resolve_ending,
    resolve_starting,
    scan_ranges,
    take_snapshot,
)

TOPIC = TopicId(SeededRandomness(5).uuid())
A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
SNAPSHOT = Snapshot(
    topic_ids={"orders": TOPIC},
    logs={
        A: LogEnds(key=PartitionKey(TOPIC, 0), start=10, end=20),
        B: LogEnds(key=PartitionKey(TOPIC, 1), start=0, end=5),
    },
)


def reading(**options: str) -> ReadOptions:
    return parse_read_options({"subscribe": "orders", **options}, streaming=False)


async def no_record(key: PartitionKey, timestamp_ms: int) -> int | None:
    return None


async def at_time(key: PartitionKey, timestamp_ms: int) -> int | None:
    """Partition 0 has its record 12 at any time; partition 1 none yet."""
    return 12 if key.partition == 0 else None


@pytest.fixture
async def metadata() -> AsyncIterator[SqliteMetadata]:
    opened = SqliteMetadata(MEMORY, clock=ManualClock(), randomness=SeededRandomness(1), threads=False)
    async with opened:
        for number, name in enumerate(("orders", "orders-eu", "bills")):
            topic_id = TopicId(SeededRandomness(10 + number).uuid())
            await opened.create_topic(NewTopic(topic_id=topic_id, name=name, partition_count=2, configs={}))
        yield opened


@pytest.mark.parametrize(
    ("options", "partitions"),
    [
        ({"subscribe": "bills,orders"}, ["bills/0", "bills/1", "orders/0", "orders/1"]),
        ({"subscribePattern": "orders.*"}, ["orders/0", "orders/1", "orders-eu/0", "orders-eu/1"]),
        ({"subscribePattern": "order"}, []),
        ({"assign": '{"orders": [1], "none": [0]}'}, ["orders/1"]),
        ({"assign": '{"orders": [0, 7]}'}, ["orders/0"]),
    ],
)
async def test_a_stream_leaves_out_what_is_not_there(
    metadata: SqliteMetadata, options: dict[str, str], partitions: list[str]
) -> None:
    found = await take_snapshot(metadata, parse_read_options(options, streaming=True), must_exist=False)
    assert [str(each) for each in found.logs] == partitions
    assert found.ends() == dict.fromkeys(found.logs, 0)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"subscribe": "order"}, TopicNotFound, "did you mean orders"),
        ({"subscribePattern": "order"}, TopicNotFound, "no topic's whole name matches 'order'"),
        ({"assign": '{"orders": [7]}'}, PartitionNotFound, "orders has partitions 0 to 1, not 7"),
    ],
)
async def test_a_read_says_what_is_not_there(
    metadata: SqliteMetadata, options: dict[str, str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await take_snapshot(metadata, parse_read_options(options, streaming=False), must_exist=True)


async def test_a_name_like_no_other_lists_the_topics(metadata: SqliteMetadata) -> None:
    with pytest.raises(TopicNotFound, match="the topics are bills, orders, orders-eu"):
        await named_topic(metadata, "zzz")


async def test_offsets_may_be_edges_and_must_name_every_partition_and_no_other() -> None:
    loss = DataLoss(fails=True)
    given = {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 15, "1": -1}}'}
    found = parse_read_options(given, streaming=True)
    assert await resolve_starting(SNAPSHOT, found, no_record, loss) == {A: 15, B: 5}
    assert await resolve_starting(SNAPSHOT, reading(startingOffsets="earliest"), no_record, loss) == {A: 10, B: 0}
    with pytest.raises(InvalidSetting, match="startingOffsets says nothing of orders/1"):
        await resolve_starting(SNAPSHOT, reading(startingOffsets='{"orders": {"0": 15}}'), no_record, loss)
    with pytest.raises(InvalidSetting, match="speaks of orders/2, which is not read"):
        await resolve_starting(
            SNAPSHOT, reading(startingOffsets='{"orders": {"0": 15, "1": 0, "2": 0}}'), no_record, loss
        )


@pytest.mark.parametrize(("asked", "begins"), [(9, 10), (21, 20)])
async def test_records_that_are_gone_are_data_loss_or_passed_over(
    asked: int, begins: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = reading(startingOffsets=f'{{"orders": {{"0": {asked}, "1": 0}}}}')
    with pytest.raises(DataLost, match=f"startingOffsets asks for {asked}"):
        await resolve_starting(SNAPSHOT, options, no_record, DataLoss(fails=True))
    loss = DataLoss(fails=False)
    with caplog.at_level(logging.WARNING, logger="streamhouse.spark"):
        for _ in range(3):
            assert await resolve_starting(SNAPSHOT, options, no_record, loss) == {A: begins, B: 0}
    assert len(caplog.records) == 1, "a stream meets it at every trigger"


async def test_an_end_is_never_beyond_the_log() -> None:
    options = reading(endingOffsets='{"orders": {"0": 99, "1": 3}}')
    assert await resolve_ending(SNAPSHOT, options, no_record, DataLoss(fails=False)) == {A: 20, B: 3}
    with pytest.raises(DataLost, match="endingOffsets asks for 99"):
        await resolve_ending(SNAPSHOT, options, no_record, DataLoss(fails=True))


async def test_a_time_without_a_record_is_refused_at_the_start_unless_latest_is_asked_for() -> None:
    loss = DataLoss(fails=True)
    with pytest.raises(InvalidSetting, match="orders/1 has no record at or after 7"):
        await resolve_starting(SNAPSHOT, reading(startingTimestamp="7"), at_time, loss)
    lenient = reading(startingTimestamp="7", startingOffsetsByTimestampStrategy="latest")
    assert await resolve_starting(SNAPSHOT, lenient, at_time, loss) == {A: 12, B: 5}
    assert await resolve_ending(SNAPSHOT, reading(endingTimestamp="7"), at_time, loss) == {A: 12, B: 5}


async def test_an_empty_range_is_not_asked_about(metadata: SqliteMetadata) -> None:
    topic = await metadata.get_topic("orders")
    key = PartitionKey(topic.topic_id, 0)
    empty = ReadRange(topic="orders", key=key, from_offset=3, to_offset=3, entries=())
    assert await scan_ranges(metadata, [empty]) == []
