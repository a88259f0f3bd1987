"""Questions for offsets: by place, by time, by epoch; one answer for each, and a bounded number at a time (R16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.log_offsets import At, IsolationLevel, ListedOffset, LogOffsets, OffsetQuestion
from streamhouse.broker.reads import EndOffsets, EpochEnd
from streamhouse.core.errors import (
    InvalidRequest,
    NotLeader,
    PartitionNotFound,
    StaleEpoch,
    StreamHouseError,
    TopicNotFound,
    UnknownEpoch,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.wire.records import Record

CALLER = Caller(protocol="test")
NOTHING = ListedOffset(-1, -1, -1)


@pytest.fixture
async def sh(tmp_path: Path) -> AsyncIterator[StreamHouse]:
    """Topic t: three records in partition 0, the newest in the middle; partition 1 is empty."""
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB") as opened:
        await opened.create_topic("t", 2)
        for time_ms in (1000, 3000, 2000):
            await opened.produce_batch("t", 0, [Record(value=b"v", timestamp_ms=time_ms)])
        yield opened


async def epoch_of(sh: StreamHouse) -> int:
    return sh.broker.reads.leader_epoch((await sh.topic("t")).partition_keys()[0])


async def ask(sh: StreamHouse, *questions: OffsetQuestion, isolation: int = 0) -> list[ListedOffset | StreamHouseError]:
    return await sh.broker.offsets.list_offsets(questions, caller=CALLER, isolation=isolation)


async def test_each_place_in_a_log(sh: StreamHouse) -> None:
    epoch = await epoch_of(sh)
    found = await ask(sh, *(OffsetQuestion("t", 0, at) for at in At))
    assert dict(zip(At, found, strict=True)) == {
        At.LATEST: ListedOffset(3, -1, epoch),
        At.EARLIEST: ListedOffset(0, -1, epoch),
        At.EARLIEST_LOCAL: ListedOffset(0, -1, epoch),
        At.MAX_TIMESTAMP: ListedOffset(1, 3000, epoch),
        At.LATEST_TIERED: NOTHING,
        At.EARLIEST_PENDING_UPLOAD: NOTHING,
    }


async def test_the_first_record_at_a_time_or_later(sh: StreamHouse) -> None:
    epoch = await epoch_of(sh)
    found = await ask(sh, *(OffsetQuestion("t", 0, at) for at in (0, 1000, 1001, 3000, 3001)))
    assert found == [
        ListedOffset(0, 1000, epoch),
        ListedOffset(0, 1000, epoch),
        ListedOffset(1, 3000, epoch),
        ListedOffset(1, 3000, epoch),
        NOTHING,
    ]


async def test_an_empty_log_has_ends_and_no_newest_record(sh: StreamHouse) -> None:
    latest, newest = await ask(sh, OffsetQuestion("t", 1, At.LATEST), OffsetQuestion("t", 1, At.MAX_TIMESTAMP))
    assert latest == ListedOffset(0, -1, await epoch_of(sh))
    assert newest == NOTHING


async def test_the_end_depends_on_what_the_caller_may_read(sh: StreamHouse) -> None:
    ends = EndOffsets(log_start_offset=0, last_stable_offset=2, high_watermark=3)

    async def look(key: PartitionKey) -> EndOffsets:
        return ends

    with patch.object(sh.broker.reads, "ends", look):
        question = OffsetQuestion("t", 0, At.LATEST)
        (all_of_it,) = await ask(sh, question)
        (committed,) = await ask(sh, question, isolation=IsolationLevel.READ_COMMITTED)
    assert isinstance(all_of_it, ListedOffset)
    assert isinstance(committed, ListedOffset)
    assert (all_of_it.offset, committed.offset) == (3, 2)


async def test_a_wrong_question_has_an_error_of_its_own_and_the_others_an_answer(sh: StreamHouse) -> None:
    epoch = await epoch_of(sh)
    found = await ask(
        sh,
        OffsetQuestion("t", 0, min(At) - 1),
        OffsetQuestion("t", 7, At.LATEST),
        OffsetQuestion("other", 0, At.LATEST),
        OffsetQuestion("t", 0, At.LATEST, epoch - 1),
        OffsetQuestion("t", 0, At.LATEST, epoch + 1),
        OffsetQuestion("t", 0, At.LATEST, epoch),
    )
    assert [type(each) for each in found] == [
        InvalidRequest,
        PartitionNotFound,
        TopicNotFound,
        StaleEpoch,
        UnknownEpoch,
        ListedOffset,
    ]


async def test_only_the_leader_answers(sh: StreamHouse) -> None:
    with patch.object(sh.broker.writes, "epoch", return_value=None):
        (refused,) = await ask(sh, OffsetQuestion("t", 0, At.LATEST))
    assert isinstance(refused, NotLeader)
    assert "t/0" in refused.message


async def test_the_end_of_an_epoch(sh: StreamHouse) -> None:
    epoch = await epoch_of(sh)
    ends = await sh.broker.offsets.epoch_ends(
        [("t", 0, -1, epoch), ("t", 0, epoch + 1, epoch), ("t", 9, -1, 0), ("other", 0, -1, 0)], caller=CALLER
    )
    assert ends[0] == EpochEnd(epoch=epoch, end_offset=3)
    assert [type(each) for each in ends[1:]] == [UnknownEpoch, PartitionNotFound, TopicNotFound]


class SlowReads:
    """Counts the questions that are looked up at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def leader_epoch(self, key: PartitionKey, claimed: int) -> int:
        return 0

    async def ends(self, key: PartitionKey) -> EndOffsets:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(3):
            await asyncio.sleep(0)
        self.now -= 1
        return EndOffsets(log_start_offset=0, last_stable_offset=1, high_watermark=1)


async def test_at_most_50_questions_of_a_request_are_looked_up_at_a_time(sh: StreamHouse) -> None:
    reads: Any = SlowReads()
    offsets = LogOffsets(reads, sh.broker.leading)
    found = await offsets.list_offsets([OffsetQuestion("t", 0, At.LATEST)] * 120, caller=CALLER)
    assert found == [ListedOffset(1, -1, 0)] * 120
    assert reads.most == 50
