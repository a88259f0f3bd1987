"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords and DescribeProducers: what kafka.md says of them."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest
from data_ground import (
    DELETE_RECORDS,
    EPOCH_END,
    LIST_OFFSETS,
    PRODUCERS,
    Ground,
    batch_of,
    ground,
)

from streamhouse.broker.caller import Caller
from streamhouse.broker.reads import EpochEnd
from streamhouse.log.reader.reader import EndOffsets
from streamhouse.metadata.contract import Durability, EpochStart

CALLER = Caller(protocol="test")

LATEST, EARLIEST, NEWEST, LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6


async def offset_at(kafka: Ground, timestamp: int, *, version: int = 11, topic: str = "t", **more: Any) -> Any:
    partition = {"partition_index": 0, "timestamp": timestamp, **more}
    request = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
    return (await kafka.ask(LIST_OFFSETS, version, request)).topics[0].partitions[0]


async def fill(kafka: Ground) -> None:
    """Records 0 to 4 with times 100, 101, 102 and 50, 51."""
    await kafka.topic()
    await kafka.produce(batch_of(b"a", b"b", b"c", base_ms=100))
    await kafka.produce(batch_of(b"d", b"e", base_ms=50))


async def test_earliest_and_latest_in_every_version(kafka: Ground) -> None:
    await fill(kafka)
    for version in range(1, 12):
        for timestamp, offset in ((LATEST, 5), (EARLIEST, 0)):
            found = await offset_at(kafka, timestamp, version=version)
            assert (found.error_code, found.offset, found.timestamp) == (0, offset, -1)
            assert found.leader_epoch == (1 if version >= 4 else -1)


@pytest.mark.parametrize("flushed", [False, True])
async def test_by_time_the_first_record_not_its_batch(kafka: Ground, flushed: bool) -> None:
    await fill(kafka)
    if flushed:
        await kafka.sh.flush()
    for timestamp, offset, time in (
        (0, 0, 100),
        (100, 0, 100),
        (101, 1, 101),
        (102, 2, 102),
        (103, -1, -1),
        (NEWEST, 2, 102),
    ):
        found = await offset_at(kafka, timestamp)
        assert (found.error_code, found.offset, found.timestamp) == (0, offset, time)
        assert found.leader_epoch == (1 if offset >= 0 else -1)


async def test_times_that_stand_for_places(kafka: Ground) -> None:
    await fill(kafka)
    topic = await kafka.sh.topic("t")
    await kafka.broker.writes.delete_before(topic.partition_keys()[0], 2, caller=CALLER)
    local = await offset_at(kafka, LOCAL)
    assert (local.error_code, local.offset) == (0, 2)
    for timestamp in (TIERED, PENDING):
        found = await offset_at(kafka, timestamp)
        assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)


async def test_an_unknown_place_is_35(kafka: Ground) -> None:
    await fill(kafka)
    for timestamp, version, code in (
        (-7, 11, 35),
        (NEWEST, 6, 35),
        (NEWEST, 7, 0),
        (LOCAL, 7, 35),
        (TIERED, 8, 35),
        (PENDING, 10, 35),
    ):
        assert (await offset_at(kafka, timestamp, version=version)).error_code == code


async def test_an_empty_log_has_no_newest_record(kafka: Ground) -> None:
    await kafka.topic()
    found = await offset_at(kafka, NEWEST)
    assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)


async def test_list_offsets_errors(kafka: Ground) -> None:
    topic = await kafka.topic()
    assert (await offset_at(kafka, LATEST, topic="none")).error_code == 3
    assert (await offset_at(kafka, LATEST, partition_index=4)).error_code == 3
    assert (await offset_at(kafka, LATEST, current_leader_epoch=0)).error_code == 74
    assert (await offset_at(kafka, LATEST, current_leader_epoch=2)).error_code == 75
    kafka.sh.agent.log.drop_partition(topic.partition_keys()[0], "for the test")
    assert (await offset_at(kafka, LATEST)).error_code == 6


# OffsetForLeaderEpoch.


async def end_of(kafka: Ground, epoch: int, *, version: int = 4, topic: str = "t", **more: Any) -> Any:
    partition = {"partition": 0, "leader_epoch": epoch, **more}
    request = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}
    return (await kafka.ask(EPOCH_END, version, request)).topics[0].partitions[0]


def epochs(*starts: tuple[int, int]) -> list[EpochStart]:
    """Each of another agent with a WAL of its own."""
    return [
        EpochStart(epoch=epoch, start_offset=start, agent_id=f"agent-{epoch}", wal_id=_wal(epoch), started_at_ms=epoch)
        for epoch, start in starts
    ]


def _wal(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)


