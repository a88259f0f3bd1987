"""Batches that wait for their commit: who hears of their end, and what the commit lists of them."""

from __future__ import annotations

import asyncio
import gc

from node import batch, pending

from streamhouse.core.errors import NotLeader
from streamhouse.log.leased.pending import PendingBatch, Runs, Waiters, fail, run_of
from streamhouse.wire.batch import BatchHeader, read_header, stamp_log_append_time

ENDED = NotLeader("orders/0", current_leader=None)


def waited_for() -> tuple[PendingBatch, asyncio.Future[None]]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return pending(batch("a"), done=done), done


def header(*values: str, producer: tuple[int, int, int] | None = None) -> BatchHeader:
    return read_header(batch(*values, producer=producer))


async def test_r9_a_repeat_is_answered_with_its_original_and_at_once_after_it() -> None:
    waiting, done = waited_for()
    early = waiting.repeat()
    assert (done.done(), early.done()) == (False, False)
    waiting.acknowledge()
    assert (done.result(), early.result(), waiting.repeat().result()) == (None, None, None)


async def test_r9_a_client_that_gave_up_takes_nothing_away_from_the_others() -> None:
    waiting, done = waited_for()
    first, second = waiting.repeat(), waiting.repeat()
    done.cancel()
    first.cancel()
    waiting.acknowledge()
    assert second.done()
    assert not second.cancelled()


async def test_a_client_that_repeats_and_gives_up_again_and_again_takes_no_memory() -> None:
    waiting, _ = waited_for()
    for _ in range(100):
        waiting.repeat().cancel()
    assert len(waiting.repeats) <= 1


async def test_what_was_acknowledged_does_not_fail_afterwards() -> None:
    waiting, done = waited_for()
    waiting.acknowledge()
    waiting.fail(ENDED)
    assert done.exception() is None
    assert not waiting.refused


async def test_r4_a_batch_counts_as_refused_only_if_its_client_was_told() -> None:
    waiting, done = waited_for()
    again = waiting.repeat()
    waiting.fail(ENDED)
    assert (done.exception(), again.exception(), waiting.refused) == (ENDED, ENDED, True)
    replayed = pending(batch("a"))
    replayed.fail(ENDED)
    assert not replayed.refused, "no client waits for what is replayed"


async def test_an_error_that_no_client_fetches_is_not_logged_by_asyncio() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    fail(future, ENDED)
    fail(future, ENDED)
    del future
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


async def test_waiters_are_woken_up_to_an_offset_and_all_of_them_fail() -> None:
    waiters = Waiters()
    futures: list[asyncio.Future[None]] = [asyncio.get_running_loop().create_future() for _ in range(4)]
    waiters.waiting.update(zip(futures, (5, 3, 4, 3), strict=True))
    futures[3].cancel()
    waiters.wake(4)
    assert [each.done() for each in futures] == [False, True, True, True]
    assert list(waiters.waiting) == futures[:1]
    waiters.fail(ENDED)
    assert (futures[0].exception(), waiters.waiting) == (ENDED, {})


def test_batches_of_producers_are_listed_one_by_one_and_the_others_between_them_as_a_sum() -> None:
    plain = header("a", "b")
    mine = header("c", producer=(9, 1, 4))
    runs = Runs()
    for each in (plain, plain, mine, mine, plain):
        runs.add(each)
    listed = runs.finish()
    assert [each.record_count for each in listed] == [4, 1, 1, 2]
    assert [each.byte_length for each in listed] == [2 * plain.size, mine.size, mine.size, plain.size]
    assert [(each.producer_id, each.producer_epoch, each.base_sequence) for each in listed[1:3]] == [(9, 1, 4)] * 2
    assert Runs().finish() == ()


def test_the_times_of_a_sum_are_those_of_its_own_batches() -> None:
    late = bytearray(batch("a"))
    stamp_log_append_time(late, 0, timestamp_ms=9_000)
    runs = Runs()
    for each in (read_header(late), header("b", "c"), header("d", producer=(9, 0, 0)), header("e")):
        runs.add(each)
    listed = runs.finish()
    assert [(each.min_timestamp_ms, each.max_timestamp_ms) for each in listed] == [
        (1_000, 9_000),
        (1_000, 1_000),
        (1_000, 1_000),
    ]
    assert run_of(read_header(late)).min_timestamp_ms == 9_000, "a stamped batch has no other time"
