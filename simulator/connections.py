"""A simulated connection: requests arrive in the order they were sent, answers come in that order too.

What may happen to one, as on TCP:

    refused     no process listens there, or the one it belonged to is gone
    reset       the process died, or something in between cut it: everything that waits fails at once
    silence     a machine without power, a forgotten address translation: nothing more arrives, in either direction
    stalled     a request, and all behind it, arrive late, perhaps long after the client has gone to a new connection

A client that waited long enough closes its connection and opens a new one. What had arrived before, or was on its way,
is served all the same: the server learns of the end only after the last byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from simulator.agent import ServerSide, SimAgent
from simulator.dice import Dice
from simulator.network import settle
from simulator.world import World
from streamhouse.core.errors import StreamHouseError

T = TypeVar("T")

_LATENCY_MS: Final = (0.2, 3.0)
_BEHIND_MS: Final = 0.001
_LONGEST_STALL_MS: Final = 2000.0
_CLOSE_NOTICED_MS: Final = 1.0


class Unreachable(Exception):
    """No process listens there: the request was surely not taken."""


class Unanswered(Exception):
    """The connection ended before the answer: the outcome of the request is unknown."""


class SimConnection:
    """A connection from one client to one process of an agent."""

    def __init__(self, world: World, dice: Dice, agent: SimAgent) -> None:
        self.agent = agent
        self.is_open = True
        self._world = world
        self._dice = dice
        self._process = agent.lane
        self._silent = False
        self._refused = False
        """Nothing listened when a request arrived. Nothing behind it is served, though a process may have started."""
        self._answers_end = False
        """An answer was lost. The answers behind it on this connection do not arrive either."""
        self._arrives_ms = 0.0
        self._answered_ms = 0.0
        self._last: asyncio.Future[None] | None = None
        """Done when the answer of the last request was given."""
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self.server = ServerSide()
        agent.connections.append(self)

    async def ask(self, request: Callable[[SimAgent, SimConnection], Awaitable[T]], *, timeout_ms: float) -> T:
        """Raises Unreachable, Unanswered, or what the agent raised. A time-out closes the connection."""
        if not self.is_open:
            raise Unreachable(self.agent.name)
        world, dice = self._world, self._dice
        reply: asyncio.Future[Any] = world.loop.create_future()
        self._waiting[reply] = None
        now_ms = world.now_ms()
        delay_ms = dice.uniform(*_LATENCY_MS)
        if world.scenario.stalls and not world.over and dice.chance(world.scenario.stalls):
            delay_ms += dice.uniform(0, _LONGEST_STALL_MS)
        self._arrives_ms = max(now_ms + delay_ms, self._arrives_ms + _BEHIND_MS)
        world.loop.world.call_later((self._arrives_ms - now_ms) / 1000, self._arrive, request, reply)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer: T = await reply
                return answer
        except TimeoutError:
            self.close()
            raise Unanswered(f"{self.agent.name} does not answer") from None
        finally:
            self._waiting.pop(reply, None)

    def close(self) -> None:
        """The client hangs up. All that waits here is without an answer."""
        if not self.is_open:
            return
        self.is_open = False
        waiting, self._waiting = list(self._waiting), {}
        for reply in waiting:
            if not reply.done():
                reply.set_exception(Unanswered(f"the connection to {self.agent.name} is closed"))
        delay_ms = max(self._arrives_ms - self._world.now_ms(), 0) + _CLOSE_NOTICED_MS
        self._world.loop.world.call_later(delay_ms / 1000, self._close_arrives)

    def breaks(self, *, silently: bool) -> None:
        """The process is gone, or the way to it."""
        if silently:
            self._silent = True
        else:
            self._world.loop.world.call_later(self._dice.uniform(*_LATENCY_MS) / 1000, self.close)

    def _close_arrives(self) -> None:
        if self in self.agent.connections:
            self.agent.connections.remove(self)
        if self._is_served():
            self.agent.hung_up(self.server)

    def _is_served(self) -> bool:
        return self._process is not None and self.agent.lane is self._process and self.agent.parts is not None

    def _arrive(self, request: Callable[[SimAgent, SimConnection], Awaitable[T]], reply: asyncio.Future[Any]) -> None:
        if self._silent:
            return
        if self._refused or not self._is_served():
            self._refused = True
            settle(reply, None, Unreachable(self.agent.name))
            self.breaks(silently=False)
            return
        assert self._process is not None
        before, self._last = self._last, self._world.loop.create_future()
        self._process.spawn(self._serve(request, reply, before, self._last))

    async def _serve(
        self,
        request: Callable[[SimAgent, SimConnection], Awaitable[T]],
        reply: asyncio.Future[Any],
        before: asyncio.Future[None] | None,
        mine: asyncio.Future[None],
    ) -> None:
        answer: T | None = None
        error: Exception | None = None
        try:
            answer = await request(self.agent, self)
        except StreamHouseError as raised:
            error = raised
        if before is not None and not before.done():
            await asyncio.wait([before])
        mine.set_result(None)
        if self._silent or self._answers_end:
            return
        is_lost = self._dice.chance(self._world.scenario.lost_answers)
        if is_lost and not self._world.over:  # each one costs a time-out; in the end a client must get its answers
            self._answers_end = True
            self.breaks(silently=self._dice.chance(0.5))
            return
        now_ms = self._world.now_ms()
        self._answered_ms = max(now_ms + self._dice.uniform(*_LATENCY_MS), self._answered_ms + _BEHIND_MS)
        self._world.loop.world.call_later((self._answered_ms - now_ms) / 1000, settle, reply, answer, error)
