"""Slows compaction down, so that it takes little from those that write and read.

Two rules: no more than a rate of bytes, and nothing while a write waits for room. The second has an end: an agent whose
memory is full all the time would never compact, and its partitions would consist of ever more small entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 0.05
_LOOKS: Final = 100
"""Looks at one piece of a few MiB, five seconds: an agent that is always full still compacts about 1 MB/s."""


class Pace:
    def __init__(self, *, bytes_per_second: int, must_wait: Callable[[], bool]) -> None:
        self.paused_s = 0.0
        """The time that compaction has waited for writes."""
        self._bytes_per_second = bytes_per_second
        self._must_wait = must_wait
        self._free_at_s = 0.0
        """When the bytes that were read so far are paid for."""

    async def spend(self, size_bytes: int) -> None:
        """Called after so many bytes were read. Returns when the next piece may be read."""
        time = asyncio.get_running_loop().time
        began_s = time()
        self._free_at_s = max(self._free_at_s, began_s) + size_bytes / self._bytes_per_second
        await asyncio.sleep(self._free_at_s - began_s)
        paused_at_s = time()
        for _ in range(_LOOKS):
            if not self._must_wait():
                break
            await asyncio.sleep(_LOOK_S)
        self.paused_s += time() - paused_at_s
