"""How simulated clients reach agents: connections with latency, answers that get lost, agents that die meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.testing.sim.agent import SimAgent
from streamhouse.testing.sim.dice import Dice
from streamhouse.testing.sim.loop import Lane
from streamhouse.testing.sim.network import settle
from streamhouse.testing.sim.world import World

T = TypeVar("T")

_LATENCY_MS: Final = (0.2, 3.0)
_BEHIND_MS: Final = 0.001


class Unreachable(Exception):
    """Nobody listens there: the request was surely not taken."""


class Unanswered(Exception):
    """Nobody knows what became of the request."""


class Client:
    """One client process. What it sends to one agent arrives in the order it was sent, as on one connection."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dice: Dice = world.dice.child(name)
        self.lane: Lane = world.loop.lane(name)
        self._arrivals_ms: dict[str, float] = {}

    def find_leader(self, key: PartitionKey) -> SimAgent:
        """Mostly right: clients look up leaders in metadata that may be old."""
        leaders = [agent for agent in self.world.agents if agent.leads(key)]
        if leaders and self.dice.chance(0.9):
            return self.dice.pick(leaders)
        return self.dice.pick(self.world.agents)

    async def ask(self, agent: SimAgent, request: Callable[[SimAgent], Awaitable[T]], *, timeout_ms: float) -> T:
        """Raises Unreachable, Unanswered, or what the agent raised."""
        world = self.world
        reply: asyncio.Future[Any] = world.loop.create_future()
        sent_ms = world.now_ms()
        arrival_ms = max(sent_ms + self.dice.uniform(*_LATENCY_MS), self._arrivals_ms.get(agent.name, 0.0) + _BEHIND_MS)
        self._arrivals_ms[agent.name] = arrival_ms
        world.loop.world.call_later((arrival_ms - sent_ms) / 1000, self._arrive, agent, request, reply)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer: T = await reply
                return answer
        except TimeoutError:
            raise Unanswered from None

    def _arrive(self, agent: SimAgent, request: Callable[[SimAgent], Awaitable[T]], reply: asyncio.Future[Any]) -> None:
        if agent.lane is None:
            self._answer(reply, None, Unreachable(agent.name))
        else:
            agent.lane.spawn(self._serve(agent, request, reply))

    async def _serve(
        self, agent: SimAgent, request: Callable[[SimAgent], Awaitable[T]], reply: asyncio.Future[Any]
    ) -> None:
        answer: T | None = None
        error: Exception | None = None
        try:
            answer = await request(agent)
        except StreamHouseError as raised:
            error = raised
        if not self.dice.chance(self.world.scenario.lost_answers):
            self._answer(reply, answer, error)

    def _answer(self, reply: asyncio.Future[Any], answer: object, error: Exception | None) -> None:
        delay_s = self.dice.uniform(*_LATENCY_MS) / 1000
        self.world.loop.world.call_later(delay_s, settle, reply, answer, error)
