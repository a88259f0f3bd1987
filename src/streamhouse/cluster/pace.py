"""How the shell waits: for a signal with a time-out, and for an answer from a store that may be away.

Time passes by the event loop only, so that a simulated loop decides how fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.randomness import Randomness

T = TypeVar("T")

_FIRST_PAUSE_MS: Final = 100
_LONGEST_PAUSE_MS: Final = 2_000
_PAUSES_PER_TIMEOUT: Final = 8  # short against the time-out, which is what a lease can spare


class Signal:
    """Wakes one waiter; signals that come while nobody waits are kept as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        """What it told of is about to be looked at."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was signalled, or just time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Calls:
    """Calls to the metadata store, none of which may hang for ever. A repeated call is the identical one (R5, R20)."""

    def __init__(self, randomness: Randomness, *, timeout_ms: int) -> None:
        self._randomness = randomness
        self._timeout_s = timeout_ms / 1000
        longest_ms = min(_LONGEST_PAUSE_MS, max(1, timeout_ms // _PAUSES_PER_TIMEOUT))
        self._backoff = Backoff(first_ms=_FIRST_PAUSE_MS, longest_ms=longest_ms)

    async def once(self, call: Callable[[], Awaitable[T]]) -> T:
        """Raises TimeoutError too; the outcome is then unknown."""
        async with asyncio.timeout(self._timeout_s):
            return await call()

    async def until_answered(self, call: Callable[[], Awaitable[T]], *, give_up_ms: int) -> T:
        """Again while there is no answer. Raises MetadataUnavailable or TimeoutError in the end."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + give_up_ms / 1000
        failures = 0
        while True:
            try:
                return await self.once(call)
            except (MetadataUnavailable, TimeoutError):
                failures += 1
                if loop.time() >= give_up_s:
                    raise
            await self.pause(failures)

    async def pause(self, failures: int) -> None:
        await asyncio.sleep(self.pause_s(failures))

    def pause_s(self, failures: int) -> float:
        """After this many failures in a row."""
        return self._backoff.pause_s(failures, self._randomness)
