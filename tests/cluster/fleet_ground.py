"""What a simulated fleet stands on: a loop and a clock of virtual time, and links to the store that can fail."""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.metadata.contract import Change
from streamhouse.metadata.sqlite.store import SqliteMetadata

T = TypeVar("T")


class _InstantSelector(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits for ever")
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._instant = _InstantSelector()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now_s


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class FleetClock:
    """The loop's time, for the store and every agent; ``pause`` lets time pass in which no task runs."""

    def __init__(self) -> None:
        self._paused_ms = 0

    def pause(self, ms: int) -> None:
        self._paused_ms += ms

    def boot_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self._paused_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.boot_ms()


class Link:
    """One agent's way to the store."""

    def __init__(self, store: SqliteMetadata) -> None:
        self.down = False
        self.deaf = False
        """Notifications do not arrive."""
        self.latency_s = 0.001
        self.calls: Counter[str] = Counter()
        self._store = store
        self._without_effect: Counter[str] = Counter()
        self._reply_lost: Counter[str] = Counter()
        self._before: dict[str, Callable[[], Awaitable[None]]] = {}
        self._after: dict[str, Callable[[], Awaitable[None]]] = {}

    def fail(self, method: str, times: int = 1) -> None:
        """The next calls fail before they reach the store."""
        self._without_effect[method] += times

    def lose_reply(self, method: str, times: int = 1) -> None:
        """The next calls take effect and fail all the same."""
        self._reply_lost[method] += times

    def before(self, method: str, act: Callable[[], Awaitable[None]]) -> None:
        """Let something happen just before the next call reaches the store."""
        self._before[method] = act

    def after(self, method: str, act: Callable[[], Awaitable[None]]) -> None:
        """Let something happen between the next call's effect and its reply."""
        self._after[method] = act

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Change]]:
        async with self._store.subscribe() as changes:
            yield self._heard(changes)

    async def _heard(self, changes: AsyncIterator[Change]) -> AsyncIterator[Change]:
        async for change in changes:
            if not self.deaf and not self.down:
                yield change

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[method] += 1
            await asyncio.sleep(self.latency_s)
            act = self._before.pop(method, None)
            if act is not None:
                await act()
            if self.down or self._take(self._without_effect, method):
                raise MetadataUnavailable(f"no way to the store for {method}")
            result = await getattr(self._store, method)(*args, **kwargs)
            act = self._after.pop(method, None)
            if act is not None:
                await act()
            await asyncio.sleep(self.latency_s)
            if self.down or self._take(self._reply_lost, method):
                raise MetadataUnavailable(f"the reply to {method} was lost")
            return result

        return call

    @staticmethod
    def _take(counts: Counter[str], method: str) -> bool:
        if counts[method] < 1:
            return False
        counts[method] -= 1
        return True
