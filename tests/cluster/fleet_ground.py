"""Links from the agents of a simulated fleet to the metadata store; a link can fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.metadata.contract import Change
from streamhouse.metadata.sqlite.store import SqliteMetadata

T = TypeVar("T")


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
