"""The network between a process and a service: latency, and every way in which a call and its effect differ.

    lost request      not done, and after the time-out an error
    lost reply        done, and after the time-out the same error
    delayed           done later, perhaps long after the caller has given up or died
    repeated          done once more, later, by a network that sends twice
    cut               all of the above at once, for as long as it lasts

A request belongs to the network once it is sent: it arrives even if its sender is paused or dead by then. The reply
wakes the sender if it still exists. Requests of one process may overtake each other, as on several connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from simulator.dice import Dice
from simulator.loop import SimLoop
from streamhouse.core.errors import StreamHouseError

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Weather:
    """How a link behaves now; changed while it is in use."""

    latency_ms: tuple[float, float] = (0.5, 5.0)
    timeout_ms: float = 400.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    delayed: float = 0.0
    longest_delay_ms: float = 3000.0
    repeated: float = 0.0
    cut: bool = False
    lag_ms: float = 0.0
    """How late replies come at most, on top of the latency. Requests are a little slow too."""

    def calm(self) -> None:
        self.lost_request = self.lost_reply = self.delayed = self.repeated = 0.0
        self.cut = False
        self.lag_ms = 0.0


class Link:
    def __init__(
        self, loop: SimLoop, dice: Dice, weather: Weather, *, unavailable: Callable[[str], StreamHouseError]
    ) -> None:
        self.weather = weather
        self._loop = loop
        self._dice = dice
        self._unavailable = unavailable

    async def call(self, what: str, act: Callable[[], T], *, may_repeat: bool = False) -> T:
        """``act`` happens at one instant at the far end."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._send(what, reply, lambda: self._act(what, reply, act), may_repeat=may_repeat)
        answer: T = await reply
        return answer

    async def call_slow(self, what: str, act: Callable[[], Awaitable[T]]) -> T:
        """``act`` takes time at the far end."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._send(what, reply, lambda: self._loop.world.spawn(self._act_slowly(what, reply, act)), may_repeat=False)
        answer: T = await reply
        return answer

    def _send(self, what: str, reply: asyncio.Future[Any], deliver: Callable[[], object], *, may_repeat: bool) -> None:
        weather, dice, world = self.weather, self._dice, self._loop.world
        if weather.cut or dice.chance(weather.lost_request):
            self._fail_later(what, reply)
            return
        delay_ms = dice.uniform(*weather.latency_ms) + dice.uniform(0, weather.lag_ms / 8)
        if weather.delayed and dice.chance(weather.delayed):
            delay_ms += dice.uniform(0, weather.longest_delay_ms)
            if delay_ms >= weather.timeout_ms:
                world.call_later(weather.timeout_ms / 1000, self._fail, what, reply)
        world.call_later(delay_ms / 1000, deliver)
        if may_repeat and weather.repeated and dice.chance(weather.repeated):
            again_ms = delay_ms + dice.uniform(0, weather.longest_delay_ms)
            world.call_later(again_ms / 1000, deliver)

    def _act(self, what: str, reply: asyncio.Future[Any], act: Callable[[], T]) -> None:
        if self.weather.cut:
            self._fail_later(what, reply)
            return
        answer: T | None = None
        error: StreamHouseError | None = None
        try:
            answer = act()
        except StreamHouseError as raised:
            error = raised
        self._answer(what, reply, answer, error)

    async def _act_slowly(self, what: str, reply: asyncio.Future[Any], act: Callable[[], Awaitable[T]]) -> None:
        if self.weather.cut:
            self._fail_later(what, reply)
            return
        answer: T | None = None
        error: StreamHouseError | None = None
        try:
            answer = await act()
        except StreamHouseError as raised:
            error = raised
        self._answer(what, reply, answer, error)

    def _answer(self, what: str, reply: asyncio.Future[Any], answer: object, error: StreamHouseError | None) -> None:
        if reply.done():
            return
        if self.weather.cut or self._dice.chance(self.weather.lost_reply):
            self._fail_later(what, reply)
            return
        delay_ms = self._dice.uniform(*self.weather.latency_ms)
        delay_ms += self._dice.uniform(self.weather.lag_ms / 4, self.weather.lag_ms)
        self._loop.world.call_later(delay_ms / 1000, settle, reply, answer, error)

    def _fail_later(self, what: str, reply: asyncio.Future[Any]) -> None:
        """Silence until the time-out; sometimes a refused connection at once."""
        quick = self._dice.chance(0.2)
        wait_ms = self.weather.latency_ms[1] if quick else self.weather.timeout_ms
        self._loop.world.call_later(wait_ms / 1000, self._fail, what, reply)

    def _fail(self, what: str, reply: asyncio.Future[Any]) -> None:
        if not reply.done():
            reply.set_exception(self._unavailable(f"{what}: no answer"))


def settle(reply: asyncio.Future[Any], answer: object, error: Exception | None) -> None:
    """The caller may not exist any more."""
    if reply.done():
        return
    if error is not None:
        reply.set_exception(error)
    else:
        reply.set_result(answer)
