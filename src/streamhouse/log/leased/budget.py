"""The memory of batches that are not in the log yet: one budget for every partition, and who waits for room in it.

Counts two kinds. Batches of partitions led here leave by their commit. Batches that an ended leadership has left count
until the WAL has synced them: from then on they are not in memory any more (held.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_BATCH_OVERHEAD_BYTES: Final = (
    512  # objects around a buffered batch: without it, many tiny ones would outgrow the budget
)


def cost_bytes(size_bytes: int, batches: int = 1) -> int:
    return size_bytes + batches * _BATCH_OVERHEAD_BYTES


class WriteBudget:
    def __init__(self, max_bytes: int, *, urge: Callable[[], None]) -> None:
        """``urge`` is asked to bring out what waits, whenever there is no room."""
        self.max_bytes = max_bytes
        self.waiting_bytes = 0
        self.held_bytes = 0
        self.urge = urge
        self._freed: asyncio.Event | None = None
        """Made for those who wait."""

    @property
    def used_bytes(self) -> int:
        return self.waiting_bytes + self.held_bytes

    def has_room(self, size_bytes: int) -> bool:
        if self.used_bytes + cost_bytes(size_bytes) <= self.max_bytes:
            return True
        self.urge()
        return False

    def can_ever_take(self, size_bytes: int) -> bool:
        return cost_bytes(size_bytes) <= self.max_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """For what must get in: a single batch gets in in the end, whatever is held, or nothing would ever move."""
        while self.waiting_bytes and not self.has_room(size_bytes):
            await self.wait_freed()

    async def wait_freed(self) -> None:
        """Returns when there may be more room than now."""
        if self._freed is None:
            self._freed = asyncio.Event()
        await self._freed.wait()

    def take(self, size_bytes: int) -> None:
        self.waiting_bytes += cost_bytes(size_bytes)

    def free(self, size_bytes: int, batches: int) -> None:
        self.waiting_bytes -= cost_bytes(size_bytes, batches)
        self.look_again()

    def look_again(self) -> None:
        """There may be room now, or a reason to give up waiting for it."""
        if self._freed is not None:
            self._freed.set()
            self._freed = None
