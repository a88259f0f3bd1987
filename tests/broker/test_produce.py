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


async def send(sh: StreamHouse, order: WriteOrder, place: Place, batch: bytes) -> BaseException | None:
    """One batch with acks=all; its error."""
    (outcome,) = await sh.broker.produce.run([(place, batch)], acks=-1, timeout_ms=30_000, order=order, caller=CALLER)
    return outcome.error


def of_producer(sequence: int, *records: Record) -> bytes:
    """A batch of an idempotent producer."""
    return build_batch(list(records), producer_id=7, producer_epoch=0, base_sequence=sequence)


async def forgetful_topic(sh: StreamHouse, **configs: str) -> Place:
    """A new partition that may have forgotten the producer, and so takes any sequence of it."""
    configs = {name.replace("_", "."): value for name, value in configs.items()}
    topic = await sh.create_topic("forgetful", 1, configs=configs)
    partition = sh.agent.log.partition(topic.partition_keys()[0])
    assert partition is not None
    partition.producers.forgot(1_000)
    return "forgetful", 0


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
    order, place = WriteOrder(), ("new", 0)
    batches = [of_producer(sequence, Record(value=b"%d" % sequence, timestamp_ms=1)) for sequence in (0, 1)]
    assert isinstance(await send(sh, order, place, batches[0]), TopicNotFound)
    await sh.create_topic("new", 1)
    assert isinstance(await send(sh, order, place, batches[1]), TopicNotFound)
    assert [await send(sh, order, place, batch) for batch in batches] == [None, None]
    assert [record.value for record in await sh.read("new", 0, 0)] == [b"0", b"1"]


async def test_r21_what_follows_a_batch_that_is_too_large_is_not_taken_without_it(sh: StreamHouse) -> None:
    """The client splits the batch, and its parts would come too late."""
    order, place = WriteOrder(), await forgetful_topic(sh, max_message_bytes="1000")
    a, b, c, d = (Record(value=value, timestamp_ms=1) for value in (b"a" * 600, b"b" * 600, b"c", b"d"))
    assert isinstance(await send(sh, order, place, of_producer(0, a, b)), LimitExceeded)
    assert isinstance(await send(sh, order, place, of_producer(2, c)), OutOfOrderSequence)
    split = [of_producer(sequence, record) for sequence, record in enumerate((a, b, c, d))]
    assert [await send(sh, order, place, batch) for batch in split] == [None] * 4
    assert [record.value for record in await sh.read("forgetful", 0, 0)] == [a.value, b.value, b"c", b"d"]


async def test_r21_what_follows_a_damaged_batch_is_not_taken_before_it_comes_again(sh: StreamHouse) -> None:
    """The Java client sends a batch again that was damaged on its way."""
    order, place = WriteOrder(), await forgetful_topic(sh)
    batches = [of_producer(sequence, Record(value=b"%d" % sequence, timestamp_ms=1)) for sequence in (0, 1)]
    damaged = batches[0][:-1] + b"x"
    errors = [await send(sh, order, place, batch) for batch in (damaged, batches[1])]
    assert [type(error) for error in errors] == [CorruptBatch, OutOfOrderSequence]
    assert [await send(sh, order, place, batch) for batch in batches] == [None, None]
    assert [record.value for record in await sh.read("forgetful", 0, 0)] == [b"0", b"1"]


async def test_r21_what_follows_a_large_batch_that_is_refused_when_it_is_opened_is_not_taken_either(
    sh: StreamHouse,
) -> None:
    """A large batch is opened in a thread, and what follows it waits meanwhile."""
    order, place = WriteOrder(), await forgetful_topic(sh, cleanup_policy="compact")
    without_key = Record(value=b"v" * (MAX_PREPARED_INLINE_BYTES + 1), timestamp_ms=1)
    with_key = Record(key=b"k", value=b"v", timestamp_ms=1)
    errors = await asyncio.gather(
        send(sh, order, place, of_producer(0, without_key)), send(sh, order, place, of_producer(1, with_key))
    )
    assert [type(error) for error in errors] == [InvalidRecord, OutOfOrderSequence]


@pytest.mark.parametrize("ends", ["fails", "is cancelled", "succeeds"])
async def test_r11_a_batch_whose_leadership_ends_at_the_time_out_is_not_acknowledged(
    sh: StreamHouse, ends: str
) -> None:
    """A busy agent ends a leadership and looks at its time-outs in one round of its event loop. The futures of the
    batches have failed by then, and their callbacks have not run yet."""
    order = WriteOrder()
    call = sh.broker.produce.begin(
        [(("t", 0), of_producer(0, Record(value=b"v")))],
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
