"""Fetch and offsets at the broker, without a protocol: epochs, other leaders, and many partitions at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.fetch import Answer, Diverging, PlainWanted, Refused
from streamhouse.broker.reads import ReadResult
from streamhouse.core.errors import (
    NotLeader,
    PartitionNotFound,
    StaleEpoch,
    TopicNotFound,
    UnknownEpoch,
    UnknownTopicId,
)
from streamhouse.core.ids import PartitionKey

CALLER = Caller(protocol="test")
MANY = 1 << 20


@pytest.fixture
async def sh(tmp_path: Path) -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB") as opened:
        await opened.create_topic("t", 2)
        await opened.produce("t", b"a", partition=0)
        await opened.produce("t", b"b", partition=1)
        yield opened


async def fetch(
    sh: StreamHouse, *wanted: PlainWanted, topic: object = "t", leader_only: bool = True, wait_ms: int = 0
) -> Sequence[Answer]:
    return await sh.broker.fetch.run(
        [(topic, each) for each in wanted],  # type: ignore[misc]
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=MANY,
        caller=CALLER,
        leader_only=leader_only,
    )


async def key_of(sh: StreamHouse) -> PartitionKey:
    return (await sh.topic("t")).partition_keys()[0]


async def test_each_partition_has_an_answer_of_its_own(sh: StreamHouse) -> None:
    first, beyond, second = await fetch(sh, PlainWanted(0, 0, MANY), PlainWanted(7, 0, MANY), PlainWanted(1, 0, MANY))
    assert isinstance(first, ReadResult)
    assert isinstance(second, ReadResult)
    assert (first.high_watermark, second.high_watermark) == (1, 1)
    assert isinstance(beyond, Refused)
    assert isinstance(beyond.error, PartitionNotFound)


async def test_a_topic_that_is_not_there_by_name_or_by_id(sh: StreamHouse) -> None:
    (by_name,) = await fetch(sh, PlainWanted(0, 0, MANY), topic="other")
    (by_id,) = await fetch(sh, PlainWanted(0, 0, MANY), topic=sh.randomness.uuid())
    assert isinstance(by_name, Refused)
    assert isinstance(by_id, Refused)
    assert type(by_name.error) is TopicNotFound
    assert type(by_id.error) is UnknownTopicId
    assert by_name.key is None


async def test_the_epoch_that_the_caller_knows_is_compared(sh: StreamHouse) -> None:
    epoch = sh.broker.reads.leader_epoch(await key_of(sh))
    same, older, newer = await fetch(
        sh, *(PlainWanted(0, 0, MANY, current_leader_epoch=known) for known in (epoch, epoch - 1, epoch + 1))
    )
    assert isinstance(same, ReadResult)
    assert isinstance(older, Refused)
    assert isinstance(newer, Refused)
    assert isinstance(older.error, StaleEpoch)
    assert isinstance(newer.error, UnknownEpoch)


async def test_a_caller_that_has_read_further_than_the_log_is_told_where_to_cut_back(sh: StreamHouse) -> None:
    epoch = sh.broker.reads.leader_epoch(await key_of(sh))
    (diverging,) = await fetch(sh, PlainWanted(0, 5, MANY, last_fetched_epoch=epoch))
    assert diverging == Diverging(epoch, 1)
    (fine,) = await fetch(sh, PlainWanted(0, 0, MANY, last_fetched_epoch=epoch))
    assert isinstance(fine, ReadResult)


async def test_only_a_caller_in_this_process_reads_what_another_agent_leads(sh: StreamHouse) -> None:
    await sh.flush()
    with patch.object(sh.broker.writes, "epoch", return_value=None):
        (refused,) = await fetch(sh, PlainWanted(0, 0, MANY))
        (read,) = await fetch(sh, PlainWanted(0, 0, MANY), leader_only=False)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, NotLeader)
    assert "t/0" in refused.error.message
    assert isinstance(read, ReadResult)


async def test_an_answer_from_memory_needs_no_task(sh: StreamHouse) -> None:
    await fetch(sh, PlainWanted(0, 0, MANY))  # which looks where the log begins
    limits: dict[str, Any] = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": MANY}
    found = sh.broker.fetch.begin([("t", PlainWanted(0, 0, MANY))], caller=CALLER, **limits)
    assert isinstance(found, Sequence)
    later = sh.broker.fetch.begin([("t", PlainWanted(0, 1, MANY))], caller=CALLER, **limits)
    assert not isinstance(later, Sequence)
    assert isinstance((await later)[0], ReadResult)
