"""Group requests that come while their slot changes hands: which of them wait, and for what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from group_stage import CALLER, GROUP, SLOT, Agent, Stage, code

from streamhouse.broker.groups.contract import MemberRef

REQUESTS: dict[str, Callable[[Agent], Awaitable[object]]] = {
    "join": lambda agent: agent.join(),
    "sync": lambda agent: agent.sync("m", 1),
    "heartbeat": lambda agent: agent.groups.members.heartbeat(
        GROUP, member_id="m", instance_id=None, generation=1, caller=CALLER
    ),
    "leave": lambda agent: agent.groups.members.leave(GROUP, [MemberRef(member_id="m")], caller=CALLER),
    "consumer heartbeat": lambda agent: agent.consumer("m", 0),
    "commit": lambda agent: agent.commit_all([]),
    "fetch": lambda agent: agent.groups.offsets.fetch(GROUP, keys=None, caller=CALLER),
    "delete offsets": lambda agent: agent.groups.offsets.delete(GROUP, {}, caller=CALLER),
    "describe": lambda agent: agent.groups.inspection.describe_classic(GROUP, caller=CALLER),
    "describe consumer": lambda agent: agent.groups.inspection.describe_consumer(GROUP, caller=CALLER),
    "delete": lambda agent: agent.groups.inspection.delete(GROUP, caller=CALLER),
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
    await agent.groups.slots.losing(SLOT)
    task = await begun(code(request_(agent)))
    assert not task.done()
    agent.view.leaving.clear()
    agent.view.announce()
    served_anywhere = request_ is REQUESTS["fetch"]
    assert await task == (0 if served_anywhere else 16)


class TestShortWait:
    @pytest.fixture
    def slot_options(self) -> dict[str, int]:
        return {"hand_over_wait_ms": 1}

    async def test_a_hand_over_that_does_not_end_is_not_waited_for_without_end(self, stage: Stage) -> None:
        stage.first.taking_over.add(SLOT)
        assert await code(stage.first.join()) == 16
        stage.first.view.leaving.add(SLOT)
        assert await code(stage.first.groups.offsets.fetch(GROUP, keys=None, caller=CALLER)) == 0
