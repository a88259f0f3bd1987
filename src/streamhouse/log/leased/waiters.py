"""Who waits for an offset of a partition to be passed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Waiters:
    """Removal is O(1); there are few per partition."""

    waiting: dict[asyncio.Future[None], int] = field(default_factory=dict)

    def wake(self, end_offset: int) -> None:
        for future, offset in list(self.waiting.items()):
            if offset <= end_offset:
                del self.waiting[future]
                if not future.done():
                    future.set_result(None)

    def fail(self, error: Exception) -> None:
        for future in self.waiting:
            fail(future, error)
        self.waiting.clear()


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Nobody may be left to hear it: a producer that went away must not leave "never retrieved" behind."""
    if not future.done():
        future.set_exception(error)
        future.exception()
