"""Slots that change hands while requests come: who waits, for what, and which agent FindCoordinator names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from group_stage import GROUP, SLOT, Agent, Stage, code

from streamhouse.broker.groups.contract import MemberRef
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.nodes import Node
from streamhouse.core.errors import MetadataUnavailable

OTHER = Node(node_id=2, agent_id="other", host="there", port=2, rack="")


REQUESTS: dict[str, Callable[[Agent], Awaitable[object]]] = {
    "join": lambda agent: agent.join(),
    "sync": lambda agent: agent.sync("m", 1),
    "heartbeat": lambda agent: agent.groups.members.heartbeat(GROUP, member_id="m", instance_id=None, generation=1),
    "leave": lambda agent: agent.groups.members.leave(GROUP, [MemberRef(member_id="m")]),
    "consumer heartbeat": lambda agent: agent.consumer("m", 0),
    "commit": lambda agent: agent.commit_all([]),
    "fetch": lambda agent: agent.groups.offsets.fetch(GROUP, keys=None),
    "delete offsets": lambda agent: agent.groups.offsets.delete(GROUP, {}),
    "describe": lambda agent: agent.groups.inspection.describe_classic(GROUP),
    "describe consumer": lambda agent: agent.groups.inspection.describe_consumer(GROUP),
    "delete": lambda agent: agent.groups.inspection.delete(GROUP),
}


async def begun(call: Awaitable[int]) -> asyncio.Task[int]:
    """It has had every chance to be answered."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.02)
    return task


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_a_request_waits_for_a_slot_that_is_about_to_be_served_here(
    stage: Stage, request_: Callable[[Agent], Awaitable[object]]
) -> None:
    agent = stage.first
    agent.taking_over.add(SLOT)
    task = await begun(code(request_(agent)))
    assert not task.done()
    agent.opening.add(SLOT)
    agent.taking_over.clear()
    await asyncio.sleep(0.02)
    assert not task.done()
    await agent.lead()
    agent.opening.clear()
    agent.view.announce()
    assert await task not in (14, 15, 16)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_a_request_waits_at_the_old_coordinator_until_another_agent_holds_the_slot(
    stage: Stage, request_: Callable[[Agent], Awaitable[object]]
) -> None:
    agent = stage.first
    await agent.lead()
    agent.view.leaving.add(SLOT)
    await agent.groups.losing(SLOT)
    task = await begun(code(request_(agent)))
    assert not task.done()
    agent.view.leaving.clear()
    agent.view.announce()
    served_anywhere = request_ is REQUESTS["fetch"]
    assert await task == (0 if served_anywhere else 16)


class TestImpatient:
    @pytest.fixture
    def group_options(self) -> GroupOptions:
        return GroupOptions(hand_over_wait_ms=1)

    async def test_a_hand_over_that_does_not_end_is_not_waited_for_without_end(self, stage: Stage) -> None:
        stage.first.taking_over.add(SLOT)
        assert await code(stage.first.join()) == 16
        stage.first.view.leaving.add(SLOT)
        assert await code(stage.first.groups.offsets.fetch(GROUP, keys=None)) == 0


async def test_what_is_served_here_is_named_without_a_look_at_the_store(stage: Stage) -> None:
    agent = stage.first
    await agent.lead()
    assert await agent.groups.places.find([SLOT]) == {SLOT: agent.view.me}
    assert agent.view.looks == 0


async def test_the_store_knows_better_than_memory_which_agent_coordinates(stage: Stage) -> None:
    agent = stage.first
    agent.view.holders[SLOT] = Node(node_id=3, agent_id="gone", host="gone", port=3, rack="")
    agent.view.in_store[SLOT] = OTHER
    assert await agent.groups.places.find([SLOT]) == {SLOT: OTHER}


async def test_without_the_store_memory_has_to_do(stage: Stage) -> None:
    agent = stage.first
    agent.view.holders[SLOT] = OTHER

    async def away() -> None:
        raise MetadataUnavailable("away")

    agent.view.look_at_slots = away  # type: ignore[method-assign]
    assert await agent.groups.places.find([SLOT]) == {SLOT: OTHER}


async def test_a_store_that_does_not_answer_does_not_hold_up_the_answer(stage: Stage) -> None:
    agent = stage.first
    agent.view.holders[SLOT] = OTHER

    async def silent() -> None:
        await asyncio.Event().wait()

    agent.view.look_at_slots = silent  # type: ignore[method-assign]
    async with asyncio.timeout(60):
        assert await agent.groups.places.find([SLOT]) == {SLOT: OTHER}


async def test_the_old_coordinator_names_the_new_one_when_the_hand_over_is_done(stage: Stage) -> None:
    agent = stage.first
    await agent.lead()
    agent.view.leaving.add(SLOT)
    await agent.groups.losing(SLOT)
    finding = asyncio.create_task(agent.groups.places.find([SLOT]))
    await asyncio.sleep(0.02)
    assert not finding.done()
    agent.view.leaving.clear()
    agent.view.holders[SLOT] = OTHER
    agent.view.announce()
    assert await finding == {SLOT: OTHER}


async def test_a_slot_that_does_not_open_is_still_this_agents(stage: Stage) -> None:
    stage.first.opening.add(SLOT)
    assert await stage.first.groups.places.find([SLOT]) == {SLOT: stage.first.view.me}


async def test_r20_an_agent_whose_lease_may_have_run_out_does_not_name_itself(stage: Stage) -> None:
    agent = stage.first
    await agent.lead()
    assert agent.view.me is not None
    agent.view.in_store[SLOT] = agent.view.me
    agent.guard.held = False
    assert await agent.groups.places.find([SLOT]) == {SLOT: None}
