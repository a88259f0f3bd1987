"""A simulated client process: the agents it knows, the leaders it believes in, and its connections.

A client starts with the addresses of one or two agents. It learns the rest from the metadata of the agents. Each agent
answers from its own view of the cluster, which may be old. The client asks again after an error that says it is wrong,
when a connection ends, and at intervals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from simulator.agent import SimAgent
from simulator.connections import SimConnection, Unanswered, Unreachable
from simulator.dice import Dice
from simulator.loop import Lane
from simulator.world import World
from streamhouse.core.errors import NotLeader, StreamHouseError
from streamhouse.core.ids import PartitionKey

T = TypeVar("T")

_METADATA_TIMEOUT_MS: Final = 500.0
_METADATA_MAX_AGE_MS: Final = 3000.0


class Client:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dice: Dice = world.dice.child(name)
        self.lane: Lane = world.loop.lane(name)
        by_name = {agent.name: agent for agent in world.agents}
        self._by_name = by_name
        self._bootstrap = sorted({self.dice.pick(list(by_name)) for _ in range(2)})
        self._known: list[str] = []
        self._leaders: dict[PartitionKey, str] = {}
        self._connections: dict[str, SimConnection] = {}
        self._learned_ms: float | None = None
        self.doubts = True
        """It has got an error which says that its metadata is wrong."""

    def leader(self, key: PartitionKey) -> SimAgent | None:
        """The leader, as far as it knows."""
        name = self._leaders.get(key)
        return None if name is None else self._by_name.get(name)

    def any_agent(self) -> SimAgent:
        return self._by_name[self.dice.pick(self._known or self._bootstrap)]

    def is_refused(self, key: PartitionKey, error: NotLeader) -> None:
        """An agent that does not lead has refused it. Some clients believe the leader that it names; all ask again."""
        self.doubts = True
        if error.current_leader is not None and self.dice.chance(0.5):
            self._leaders[key] = error.current_leader

    def connection(self, agent: SimAgent) -> SimConnection:
        found = self._connections.get(agent.name)
        if found is None or not found.is_open:
            found = self._connections[agent.name] = SimConnection(self.world, self.dice, agent)
        return found

    def hang_up(self) -> None:
        """The process, or its producer, ends: all its connections do."""
        for connection in self._connections.values():
            connection.close()

    async def ask(self, agent: SimAgent, request: Callable[[SimAgent], Awaitable[T]], *, timeout_ms: float) -> T:
        """Raises Unreachable, Unanswered, or what the agent raised."""
        return await self.connection(agent).ask(lambda server, _: request(server), timeout_ms=timeout_ms)

    async def refresh(self) -> None:
        """If there is a doubt, ask an agent for the leaders. Without an answer the doubt stays."""
        if not self.doubts and not self._is_old():
            return
        agent = self._by_name[self.dice.pick(sorted({*self._known, *self._bootstrap}))]
        # On a connection of its own: an agent that serves five slow produces must not delay the search for others.
        connection = SimConnection(self.world, self.dice, agent)
        try:
            told = await connection.ask(lambda server, _: server.describe(), timeout_ms=_METADATA_TIMEOUT_MS)
        except (Unanswered, Unreachable, StreamHouseError):
            self.doubts = True
            return
        finally:
            connection.close()
        self._known = list(told.agents) or self._known
        self._leaders = dict(told.leaders)
        self._learned_ms = self.world.now_ms()
        self.doubts = False

    def _is_old(self) -> bool:
        return self._learned_ms is None or self.world.now_ms() - self._learned_ms > _METADATA_MAX_AGE_MS
