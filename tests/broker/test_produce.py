"""Produce at the broker: what is refused for a whole request, and that each batch has an outcome of its own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.produce import Place, ProduceCall, WriteOrder
from streamhouse.core.errors import (
    CorruptBatch,
    InvalidAcks,
    InvalidRecord,
    LimitExceeded,
    NotAcknowledged,
    NotLeader,
    OutOfOrderSequence,
    PartitionNotFound,
    StreamHouseError,
    TopicNotFound,
    TransactionsUnsupported,
    UnknownTopicId,
)
from streamhouse.core.limits import MAX_PREPARED_INLINE_BYTES
from streamhouse.wire.records import Record, build_batch

CALLER = Caller(protocol="test")
BATCH = build_batch([Record(value=b"v", timestamp_ms=1)])


@pytest.fixture
async def sh(tmp_path: Path) -> AsyncIterator[StreamHouse]:
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB") as opened:
        await opened.create_topic("t", 2)
        yield opened


def begin(sh: StreamHouse, *places: Place, acks: int = -1, transactional_id: str | None = None) -> ProduceCall:
    ended: list[ProduceCall] = []
    call = sh.broker.produce.begin(
        [(place, BATCH) for place in places],
        acks=acks,
        timeout_ms=1000,
        order=WriteOrder(),
        caller=CALLER,
        on_done=ended.append,
        transactional_id=transactional_id,
    )
    assert ended in ([], [call])
    return call


async def test_each_batch_has_an_outcome_of_its_own(sh: StreamHouse) -> None:
    places: list[Place] = [("t", 0), ("t", 7), ("other", 0), (sh.randomness.uuid(), 0), ("t", 1)]
    outcomes = await sh.broker.produce.run(
        [(place, BATCH) for place in places], acks=-1, timeout_ms=30_000, order=WriteOrder(), caller=CALLER
    )
    errors = [type(outcome.error) for outcome in outcomes]
    assert errors == [type(None), PartitionNotFound, TopicNotFound, UnknownTopicId, type(None)]
    assert [outcome.append.base_offset for outcome in outcomes if outcome.append is not None] == [0, 0]


async def test_a_request_with_wrong_acks_or_a_transaction_is_refused_as_a_whole(sh: StreamHouse) -> None:
    call = begin(sh, ("t", 0), ("t", 1), acks=3)
    assert call.done
    assert [type(outcome.error) for outcome in call.outcomes] == [InvalidAcks] * 2
    call = begin(sh, ("t", 0), transactional_id="mine")
    assert [type(outcome.error) for outcome in call.outcomes] == [TransactionsUnsupported]
    assert await sh.read("t", 0, 0) == []


async def test_a_request_without_batches_is_done_at_once(sh: StreamHouse) -> None:
    assert begin(sh).done
    assert begin(sh, acks=3).done
    assert await sh.broker.produce.run([], acks=-1, timeout_ms=1, order=WriteOrder(), caller=CALLER) == []


async def test_r21_a_batch_for_an_unknown_topic_holds_its_followers_back(sh: StreamHouse) -> None:
    """The topic is created between two requests of one connection: the second batch must not be taken first."""
    order, batches = WriteOrder(), []
    for sequence in (0, 1):
        record = Record(value=b"%d" % sequence, timestamp_ms=1)
        batches.append(build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence))

    async def send(batch: bytes) -> BaseException | None:
        (outcome,) = await sh.broker.produce.run(
            [(("new", 0), batch)], acks=-1, timeout_ms=30_000, order=order, caller=CALLER
        )
        return outcome.error

    assert isinstance(await send(batches[0]), TopicNotFound)
    await sh.create_topic("new", 1)
    assert isinstance(await send(batches[1]), TopicNotFound)
    assert [await send(batch) for batch in batches] == [None, None]
    assert [record.value for record in await sh.read("new", 0, 0)] == [b"0", b"1"]


async def test_r21_what_follows_a_batch_that_is_too_large_is_not_taken_without_it(sh: StreamHouse) -> None:
    """The log may have forgotten the producer, so it would take any sequence. The client splits the batch, and its
    parts would come too late."""
    topic = await sh.create_topic("small", 1, configs={"max.message.bytes": "1000"})
    partition = sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    partition.producers.forgot(1_000)
    order = WriteOrder()

    async def send(sequence: int, *values: bytes) -> BaseException | None:
        records = [Record(value=value, timestamp_ms=1) for value in values]
        batch = build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        (outcome,) = await sh.broker.produce.run(
            [(("small", 0), batch)], acks=-1, timeout_ms=30_000, order=order, caller=CALLER
        )
        return outcome.error

    first, second = b"a" * 600, b"b" * 600
    assert isinstance(await send(0, first, second), LimitExceeded)
    assert isinstance(await send(2, b"c"), OutOfOrderSequence)
    assert [await send(0, first), await send(1, second), await send(2, b"c"), await send(3, b"d")] == [None] * 4
    assert [record.value for record in await sh.read("small", 0, 0)] == [first, second, b"c", b"d"]


async def test_r21_what_follows_a_damaged_batch_is_not_taken_before_it_comes_again(sh: StreamHouse) -> None:
    """The Java client sends a batch again that was damaged on its way."""
    topic = await sh.create_topic("new", 1)
    partition = sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    partition.producers.forgot(1_000)
    order = WriteOrder()
    batches = [
        build_batch([Record(value=value, timestamp_ms=1)], producer_id=7, producer_epoch=0, base_sequence=sequence)
        for sequence, value in enumerate((b"a", b"b"))
    ]
    damaged = batches[0][:-1] + b"x"

    async def send(batch: bytes) -> BaseException | None:
        (outcome,) = await sh.broker.produce.run(
            [(("new", 0), batch)], acks=-1, timeout_ms=30_000, order=order, caller=CALLER
        )
        return outcome.error

    assert [type(await send(batch)) for batch in (damaged, batches[1])] == [CorruptBatch, OutOfOrderSequence]
    assert [await send(batch) for batch in batches] == [None, None]
    assert [record.value for record in await sh.read("new", 0, 0)] == [b"a", b"b"]


async def test_r21_what_follows_a_large_batch_that_is_refused_when_it_is_opened_is_not_taken_either(
    sh: StreamHouse,
) -> None:
    """A large batch is opened in a thread, and what follows it waits meanwhile."""
    topic = await sh.create_topic("keyed", 1, configs={"cleanup.policy": "compact"})
    partition = sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    partition.producers.forgot(1_000)
    order = WriteOrder()

    async def send(sequence: int, record: Record) -> BaseException | None:
        batch = build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence)
        (outcome,) = await sh.broker.produce.run(
            [(("keyed", 0), batch)], acks=-1, timeout_ms=30_000, order=order, caller=CALLER
        )
        return outcome.error

    without_key = Record(value=b"v" * (MAX_PREPARED_INLINE_BYTES + 1), timestamp_ms=1)
    errors = await asyncio.gather(send(0, without_key), send(1, Record(key=b"k", value=b"v", timestamp_ms=1)))
    assert [type(error) for error in errors] == [InvalidRecord, OutOfOrderSequence]


@pytest.mark.parametrize("ends", ["fails", "is cancelled", "succeeds"])
async def test_r11_a_batch_whose_leadership_ends_at_the_time_out_is_not_acknowledged(
    sh: StreamHouse, ends: str
) -> None:
    """A busy agent ends a leadership and looks at its time-outs in one round of its event loop. The futures of the
    batches have failed by then, and their callbacks have not run yet."""
    order = WriteOrder()
    call = sh.broker.produce.begin(
        [(("t", 0), build_batch([Record(value=b"v")], producer_id=7, producer_epoch=0, base_sequence=0))],
        acks=-1,
        timeout_ms=1000,
        order=order,
        caller=CALLER,
        on_done=lambda call: None,
    )
    (outcome,) = call.outcomes
    assert outcome.append is not None
    done = outcome.append.done
    if ends == "fails":
        done.set_exception(NotLeader("t/0", current_leader=None))
    elif ends == "is cancelled":
        done.cancel()
    else:
        done.set_result(None)
    call.overdue()
    assert call.done
    assert isinstance(outcome.error, NotAcknowledged) is (ends != "succeeds")
    await asyncio.sleep(0)  # the callback comes too late for the answer
    assert isinstance(outcome.error, NotAcknowledged) is (ends != "succeeds")
    assert order.has_refusals is (ends == "fails"), "what follows a lost batch must not be taken without it"


@pytest.mark.parametrize("place", [("t", 7), ("other", 0), ("keyed", 0)])
async def test_a_refused_batch_frees_the_requests_bytes_without_the_garbage_collector(
    sh: StreamHouse, place: Place
) -> None:
    """An error's traceback would hold them, and the collector looks at older objects rarely."""
    await sh.create_topic("keyed", 1, configs={"cleanup.policy": "compact"})
    received = bytearray(BATCH)

    def produce() -> None:
        (outcome,) = sh.broker.produce.begin(
            [(place, memoryview(received))],
            acks=-1,
            timeout_ms=1000,
            order=WriteOrder(),
            caller=CALLER,
            on_done=lambda call: None,
        ).outcomes
        assert isinstance(outcome.error, StreamHouseError)

    gc.disable()
    try:
        produce()
        received.extend(b"the next request")  # BufferError while a view of it exists
    finally:
        gc.enable()
