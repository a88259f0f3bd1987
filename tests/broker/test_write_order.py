"""What a connection remembers of refused batches (R21): broker/write_order.py without a log."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from streamhouse.broker import write_order
from streamhouse.broker.deadlines import Deadlines
from streamhouse.broker.produce import ProduceCall, ProduceStats
from streamhouse.broker.write_order import WriteOrder
from streamhouse.core.errors import BackPressureRejected, NotLeader
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.log.leased.writing import Append
from streamhouse.metadata.dedup import SEQUENCE_MODULUS
from streamhouse.wire.batch import read_header
from streamhouse.wire.records import Record, build_batch

ONE, TWO = (PartitionKey(TopicId(UUID(int=1)), partition) for partition in range(2))
NO_ROOM = BackPressureRejected("no room")


def batch(sequence: int, *, producer: int = 7, epoch: int = 0) -> bytes:
    record = Record(value=b"v", timestamp_ms=1)
    return build_batch([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


async def test_r21_followers_get_the_error_of_the_refused_batch() -> None:
    order = WriteOrder()
    order.refused(ONE, batch(3), NO_ROOM)
    for sequence in (4, 5, 900):
        assert order.before(ONE, batch(sequence)) is NO_ROOM
    assert order.before(ONE, batch(3)) is None, "itself, again"
    assert order.before(ONE, batch(2)) is None, "before it"
    assert order.before(TWO, batch(4)) is None
    assert order.before(ONE, batch(4, producer=8)) is None
    assert order.before(ONE, batch(0, epoch=1)) is None
    order.took(ONE, batch(3))
    assert not order.has_refusals


@pytest.mark.parametrize("client_waits", [True, False])
async def test_r21_followers_of_a_batch_that_lost_its_offsets_get_its_error(client_waits: bool) -> None:
    """It was appended, and its leadership ended before the commit. The next leader would tell followers of a gap."""
    order, ended = WriteOrder(), []
    call = ProduceCall([(ONE, batch(3))], 1, order, ended.append, Deadlines(), ProduceStats())
    (outcome,) = call.outcomes
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    header = read_header(batch(3))
    call.took(
        outcome,
        Append(base_offset=9, last_offset=9, log_append_time_ms=-1, duplicate=False, header=header, done=done),
    )
    if not client_waits:
        call.abandon()
    moved = NotLeader("t/0", current_leader=None)
    done.set_exception(moved)
    await asyncio.sleep(0)
    assert order.before(ONE, batch(4)) is moved
    assert order.before(ONE, batch(3)) is None
    assert outcome.error is (moved if client_waits else None)


async def test_a_remembered_error_keeps_no_request_in_memory() -> None:
    order = WriteOrder()
    try:
        raise BackPressureRejected("no room")
    except BackPressureRejected as error:
        raised = error
        order.refused(ONE, batch(3), error)
    assert raised.__traceback__ is None
    assert raised.__context__ is None
    assert order.before(ONE, batch(4)) is raised


async def test_r21_a_refused_follower_does_not_take_the_place_of_the_one_before_it() -> None:
    order = WriteOrder()
    order.refused(ONE, batch(0), NO_ROOM)
    order.refused(ONE, batch(1), NotLeader("t/0", current_leader=None))
    assert isinstance(order.before(ONE, batch(1)), BackPressureRejected)
    order.refused(ONE, batch(0), NotLeader("t/0", current_leader=None))
    assert isinstance(order.before(ONE, batch(1)), NotLeader)


async def test_r21_the_memory_lasts_until_the_last_refused_batch_is_taken() -> None:
    """The client had sent batch 3 behind batch 1, which is refused once more, before it heard of either."""
    order = WriteOrder()
    for sequence in (0, 1, 2):
        order.refused(ONE, batch(sequence), NO_ROOM)
    order.took(ONE, batch(0))
    assert isinstance(order.before(ONE, batch(3)), BackPressureRejected)
    assert order.before(ONE, batch(1)) is None
    order.refused(ONE, batch(1), NO_ROOM)
    order.took(ONE, batch(1))
    assert isinstance(order.before(ONE, batch(3)), BackPressureRejected)
    order.took(ONE, batch(2))
    assert not order.has_refusals


async def test_r21_a_repeat_of_what_was_taken_before_does_not_move_the_memory_back() -> None:
    order = WriteOrder()
    for sequence in (5, 6, 7):
        order.refused(ONE, batch(sequence), NO_ROOM)
    order.took(ONE, batch(3))
    assert order.before(ONE, batch(5)) is None
    assert isinstance(order.before(ONE, batch(6)), BackPressureRejected)


async def test_r21_followers_across_the_wrap_are_followers() -> None:
    order = WriteOrder()
    order.refused(ONE, batch(SEQUENCE_MODULUS - 1), NO_ROOM)
    assert isinstance(order.before(ONE, batch(0)), BackPressureRejected)


async def test_r21_only_batches_of_idempotent_producers_are_remembered() -> None:
    order = WriteOrder()
    order.refused(ONE, build_batch([Record(value=b"v", timestamp_ms=1)]), NO_ROOM)
    order.refused(ONE, b"junk", NO_ROOM)
    assert not order.has_refusals


async def test_r21_a_refusal_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_order, "REFUSAL_MEMORY_S", 0.0)
    order = WriteOrder()
    order.refused(ONE, batch(0), NO_ROOM)
    await asyncio.sleep(0)
    assert order.before(ONE, batch(1)) is None


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_order, "MAX_REMEMBERED_REFUSALS", 3)
    order = WriteOrder()
    for producer in range(10):
        order.refused(ONE, batch(0, producer=producer), NO_ROOM)
    assert len(order._refusals) == 3
    assert isinstance(order.before(ONE, batch(1, producer=9)), BackPressureRejected)
