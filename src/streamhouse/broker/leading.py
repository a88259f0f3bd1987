"""Questions that only a partition's leader answers, asked while the leadership changes: wait here instead of refusing.

A client that is told "not the leader" rests, asks for metadata, and comes back. Between the moment an agent agrees to
lead and the moment the partition is open, that costs more than the change itself, and clients that try three times
within 0.3 s give up. Produce and Fetch have waits of their own, because they answer for many partitions at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import PartitionKey

T = TypeVar("T")

LONGEST_WAIT_S: Final = 5.0
"""As long as Produce waits for a partition to open; clients give up a request after 30 s."""


class Changes(Protocol):
    """What is known of leaderships that change. ``Writes`` knows it."""

    def is_changing(self, key: PartitionKey) -> bool: ...
    async def wait_settled(self, keys: Sequence[PartitionKey], timeout_s: float) -> bool: ...


class LeaderWait:
    """The time that one request may wait for leaders, whatever the number of its partitions."""

    def __init__(self, changes: Changes, *, timeout_ms: int | None = None) -> None:
        """``timeout_ms``: the request's own time-out, if it has one."""
        wait_s = LONGEST_WAIT_S if timeout_ms is None else min(LONGEST_WAIT_S, max(timeout_ms, 0) / 1000)
        self._changes = changes
        self._give_up_s = asyncio.get_running_loop().time() + wait_s

    async def ask(self, key: PartitionKey, question: Callable[[], Awaitable[T]]) -> T:
        """The answer. If it is NotLeader and the leadership changes here, ask once more when the change is over."""
        try:
            return await question()
        except NotLeader:
            left_s = self._give_up_s - asyncio.get_running_loop().time()
            if left_s <= 0 or not self._changes.is_changing(key):
                raise
        await self._changes.wait_settled([key], left_s)
        return await question()