@pytest.mark.parametrize(
    ("asked", "epoch", "end"),
    [
        (9, 9, 500),
        (8, 5, 300),
        (5, 5, 300),
        (4, 4, 300),
        (3, 3, 300),
        (2, 2, 100),
        (1, 1, 40),
        (10, -1, -1),
        (-1, -1, -1),
    ],
    ids=["current", "between", "last but one", "without records", "before it", "second", "older", "above", "none"],
)
async def test_the_end_of_an_epoch_is_the_start_of_the_next_higher_one(
    kafka: Ground, monkeypatch: pytest.MonkeyPatch, asked: int, epoch: int, end: int
) -> None:
    topic = await kafka.topic()
    (key,) = topic.partition_keys()
    reads = kafka.broker.reads
    history = epochs((2, 40), (3, 100), (4, 300), (5, 300), (9, 300))

    async def recorded(_: Any) -> list[EpochStart]:
        return history

    async def ends(_: Any) -> EndOffsets:
        return EndOffsets(log_start_offset=40, last_stable_offset=500, high_watermark=500)

    partition = kafka.sh.agent.log.partition(key)
    assert partition is not None
    monkeypatch.setattr(partition, "epoch", 9)
    monkeypatch.setattr(reads._metadata, "epoch_history", recorded)
    monkeypatch.setattr(reads._reader, "end_offsets", ends)
    assert await reads.epoch_end(key, asked) == EpochEnd(epoch=epoch, end_offset=end)
    trimmed = EndOffsets(log_start_offset=400, last_stable_offset=500, high_watermark=500)
    monkeypatch.setattr(reads._reader, "end_offsets", lambda _: asyncio.sleep(0, trimmed))
    assert (await reads.epoch_end(key, asked)).end_offset in (-1, max(end, 400))


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_the_current_epoch_ends_with_the_log(kafka: Ground, version: int) -> None:
    await fill(kafka)
    found = await end_of(kafka, 1, version=version)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 1, 5)
    found = await end_of(kafka, 2, version=version)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, -1, -1)


async def test_offset_for_leader_epoch_errors(kafka: Ground) -> None:
    await kafka.topic()
    assert (await end_of(kafka, 1, topic="none")).error_code == 3
    assert (await end_of(kafka, 1, current_leader_epoch=0)).error_code == 74
    assert (await end_of(kafka, 1, current_leader_epoch=2)).error_code == 75


async def test_r2_a_restart_cuts_nothing_off_where_the_wal_is_the_durability(tmp_path: Path) -> None:
    """Replay brings back what was read before it was committed, so the new epoch's start in the history lies below."""
    async with ground(tmp_path) as kafka:
        await fill(kafka)
    async with ground(tmp_path) as kafka:
        kafka.view.learned(await kafka.sh.topic("t"))
        await kafka.produce(batch_of(b"f"))
        assert (await end_of(kafka, 2)).end_offset == 6
        found = await end_of(kafka, 1)
        assert (found.leader_epoch, found.end_offset) == (1, 6)
        latest, earliest = await offset_at(kafka, LATEST), await offset_at(kafka, EARLIEST)
        assert (latest.leader_epoch, earliest.leader_epoch) == (2, 1)


async def test_in_a_fleet_every_epoch_ends_where_the_next_begins(tmp_path: Path) -> None:
    async with ground(tmp_path) as kafka:
        await fill(kafka)
    async with ground(tmp_path) as kafka:
        kafka.view.learned(await kafka.sh.topic("t"))
        kafka.broker.reads._durability = Durability.OBJECT
        await kafka.produce(batch_of(b"f"))
        found = await end_of(kafka, 1)
        assert (found.leader_epoch, found.end_offset) == (1, 5)


# DeleteRecords.


async def delete(kafka: Ground, offset: int, *, version: int = 2, topic: str = "t", partition: int = 0) -> Any:
    asked = {"partition_index": partition, "offset": offset}
    request = {"timeout": 1000, "topics": [{"name": topic, "partitions": [asked]}]}
    return (await kafka.ask(DELETE_RECORDS, version, request)).topics[0].partitions[0]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_delete_records_raises_the_log_start(kafka: Ground, version: int) -> None:
    await fill(kafka)
    answer = await delete(kafka, 4, version=version)
    assert (answer.error_code, answer.low_watermark) == (0, 4)
    assert (await offset_at(kafka, EARLIEST)).offset == 4
    assert (await kafka.fetch(0)).error_code == 1
    assert (await kafka.fetch(4)).log_start_offset == 4
    again = await delete(kafka, 2, version=version)
    assert (again.error_code, again.low_watermark) == (0, 4)


async def test_delete_records_to_the_high_watermark(kafka: Ground) -> None:
    await fill(kafka)
    answer = await delete(kafka, -1)
    assert (answer.error_code, answer.low_watermark) == (0, 5)
    assert (await kafka.produce(batch_of(b"next"))).base_offset == 5
    assert (await kafka.fetch(5)).high_watermark == 6


async def test_delete_records_errors(kafka: Ground) -> None:
    await fill(kafka)
    await kafka.topic("compacted", cleanup_policy="compact")
    assert (await delete(kafka, 6)).error_code == 1
    assert (await delete(kafka, -2)).error_code == 1
    assert (await delete(kafka, 0, topic="none")).error_code == 3
    assert (await delete(kafka, 0, partition=3)).error_code == 3
    assert (await delete(kafka, 0, topic="compacted")).error_code == 44


async def test_produce_tells_the_log_start(kafka: Ground) -> None:
    await fill(kafka)
    await delete(kafka, 4)
    assert (await kafka.produce(batch_of(b"next"))).log_start_offset == 4


# DescribeProducers.


async def test_describe_producers_lists_whom_the_leader_remembers(kafka: Ground) -> None:
    await kafka.topic(partitions=2)
    for sequence in (0, 2):
        batch = batch_of(b"a", b"b", producer_id=12, producer_epoch=3, base_sequence=sequence)
        assert (await kafka.produce(batch)).error_code == 0
    await kafka.produce(batch_of(b"no producer"))
    await kafka.sh.flush()
    request = {"topics": [{"name": "t", "partition_indexes": [0, 1, 9]}, {"name": "none", "partition_indexes": [0]}]}
    response = await kafka.ask(PRODUCERS, 0, request)
    first, second, third = response.topics[0].partitions
    (producer,) = first.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (12, 3, 3)
    assert producer.last_timestamp > 1_600_000_000_000
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
    assert (second.error_code, second.active_producers, third.error_code) == (0, [], 3)
    assert response.topics[1].partitions[0].error_code == 3
