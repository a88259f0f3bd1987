"""The memory for batches that are not committed: what counts, who is refused, and who is woken when there is room."""

from __future__ import annotations

import asyncio

from node import settle

from streamhouse.log.leased.budget import WriteBudget, cost_bytes


class Urged:
    """Counts how often a flush was asked for."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


def test_a_batch_costs_more_than_its_bytes_so_that_many_tiny_ones_stay_in_the_budget() -> None:
    budget = WriteBudget(10_000, urge=Urged())
    taken = 0
    while budget.has_room(1):
        budget.take(1)
        taken += 1
    assert taken < 20, "not ten thousand"
    assert budget.used_bytes <= 10_000
    budget.free(taken, taken)
    assert budget.used_bytes == 0


def test_a_flush_is_asked_for_only_when_there_is_no_room() -> None:
    urged = Urged()
    budget = WriteBudget(cost_bytes(100), urge=urged)
    assert budget.has_room(100)
    assert urged.times == 0
    budget.take(100)
    assert not budget.has_room(0)
    assert urged.times == 1


def test_what_an_ended_leadership_left_takes_room_too() -> None:
    budget = WriteBudget(2 * cost_bytes(100), urge=Urged())
    budget.held_bytes = cost_bytes(100)
    assert budget.has_room(100)
    assert not budget.has_room(101)


def test_a_batch_larger_than_the_whole_budget_can_never_be_taken() -> None:
    budget = WriteBudget(cost_bytes(100), urge=Urged())
    budget.take(100)
    assert budget.can_ever_take(100), "once the other is committed"
    assert not budget.can_ever_take(101)


async def test_a_batch_that_must_get_in_waits_for_the_others_and_is_taken_alone_whatever_its_size() -> None:
    urged = Urged()
    budget = WriteBudget(cost_bytes(100), urge=urged)
    await budget.wait_for_room(1_000_000)
    budget.take(60)
    waiting = asyncio.create_task(budget.wait_for_room(1_000_000))
    await settle()
    assert not waiting.done()
    assert urged.times == 1
    budget.free(60, 1)
    await settle()
    assert waiting.done()


async def test_a_waiter_that_still_has_no_room_waits_on() -> None:
    budget = WriteBudget(cost_bytes(100), urge=Urged())
    budget.take(30)
    budget.take(30)
    waiting = asyncio.create_task(budget.wait_for_room(100))
    await settle()
    budget.free(30, 1)
    await settle()
    assert not waiting.done()
    budget.free(30, 1)
    await settle()
    assert waiting.done()


async def test_all_that_wait_are_woken_at_once_and_later_ones_wait_for_the_next_time() -> None:
    budget = WriteBudget(1, urge=Urged())
    waiting = [asyncio.create_task(budget.wait_freed()) for _ in range(3)]
    await settle()
    budget.look_again()
    late = asyncio.create_task(budget.wait_freed())
    await settle()
    assert [each.done() for each in (*waiting, late)] == [True, True, True, False]
    budget.look_again()
    await late


async def test_what_stops_writes_leaves_no_room_and_wakes_them_when_it_is_over() -> None:
    urged = Urged()
    budget = WriteBudget(cost_bytes(100), urge=urged)
    budget.stop_for("retention")
    assert not budget.has_room(1)
    assert urged.times == 0, "a flush would make no room"
    assert budget.stopped_by == "retention"
    waiting = asyncio.create_task(budget.wait_freed())
    await settle()
    assert not waiting.done()
    budget.stop_for("")
    await waiting
    assert budget.has_room(1)
