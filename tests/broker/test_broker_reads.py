"""Which agent answers for a partition, under which epoch, and where the records of an epoch end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.reads import ActiveProducer, EndOffsets, EpochEnd, Reads
from streamhouse.broker.writers import LeaderlessWriter, Writer
from streamhouse.broker.writes import Writes
from streamhouse.core.errors import NotLeader, PartitionNotFound, StaleEpoch, UnknownEpoch
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import (
    Durability,
    EpochStart,
    Lease,
    ProducerBatch,
    ProducerPage,
    ProducerState,
    Topic,
    WriteMode,
)
from streamhouse.metadata.dedup import SEQUENCE_MODULUS, ProducerWindow

CALLER = Caller(protocol="test")

KEY = PartitionKey(TopicId(UUID(int=1)), 0)
WAL_A, WAL_B = UUID(int=10), UUID(int=11)
UNKNOWN = EpochEnd(epoch=-1, end_offset=-1)


def start(epoch: int, start_offset: int, wal_id: UUID) -> EpochStart:
    return EpochStart(epoch=epoch, start_offset=start_offset, agent_id="a", wal_id=wal_id, started_at_ms=0)


HISTORY = [start(1, 0, WAL_A), start(3, 5, WAL_A), start(4, 9, WAL_B)]
"""Epoch 2 wrote nothing and is not in it. Epoch 4 leads, and its log ends at 12."""


class Leader(Writer):
    """A leased writer that leads, or does not."""

    def __init__(self) -> None:
        self.leads: int | None = 4
        self.windows: dict[int, ProducerWindow] = {}

    def epoch(self, key: PartitionKey) -> int | None:
        return self.leads

    def producers(self, key: PartitionKey) -> Mapping[int, ProducerWindow]:
        return self.windows


class Log:
    """Where the log begins and ends, and its epochs and producers in the metadata."""

    def __init__(self, log_start: int = 0) -> None:
        self.ends = EndOffsets(log_start_offset=log_start, last_stable_offset=12, high_watermark=12)
        self.history = list(HISTORY)
        self.history_calls = 0
        self.producers: list[ProducerState] = []
        self.meanwhile: Callable[[], None] = lambda: None

    async def end_offsets(self, key: PartitionKey) -> EndOffsets:
        self.meanwhile()
        return self.ends

    async def epoch_history(self, key: PartitionKey) -> list[EpochStart]:
        self.history_calls += 1
        return self.history

    async def load_producers(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, ProducerPage]:
        return {
            key: ProducerPage(states=tuple(self.producers), more=False, forgotten_up_to=-1, highest_id=-1)
            for key in keys
        }


class World:
    def __init__(self, *, durability: Durability = Durability.OBJECT, log_start: int = 0) -> None:
        nothing: Any = None
        self.view = ClusterView(metadata=nothing, agent_id="a", liveness_timeout_ms=1, heartbeat_interval_ms=1)
        for number, mode in ((1, WriteMode.LEASED), (2, WriteMode.LEADERLESS)):
            self.view.learned(
                Topic(
                    topic_id=TopicId(UUID(int=number)),
                    name=mode.value,
                    partition_count=1,
                    configs={},
                    write_mode=mode,
                    created_at_ms=0,
                    version=1,
                )
            )
        self.leader = Leader()
        writers: dict[WriteMode, Writer] = {
            WriteMode.LEASED: self.leader,
            WriteMode.LEADERLESS: LeaderlessWriter(self.view),
        }
        writes = Writes(writers=writers, reader=nothing, metadata=nothing, view=self.view)
        self.log = Log(log_start)
        either: Any = self.log
        self.reads = Reads(reader=either, writes=writes, metadata=either, view=self.view, durability=durability)


def test_a_caller_that_knows_another_epoch_is_refused() -> None:
    reads = World().reads
    assert [reads.leader_epoch(KEY), reads.leader_epoch(KEY, 4)] == [4, 4]
    with pytest.raises(StaleEpoch, match="leased/0"):
        reads.leader_epoch(KEY, 3)
    with pytest.raises(UnknownEpoch, match="leased/0"):
        reads.leader_epoch(KEY, 5)


def test_only_the_leader_answers_for_a_leased_partition_and_any_agent_for_a_leaderless_one() -> None:
    world = World()
    world.leader.leads = None
    with pytest.raises(NotLeader, match="leased/0"):
        world.reads.leader_epoch(KEY)
    with pytest.raises(PartitionNotFound, match="partitions 0 to 0, not 1"):
        world.reads.leader_epoch(PartitionKey(KEY.topic_id, 1))
    assert world.reads.leader_epoch(PartitionKey(TopicId(UUID(int=2)), 0)) == 0


async def test_a_caller_that_only_reads_goes_on_here_while_the_partition_is_handed_over() -> None:
    world = World()
    world.view.gained(
        Lease(
            key=KEY,
            topic="leased",
            agent_id="a",
            incarnation=None,
            epoch=4,
            acquired_at_ms=0,
            expires_at_ms=0,
            expired=False,
            high_watermark=0,
        )
    )
    world.view.leaving(KEY)
    world.leader.leads = None
    assert world.reads.leader_epoch(KEY, or_leaving=True) == 4
    with pytest.raises(StaleEpoch):
        world.reads.leader_epoch(KEY, 3, or_leaving=True)
    with pytest.raises(NotLeader):
        world.reads.leader_epoch(KEY)


@pytest.mark.parametrize(
    ("durability", "log_start", "epoch", "end"),
    [
        (Durability.OBJECT, 0, 4, EpochEnd(epoch=4, end_offset=12)),
        (Durability.OBJECT, 0, 3, EpochEnd(epoch=3, end_offset=9)),
        (Durability.OBJECT, 0, 2, EpochEnd(epoch=1, end_offset=5)),
        (Durability.OBJECT, 0, 1, EpochEnd(epoch=1, end_offset=5)),
        (Durability.OBJECT, 0, 0, EpochEnd(epoch=0, end_offset=0)),
        (Durability.OBJECT, 7, 0, EpochEnd(epoch=0, end_offset=7)),
        (Durability.OBJECT, 7, 1, EpochEnd(epoch=1, end_offset=7)),
        (Durability.OBJECT, 0, 5, UNKNOWN),
        (Durability.OBJECT, 0, -1, UNKNOWN),
        (Durability.WAL, 0, 1, EpochEnd(epoch=1, end_offset=9)),
        (Durability.WAL, 0, 3, EpochEnd(epoch=3, end_offset=9)),
        (Durability.WAL, 0, 4, EpochEnd(epoch=4, end_offset=12)),
    ],
)
async def test_an_epoch_ends_where_the_next_begins_unless_the_same_wal_goes_on(
    durability: Durability, log_start: int, epoch: int, end: EpochEnd
) -> None:
    assert await World(durability=durability, log_start=log_start).reads.epoch_end(KEY, epoch) == end


async def test_r2_epochs_of_one_wal_end_together_at_the_end_of_the_log() -> None:
    world = World(durability=Durability.WAL)
    world.log.history = [start(1, 0, WAL_A), start(3, 5, WAL_A), start(4, 9, WAL_A)]
    assert await world.reads.epoch_end(KEY, 1) == EpochEnd(epoch=1, end_offset=12)


async def test_a_leadership_that_changes_during_the_question_gives_no_answer() -> None:
    world = World()

    def moved() -> None:
        world.leader.leads = 5

    world.log.meanwhile = moved
    with pytest.raises(NotLeader, match="just changed"):
        await world.reads.epoch_end(KEY, 1)
    world = World()
    world.leader.leads = 3  # the metadata knows epoch 4 already
    with pytest.raises(NotLeader, match="just changed"):
        await world.reads.epoch_end(KEY, 1)


async def test_the_epoch_of_a_record_is_the_last_one_that_began_before_it() -> None:
    world = World()
    assert [await world.reads.epoch_of(KEY, offset) for offset in (0, 4, 5, 8, 9, 11)] == [1, 1, 3, 3, 4, 4]
    world = World()
    world.log.history = HISTORY[1:]
    assert await world.reads.epoch_of(KEY, 4) == -1, "older than the history"


async def test_the_history_is_read_once_for_each_leadership() -> None:
    world = World()
    for _ in range(3):
        await world.reads.epoch_of(KEY, 0)
    assert world.log.history_calls == 1
    world.leader.leads = 5
    await world.reads.epoch_of(KEY, 0)
    assert world.log.history_calls == 2


async def test_producers_are_listed_with_their_last_sequence_and_time() -> None:
    world = World()
    assert await world.reads.writers(KEY, caller=CALLER) == []
    last = ProducerBatch(base_sequence=SEQUENCE_MODULUS - 2, record_count=5, base_offset=7)
    world.leader.windows = {
        1: ProducerWindow(3, [ProducerBatch(base_sequence=0, record_count=1, base_offset=0), last]),
        2: ProducerWindow(0),
    }
    world.log.producers = [ProducerState(producer_id=1, producer_epoch=3, batches=(last,), updated_at_ms=900)]
    assert await world.reads.writers(KEY, caller=CALLER) == [
        ActiveProducer(producer_id=1, producer_epoch=3, last_sequence=2, last_timestamp_ms=900),
        ActiveProducer(producer_id=2, producer_epoch=0, last_sequence=-1, last_timestamp_ms=-1),
    ]
    world.leader.leads = None
    with pytest.raises(NotLeader):
        await world.reads.writers(KEY, caller=CALLER)
