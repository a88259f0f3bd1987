"""The thin asynchronous shell that every area of the contract stands on: run a step, again while the file is locked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.sqlite.connections import Busy
from streamhouse.metadata.sqlite.engine import Engine
from streamhouse.metadata.sqlite.transactions import Refused, Tx

P = ParamSpec("P")
T = TypeVar("T")

_BACKOFF: Final = Backoff(first_ms=5, longest_ms=250)


class Shell:
    def __init__(self, engine: Engine, randomness: Randomness, *, retry_deadline_ms: int) -> None:
        self._engine = engine
        self._randomness = randomness
        self._retry_deadline_ms = retry_deadline_ms

    async def _write(self, step: Callable[Concatenate[Tx, P], T | Refused], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._until_free(lambda: self._engine.write(_bound(step, *args, **kwargs)))

    async def _read(self, step: Callable[Concatenate[Tx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._until_free(lambda: self._engine.read(_bound(step, *args, **kwargs)))

    async def _until_free(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The event loop's time, not the clock's: it is what the pauses are made of, in a simulation too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_deadline_ms / 1000
        tries = 0
        while True:
            try:
                return await attempt()
            except Busy as busy:
                tries += 1
                pause_s = _BACKOFF.pause_s(tries, self._randomness)
                if loop.time() + pause_s > deadline:
                    raise MetadataUnavailable(
                        f"{busy.message} (gave up after {self._retry_deadline_ms} ms)",
                        hint="see which process holds it; the call may be repeated",
                    ) from busy
            await asyncio.sleep(pause_s)


def _bound(step: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs) -> Callable[[Tx], T]:
    return lambda tx: step(tx, *args, **kwargs)
