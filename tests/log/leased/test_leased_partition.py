"""The state of one partition: its offsets, what readers see of it, what a flush takes, and who hears of its end."""

from __future__ import annotations

import asyncio

import pytest
from node import Guard, a_partition, take

from streamhouse.core.errors import BackPressureRejected, NotLeader
from streamhouse.log.leased.partition import Phase

ENDED = NotLeader("orders/0", current_leader=None, hint="the lease ran out")


def outcome(future: asyncio.Future[None]) -> str:
    if not future.done():
        return "waits"
    return "done" if future.exception() is None else "failed"


async def test_batches_leave_by_commits_in_the_order_in_which_they_were_taken() -> None:
    partition = a_partition(high_watermark=10)
    first, second, third = take(partition, "a", "b"), take(partition, "c"), take(partition, "d")
    assert (partition.next_offset, partition.high_watermark) == (14, 10)
    size = len(first.data)
    one = partition.freeze(size)
    two = partition.freeze(1 << 20)
    assert (one.base_offset, one.next_offset, two.base_offset, two.next_offset) == (10, 12, 12, 14)
    assert partition.uncommitted() == [first, second, third]
    partition.committed(one)
    assert (partition.high_watermark, partition.uncommitted()) == (12, [second, third])
    partition.committed(two)
    assert (partition.high_watermark, partition.pending_bytes, partition.uncommitted()) == (14, 0, [])


async def test_where_the_wal_is_the_durability_readers_see_what_is_synced_else_what_is_committed() -> None:
    for visible_when_synced, seen in ((True, [0]), (False, [])):
        partition = a_partition(visible_when_synced=visible_when_synced)
        first = take(partition, "a")
        take(partition, "b")
        assert (partition.visible_end, list(partition.buffered_from(0))) == (0, [])
        partition.synced(first)
        assert [each.base_offset for each in partition.buffered_from(0)] == seen
        partition.committed(partition.freeze(len(first.data)))
        assert partition.visible_end == 1
        assert list(partition.buffered_from(0)) == [], "what is committed is read from its object"


async def test_readers_get_the_batch_with_their_offset_and_all_visible_ones_after_it() -> None:
    partition = a_partition(visible_when_synced=True)
    batches = [take(partition, "a", "b"), take(partition, "c", "d"), take(partition, "e"), take(partition, "f")]
    partition.freeze(len(batches[0].data))
    for each in batches[:3]:
        partition.synced(each)
    assert list(partition.buffered_from(0)) == batches[:3]
    assert list(partition.buffered_from(1)) == batches[:3], "in the middle of the first"
    assert list(partition.buffered_from(4)) == batches[2:3]
    assert list(partition.buffered_from(5)) == []


async def test_a_sync_acknowledges_what_does_not_wait_for_its_commit() -> None:
    partition = a_partition()
    quick, safe = take(partition, "a"), take(partition, "b", waits_for_commit=True)
    futures = [each.done for each in (quick, safe) if each.done is not None]
    for each in (quick, safe):
        partition.synced(each)
    assert [outcome(each) for each in futures] == ["done", "waits"]
    partition.committed(partition.freeze(1 << 20))
    assert [outcome(each) for each in futures] == ["done", "done"]


async def test_a_flush_takes_at_least_one_batch_and_not_more_bytes_than_its_bound() -> None:
    partition = a_partition()
    batches = [take(partition, "x" * 100) for _ in range(5)]
    size = len(batches[0].data)
    partition.wanted = partition.urgent = True
    assert len(partition.freeze(1).batches) == 1
    chunk = partition.freeze(3 * size - 1)
    assert (len(chunk.batches), chunk.size_bytes, partition.pending_bytes) == (2, 2 * size, 2 * size)
    assert (partition.wanted, partition.urgent) == (True, True), "something is left"
    assert len(partition.freeze(2 * size).batches) == 2
    assert (partition.wanted, partition.urgent, partition.pending_bytes) == (False, False, 0)


async def test_a_waiting_reader_makes_what_is_pending_wanted() -> None:
    partition = a_partition()
    wanted = []
    waiting = partition.wait_visible(0)
    wanted.append(partition.wanted)  # there is nothing to flush
    take(partition, "a")
    wanted.append(partition.wanted)
    partition.committed(partition.freeze(1 << 20))
    assert outcome(waiting) == "done"
    take(partition, "b")
    wanted.append(partition.wanted)  # no reader waits
    again = partition.wait_visible(1)
    wanted.append(partition.wanted)
    assert wanted == [False, True, False, True]
    partition.forget_waiter(again)
    assert not partition.readers_waiting


async def test_a_waiter_is_woken_by_the_offset_that_it_waits_for() -> None:
    partition = a_partition()
    first, second = take(partition, "a"), take(partition, "b")
    commits = [partition.wait_committed(end) for end in (0, 1, 2)]
    reads = [partition.wait_visible(beyond) for beyond in (0, 1)]
    partition.committed(partition.freeze(len(first.data)))
    assert [outcome(each) for each in (*commits, *reads)] == ["done", "done", "waits", "done", "waits"]
    partition.committed(partition.freeze(len(second.data)))
    assert [outcome(each) for each in (*commits, *reads)] == ["done"] * 5


async def test_the_end_of_a_leadership_fails_all_that_wait_and_returns_what_is_not_committed() -> None:
    partition = a_partition()
    batches = [take(partition, value) for value in ("a", "b", "c")]
    futures = [each.done for each in batches if each.done is not None]
    partition.synced(batches[0])
    partition.freeze(len(batches[0].data))
    waits = [partition.wait_committed(3), partition.wait_visible(0)]
    assert partition.drop(ENDED) == batches
    assert [outcome(each) for each in futures] == ["done", "failed", "failed"]
    assert [each.refused for each in batches] == [False, True, True]
    assert [outcome(each) for each in waits] == ["failed", "failed"]
    assert (partition.phase, partition.pending_bytes, partition.uncommitted()) == (Phase.DROPPED, 0, [])
    assert outcome(partition.wait_committed(0)) == "failed", "also for those that come later"
    partition.synced(batches[1])
    assert (partition.synced_end, batches[1].acknowledged) == (1, False), "a sync that comes late changes nothing"


async def test_records_that_came_from_outside_move_every_end() -> None:
    partition = a_partition(high_watermark=5)
    waits = [partition.wait_committed(8), partition.wait_visible(7), partition.wait_visible(8)]
    partition.grew_outside(8)
    assert (partition.next_offset, partition.high_watermark, partition.synced_end) == (8, 8, 8)
    assert [outcome(each) for each in waits] == ["done", "done", "waits"]


@pytest.mark.parametrize(
    ("phase", "held", "error"),
    [
        (Phase.ADOPTING, True, BackPressureRejected),
        (Phase.ADOPTING, False, NotLeader),
        (Phase.OPEN, False, NotLeader),
        (Phase.CLOSING, True, NotLeader),
        (Phase.DROPPED, True, NotLeader),
    ],
)
def test_a_write_behind_a_barrier_may_be_sent_again_and_every_other_goes_to_the_new_leader(
    phase: Phase, held: bool, error: type[Exception]
) -> None:
    partition = a_partition()
    partition.phase = phase
    assert isinstance(partition.guard, Guard)
    partition.guard.held = held
    assert type(partition.not_open()) is error
