"""Change notifications inside one process: a bounded queue per subscriber that never blocks the sender.

Backends publish what they commit, and what other processes tell them. A subscriber that falls behind loses the detail
but not the fact: its queue is replaced by one ANY.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamhouse.core.limits import MAX_CHANGE_QUEUE
from streamhouse.metadata.contract import Change, ChangeKind

_ANYTHING = Change(kind=ChangeKind.ANY)


class ChangeHub:
    """Fans changes out. Belongs to one event loop; ``publish`` must be called on it."""

    def __init__(self, max_queue: int = MAX_CHANGE_QUEUE) -> None:
        self._max_queue = max_queue
        self._subscribers: set[_Subscriber] = set()
        self._closed = False

    def publish(self, change: Change) -> None:
        for subscriber in self._subscribers:
            subscriber.offer(change)

    def close(self) -> None:
        """Every subscription ends after what it still has queued."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.end()

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Change]]:
        subscriber = _Subscriber(self._max_queue)
        if self._closed:
            subscriber.end()
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)


class _Subscriber:
    def __init__(self, max_queue: int) -> None:
        self._queue: deque[Change] = deque()
        self._max_queue = max_queue
        self._wake = asyncio.Event()
        self._ended = False

    def offer(self, change: Change) -> None:
        if len(self._queue) >= self._max_queue:
            self._queue.clear()
            change = _ANYTHING
        self._queue.append(change)
        self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    def __aiter__(self) -> _Subscriber:
        return self

    async def __anext__(self) -> Change:
        while not self._queue:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()
