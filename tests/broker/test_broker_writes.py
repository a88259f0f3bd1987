"""Which writer takes a batch, the error when none does, and how far the start of a log may be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from uuid import UUID

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView, Leader, Node
from streamhouse.broker.writers import LeaderlessWriter, Writer
from streamhouse.broker.writes import Append, Writes, partition_key, unknown_topic
from streamhouse.core.errors import (
    BackPressureRejected,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    PartitionNotFound,
    PolicyViolation,
    StreamHouseError,
    TopicNotFound,
    UnknownTopicId,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.topic_config import TopicConfig, effective
from streamhouse.metadata.contract import Topic, WriteMode
from streamhouse.wire.buffers import BytesLike

CALLER = Caller(protocol="test")

LEASED = TopicId(UUID(int=1))
LEADERLESS = TopicId(UUID(int=2))
KEY = PartitionKey(LEASED, 0)
BUSY = BackPressureRejected("no room")
ELSEWHERE = NotLeader("leased/0", current_leader="b")


class Leased(Writer):
    """A leased writer that leads, changes and is full as the test says."""

    def __init__(self) -> None:
        self.append_answer: Any = None
        self.changing = False
        self.full = False

    def append(
        self, key: PartitionKey, batch: BytesLike, *, acks: int, prepared_for: TopicConfig | None = None
    ) -> Append | None:
        answer: Append | None = self.append_answer
        return answer

    def epoch(self, key: PartitionKey) -> int | None:
        return None if self.append_answer is None else 4

    def is_changing(self, key: PartitionKey) -> bool:
        return self.changing

    def is_full(self, size_bytes: int) -> bool:
        return self.full


@pytest.fixture
async def view() -> ClusterView:
    nothing: Any = None
    view = ClusterView(metadata=nothing, agent_id="a", liveness_timeout_ms=1, heartbeat_interval_ms=1)
    for topic_id, mode in ((LEASED, WriteMode.LEASED), (LEADERLESS, WriteMode.LEADERLESS)):
        view.learned(
            Topic(
                topic_id=topic_id,
                name=mode.value,
                partition_count=2,
                configs={},
                write_mode=mode,
                created_at_ms=0,
                version=1,
            )
        )
    return view


@pytest.fixture
def leased() -> Leased:
    return Leased()


@pytest.fixture
def writes(view: ClusterView, leased: Leased) -> Writes:
    nothing: Any = None
    writers: dict[WriteMode, Writer] = {WriteMode.LEASED: leased, WriteMode.LEADERLESS: LeaderlessWriter(view)}
    return Writes(writers=writers, reader=nothing, metadata=nothing, view=view)


async def test_a_batch_goes_to_the_writer_of_its_topics_mode(writes: Writes, leased: Leased) -> None:
    with pytest.raises(InvalidRequest, match="leaderless/1 is leaderless"):
        writes.append(PartitionKey(LEADERLESS, 1), b"batch", acks=-1)
    leased.append_answer = taken = object()
    assert writes.append(KEY, b"batch", acks=-1) is taken
    assert writes.epoch(KEY) == 4


async def test_a_batch_that_was_prepared_says_so_to_the_writer_of_any_mode(view: ClusterView, leased: Leased) -> None:
    nothing: Any = None
    other = Mock(spec=Writer)
    writes = Writes(
        writers={WriteMode.LEASED: leased, WriteMode.LEADERLESS: other}, reader=nothing, metadata=nothing, view=view
    )
    key, configs = PartitionKey(LEADERLESS, 0), effective({})
    assert writes.append(key, b"opened", acks=-1, prepared_for=configs) is other.append.return_value
    other.append.assert_called_once_with(key, b"opened", acks=-1, prepared_for=configs)


async def test_a_partition_that_is_not_led_here_has_no_epoch_and_takes_nothing(writes: Writes) -> None:
    assert writes.epoch(KEY) is None
    assert writes.epoch(PartitionKey(LEADERLESS, 0)) == 0, "which any agent answers for"
    with pytest.raises(NotLeader, match="leased/0"):
        writes.append(KEY, b"batch", acks=-1)


@pytest.mark.parametrize("partition", [2, -1])
async def test_a_partition_that_does_not_exist_is_named_with_those_that_do(writes: Writes, partition: int) -> None:
    for topic_id in (LEASED, LEADERLESS):
        key = partition_key(topic_id, partition)
        with pytest.raises(PartitionNotFound, match=f"has partitions 0 to 1, not {partition}"):
            writes.append(key, b"batch", acks=-1)
        with pytest.raises(PartitionNotFound):
            writes.epoch(key)


@pytest.mark.parametrize(("node_id", "named"), [(7, "other"), (-1, None), (None, None)])
async def test_the_refusal_names_the_leader_only_if_that_is_another_agent(
    writes: Writes, view: ClusterView, node_id: int | None, named: str | None
) -> None:
    leader = None
    if node_id is not None:
        leader = Leader(node=Node(node_id=node_id, agent_id="other", host="h", port=1, rack=""), epoch=9)
    with patch.object(view, "leader", return_value=leader):
        assert writes.not_here(KEY).current_leader == named


@pytest.mark.parametrize(
    ("changing", "full", "refusal", "may"),
    [
        (True, False, ELSEWHERE, True),
        (True, True, BUSY, True),
        (False, True, BUSY, True),
        (False, False, BUSY, False),
        (False, True, ELSEWHERE, False),
    ],
)
async def test_a_refused_batch_is_worth_a_wait_while_the_leader_changes_or_memory_is_full(
    writes: Writes, leased: Leased, changing: bool, full: bool, refusal: StreamHouseError, may: bool
) -> None:
    leased.changing, leased.full = changing, full
    assert writes.may_soon_take(KEY, refusal, 100) is may


def test_a_topic_that_is_not_known_is_refused_by_name_or_by_id() -> None:
    assert type(unknown_topic("t")) is TopicNotFound
    by_id = unknown_topic(UUID(int=5))
    assert type(by_id) is UnknownTopicId
    assert "AAAAAAAAAAAAAAAAAAAABQ" in by_id.message, "as clients write it"


# The start of a log.


@pytest.fixture
async def sh(tmp_path: Path) -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB") as opened:
        await opened.create_topic("t", 1)
        for value in (b"a", b"b", b"c"):
            await opened.produce("t", value, partition=0)
        yield opened


async def key_of(sh: StreamHouse, topic: str = "t") -> PartitionKey:
    return (await sh.topic(topic)).partition_keys()[0]


async def test_the_start_moves_forward_to_what_is_committed_for_it_and_never_back(sh: StreamHouse) -> None:
    key, metadata = await key_of(sh), sh.stores.metadata
    assert await sh.broker.writes.delete_before(key, 2, caller=CALLER) == 2
    (lease,) = await metadata.list_leases(keys=[key])
    assert lease.high_watermark >= 2, "records were flushed first: the start cannot pass what is committed"
    assert await sh.broker.writes.delete_before(key, 1, caller=CALLER) == 2
    assert await sh.broker.writes.delete_before(key, -1, caller=CALLER) == 3
    assert [record.value for record in await sh.read("t", 0, 3)] == []


@pytest.mark.parametrize("offset", [4, -2])
async def test_the_start_stays_within_the_log(sh: StreamHouse, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match="the log of t/0"):
        await sh.broker.writes.delete_before(await key_of(sh), offset, caller=CALLER)
    assert [record.value for record in await sh.read("t", 0, 0)] == [b"a", b"b", b"c"]


async def test_records_of_a_topic_that_only_compacts_are_not_deleted(sh: StreamHouse) -> None:
    await sh.create_topic("kept", 1, configs={"cleanup.policy": "compact"})
    with pytest.raises(PolicyViolation, match="kept/0"):
        await sh.broker.writes.delete_before(await key_of(sh, "kept"), 0, caller=CALLER)


async def test_only_the_leader_moves_the_start(sh: StreamHouse) -> None:
    key = await key_of(sh)
    with pytest.raises(PartitionNotFound):
        await sh.broker.writes.delete_before(PartitionKey(key.topic_id, 1), 0, caller=CALLER)
    with patch.object(sh.agent.log, "partition", return_value=None), pytest.raises(NotLeader, match="t/0"):
        await sh.broker.writes.delete_before(key, 1, caller=CALLER)
