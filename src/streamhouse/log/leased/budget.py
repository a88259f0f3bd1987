"""The memory budget for batches that are not committed yet. All partitions share it, and writes wait for room in it.

It counts two kinds. Batches of partitions led here leave by their commit. Batches that an ended leadership has left
count until the WAL has synced them: from then on they are not in memory any more (held.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_BATCH_OVERHEAD_BYTES: Final = 512  # the objects around a buffered batch; without it, tiny batches exceed the budget


def cost_bytes(size_bytes: int, batches: int = 1) -> int:
    return size_bytes + batches * _BATCH_OVERHEAD_BYTES


class WriteBudget:
    def __init__(self, max_bytes: int, *, urge: Callable[[], None]) -> None:
        """``urge`` is called whenever there is no room; it must flush what waits."""
        self.max_bytes = max_bytes
        self.waiting_bytes = 0
        self.held_bytes = 0
        self.urge = urge
        self._stopped_by = ""
        self._freed: asyncio.Event | None = None
        """Exists while a write waits, and until there may be room."""

    @property
    def used_bytes(self) -> int:
        return self.waiting_bytes + self.held_bytes

    @property
    def stopped_by(self) -> str:
        """What writes must wait for although there is memory for them; empty when there is no such reason."""
        return self._stopped_by

    def stop_for(self, why: str) -> None:
        """There is no room until this is called with an empty reason."""
        self._stopped_by = why
        self.look_again()

    @property
    def is_awaited(self) -> bool:
        """Whether a write waits for room now."""
        return self._freed is not None

    def has_room(self, size_bytes: int) -> bool:
        if self._stopped_by:
            return False
        if self.used_bytes + cost_bytes(size_bytes) <= self.max_bytes:
            return True
        self.urge()
        return False

    def can_ever_take(self, size_bytes: int) -> bool:
        return cost_bytes(size_bytes) <= self.max_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """For batches that must get in. If nothing else waits, one batch gets in even without room, or nothing would
        move."""
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
        """Wake the waiting writes: there may be room now, or a reason to stop waiting."""
        if self._freed is not None:
            self._freed.set()
            self._freed = None
