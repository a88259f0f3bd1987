"""Slots that are gained, handed over, lost and fenced, and what their users are told."""

from __future__ import annotations

import asyncio

import pytest
from slot_stage import SLOT, User, lease

from slot_view import Guard, SlotView
from streamhouse.broker.slots import slots as slots_module
from streamhouse.broker.slots.slots import Slots
from streamhouse.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    MetadataUnavailable,
    NotCoordinator,
    StaleEpoch,
)
from streamhouse.metadata.contract import SlotKey


class Case:
    def __init__(self, **options: int) -> None:
        self.view = SlotView()
        self.guard = Guard()
        self.dropped: list[SlotKey] = []
        self.opening: set[SlotKey] = set()
        self.slots = Slots(
            view=self.view,
            on_dropped=lambda slot, reason: self.dropped.append(slot),
            opening=self.opening.__contains__,
            **options,
        )
        self.users = [User(), User()]
        for user in self.users:
            self.slots.add_user(user)

    async def gain(self, epoch: int = 1) -> None:
        await self.slots.gained(lease(epoch), guard=self.guard)

    def calls(self) -> list[tuple[str, int]]:
        first, second = (user.calls for user in self.users)
        assert first == second
        return first


async def test_each_user_loads_a_slot_that_is_gained_and_unloads_it_when_it_is_lost() -> None:
    case = Case()
    with pytest.raises(NotCoordinator):
        case.slots.served(SLOT)
    await case.gain()
    assert case.slots.served(SLOT).fence.epoch == 1
    assert case.slots.serves(SLOT)
    case.slots.lost(SLOT)
    case.slots.lost(SLOT)
    assert case.calls() == [("load", 1), ("unload", 1)]
    assert not case.slots.serves(SLOT)


async def test_while_a_slot_is_loading_requests_are_told_to_wait() -> None:
    case = Case()
    case.users[0].may_load.clear()
    gaining = asyncio.create_task(case.gain())
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorLoading):
        case.slots.served(SLOT)
    case.users[0].may_load.set()
    await gaining
    case.slots.served(SLOT)


async def test_a_slot_that_cannot_be_loaded_is_not_held() -> None:
    case = Case()
    case.users[1].error = MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await case.gain()
    assert case.calls() == [("load", 1), ("unload", 1)]
    assert case.slots.all() == []


async def test_a_slot_that_is_gained_again_starts_anew() -> None:
    case = Case()
    await case.gain(1)
    old = case.slots.served(SLOT)
    await case.gain(2)
    assert case.calls() == [("load", 1), ("unload", 1), ("load", 2)]
    assert old.gone
    case.slots.drop(old, "late")
    assert case.slots.serves(SLOT)
    assert case.dropped == []


async def test_a_hand_over_lets_users_finish_before_they_unload() -> None:
    case = Case()
    await case.gain()
    await case.slots.losing(SLOT)
    await case.slots.losing(SLOT)
    assert case.calls() == [("load", 1), ("hand over", 1), ("unload", 1)]
    with pytest.raises(NotCoordinator):
        case.slots.served(SLOT)


async def test_r20_no_answer_once_the_lease_may_have_ended() -> None:
    case = Case()
    await case.gain()
    case.guard.held = False
    assert not case.slots.serves(SLOT)
    with pytest.raises(NotCoordinator):
        case.slots.served(SLOT)


async def test_r20_a_lease_that_ends_during_a_call_ends_its_answer() -> None:
    case = Case()
    await case.gain()

    async def call() -> int:
        case.guard.held = False
        return 1

    with pytest.raises(NotCoordinator):
        await case.slots.fenced(case.slots.served(SLOT), call())


async def test_r1_a_slot_that_the_store_fences_is_dropped_at_once() -> None:
    case = Case()
    await case.gain()

    async def stale() -> None:
        raise StaleEpoch("another agent holds slot 7", expected=1, actual=2)

    with pytest.raises(NotCoordinator, match="another agent"):
        await case.slots.fenced(case.slots.served(SLOT), stale())
    assert case.dropped == [SLOT]
    assert case.calls() == [("load", 1), ("unload", 1)]


async def test_a_store_that_is_slow_or_away_makes_the_client_try_again() -> None:
    case = Case(store_timeout_ms=1)
    go_on = asyncio.Event()
    finished = asyncio.Event()

    async def slow() -> None:
        await go_on.wait()
        finished.set()

    with pytest.raises(CoordinatorNotAvailable, match="did not answer"):
        await case.slots.from_store(slow())
    go_on.set()  # the call itself goes on: a commit that was sent is not recalled
    async with asyncio.timeout(60):
        await finished.wait()

    async def away() -> None:
        raise MetadataUnavailable("away")

    with pytest.raises(CoordinatorNotAvailable, match="away"):
        await case.slots.from_store(away())
    await case.slots.close()


async def test_calls_to_the_store_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "MAX_STORE_CALLS", 1)
    case = Case()
    go_on = asyncio.Event()

    async def slow() -> None:
        await go_on.wait()

    first = asyncio.create_task(case.slots.from_store(slow()))
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorNotAvailable):
        await case.slots.from_store(slow())
    go_on.set()
    await first


async def test_a_request_waits_for_a_slot_that_is_about_to_be_served() -> None:
    case = Case()
    case.opening.add(SLOT)
    waiting = asyncio.create_task(case.slots.ready(SLOT))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await case.gain()
    case.view.announce()
    await waiting
    case.slots.served(SLOT)


async def test_closing_ends_all_slots_and_calls() -> None:
    case = Case()
    await case.gain()
    never = asyncio.create_task(case.slots.from_store(asyncio.Event().wait()))
    await asyncio.sleep(0)
    await case.slots.close()
    assert case.slots.all() == []
    with pytest.raises(asyncio.CancelledError):
        await never
