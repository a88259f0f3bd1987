"""Many small disasters at once, from a seed: agents that come, die, leave, are cut off and lose replies.

Whatever happens, no two agents hold a valid guard on one key, every owner hears of each end once, and the fleet finds
its balance when the problem is over.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from fleet import Fleet, FleetAgent, fleet_story

LOSABLE = (
    "acquire_leases",
    "renew_leases",
    "release_leases",
    "initiate_transfer",
    "accept_transfer",
    "reject_transfer",
    "complete_transfer",
    "list_transfers",
    "list_leases",
    "list_agents",
    "heartbeat",
)


class Chaos:
    def __init__(self, fleet: Fleet, seed: int) -> None:
        self._fleet = fleet
        self._random = random.Random(seed)
        self._names = iter(range(1000))
        self._topics = iter(range(1000))
        self._acts = (
            (self._arrive, 4),
            (self._leave, 1),
            (self._kill, 1),
            (self._cut, 3),
            (self._lose, 4),
            (self._slow, 2),
            (self._pause, 1),
            (self._topic, 2),
        )

    async def run(self, steps: int) -> None:
        await self._fleet.topic("t", partitions=self._random.randint(1, 9))
        for _ in range(2):
            await self._arrive()
        for _ in range(steps):
            await self._step()
            await asyncio.sleep(self._random.expovariate(0.5))
        for agent in self._running():
            agent.link.down = agent.link.deaf = False
            agent.link.latency_s = 0.001
            agent.owner.cannot_flush.clear()
            agent.owner.cannot_open.clear()
            agent.owner.flush_s = agent.owner.gained_s = 0.0
        if not self._running():
            await self._arrive()
        await self._fleet.settled()

    async def _step(self) -> None:
        (act,) = self._random.choices(*zip(*self._acts, strict=True))
        await act()

    def _running(self) -> list[FleetAgent]:
        return [agent for agent in self._fleet.agents if agent.running]

    def _some(self) -> FleetAgent | None:
        return self._random.choice(self._running() or [None])

    async def _arrive(self) -> None:
        if len(self._running()) < 5:
            (agent,) = await self._fleet.start(f"agent-{next(self._names)}")
            agent.owner.flush_s = self._random.choice([0.0, 0.05, 8.0])
            agent.owner.gained_s = self._random.choice([0.0, 0.05, 2.0])

    async def _leave(self) -> None:
        agent = self._some()
        if agent is not None:
            try:
                async with asyncio.timeout(20):
                    await agent.member.stop()
            except TimeoutError:
                pass

    async def _kill(self) -> None:
        agent = self._some()
        if agent is not None:
            await agent.kill()

    async def _cut(self) -> None:
        agent = self._some()
        if agent is not None:
            agent.link.down = not agent.link.down and self._random.random() < 0.7
            agent.link.deaf = self._random.random() < 0.3

    async def _lose(self) -> None:
        agent = self._some()
        if agent is not None:
            for method in self._random.sample(LOSABLE, 3):
                (agent.link.fail if self._random.random() < 0.5 else agent.link.lose_reply)(method, times=2)

    async def _slow(self) -> None:
        agent = self._some()
        if agent is not None:
            agent.link.latency_s = self._random.choice([0.001, 0.2, 0.9, 3.0])
            keys = list(agent.owner.open)
            if keys:
                agent.owner.cannot_flush.add(self._random.choice(keys))
                agent.owner.cannot_open[self._random.choice(keys)] += 1

    async def _pause(self) -> None:
        self._fleet.clock.pause(self._random.randint(500, 9_000))
        self._fleet.look()

    async def _topic(self) -> None:
        topics = await self._fleet.store.list_topics()
        if len(topics) > 3:
            await self._fleet.store.delete_topic(self._random.choice(topics).topic_id)
        else:
            await self._fleet.topic(f"t{next(self._topics)}", partitions=self._random.randint(1, 6))


@pytest.mark.parametrize("seed", range(4))
def test_s1_20_one_leader_whatever_happens(seed: int) -> None:
    async def story(fleet: Fleet) -> None:
        await Chaos(fleet, seed).run(steps=15)

    fleet_story(story)
