"""Which agent FindCoordinator names, and when a request waits for a slot that changes hands."""

from __future__ import annotations

import asyncio

import pytest
from slot_stage import OTHER, SLOT

from slot_view import ME, SlotView
from streamhouse.broker.nodes import Node
from streamhouse.broker.slots.coordinators import Coordinators
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.metadata.contract import SlotKey


class Case:
    def __init__(self) -> None:
        self.view = SlotView()
        self.served: set[SlotKey] = set()
        self.opening: set[SlotKey] = set()
        self.taking_over: set[SlotKey] = set()
        self.coordinators = Coordinators(
            view=self.view,
            served=self.served.__contains__,
            opening=self.opening.__contains__,
            taking_over=self.taking_over.__contains__,
        )

    async def find(self) -> Node | None:
        async with asyncio.timeout(60):
            return (await self.coordinators.find([SLOT]))[SLOT]


@pytest.fixture
async def case() -> Case:
    return Case()


async def test_a_slot_that_is_served_here_needs_no_read_of_the_store(case: Case) -> None:
    case.served.add(SLOT)
    assert await case.find() == ME
    assert case.view.looks == 0


async def test_the_store_corrects_what_this_agent_remembers(case: Case) -> None:
    case.view.holders[SLOT] = Node(node_id=3, agent_id="gone", host="gone", port=3, rack="")
    case.view.in_store[SLOT] = OTHER
    assert await case.find() == OTHER


async def test_without_the_store_the_answer_is_what_this_agent_remembers(case: Case) -> None:
    case.view.holders[SLOT] = OTHER

    async def away() -> None:
        raise MetadataUnavailable("away")

    case.view.look_at_slots = away  # type: ignore[method-assign]
    assert await case.find() == OTHER


async def test_a_store_that_does_not_answer_does_not_delay_the_answer_without_end(case: Case) -> None:
    case.view.holders[SLOT] = OTHER

    async def silent() -> None:
        await asyncio.Event().wait()

    case.view.look_at_slots = silent  # type: ignore[method-assign]
    assert await case.find() == OTHER


async def test_the_old_coordinator_names_the_new_one_when_the_hand_over_is_done(case: Case) -> None:
    case.view.leaving.add(SLOT)
    finding = asyncio.create_task(case.find())
    await asyncio.sleep(0.01)
    assert not finding.done()
    case.view.leaving.clear()
    case.view.holders[SLOT] = OTHER
    case.view.announce()
    assert await finding == OTHER


async def test_an_agent_that_is_opening_a_slot_names_itself(case: Case) -> None:
    case.opening.add(SLOT)
    assert await case.find() == ME


async def test_r20_an_agent_whose_lease_may_have_ended_does_not_name_itself(case: Case) -> None:
    case.view.in_store[SLOT] = ME
    assert await case.find() is None


@pytest.mark.parametrize("change", ["opening", "taking over", "leaving"])
async def test_a_request_waits_until_the_slot_has_changed_hands(case: Case, change: str) -> None:
    slots = {"opening": case.opening, "taking over": case.taking_over, "leaving": case.view.leaving}[change]
    slots.add(SLOT)
    assert case.coordinators.is_changing(SLOT)
    waiting = asyncio.create_task(case.coordinators.wait_settled(SLOT, 60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    slots.clear()
    case.view.announce()
    await waiting
    assert not case.coordinators.is_changing(SLOT)


async def test_a_slot_that_is_served_here_does_not_change_hands(case: Case) -> None:
    case.opening.add(SLOT)
    case.served.add(SLOT)
    assert not case.coordinators.is_changing(SLOT)


async def test_the_wait_ends_after_its_time(case: Case) -> None:
    case.opening.add(SLOT)
    await case.coordinators.wait_settled(SLOT, 0.001)
    assert case.coordinators.is_changing(SLOT)
