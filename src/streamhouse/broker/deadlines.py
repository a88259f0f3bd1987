"""Calls that must be answered by a time, with one timer for all of them.

A timer of its own for every produce would cost as much as its append. These deadlines are seconds away and nearly
always met, so one look at all that are under way, every now and then, does.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

_LOOK_EVERY_S: Final = 0.1


class Overdue(Protocol):
    def overdue(self) -> None:
        """Its time is up. It has been forgotten already."""
        ...


class Deadlines:
    """Belongs to one event loop. The timer runs only while something is under way."""

    def __init__(self) -> None:
        self._under_way: dict[Overdue, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, call: Overdue, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._under_way[call] = loop.time() + timeout_s
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_EVERY_S, self._look)

    def remove(self, call: Overdue) -> None:
        self._under_way.pop(call, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        late = [call for call, deadline_s in self._under_way.items() if deadline_s <= now_s]
        try:
            for call in late:
                if self._under_way.pop(call, None) is not None:  # else it ended when one before it did
                    call.overdue()
        finally:  # should one of them raise, the others have their turn at the next look
            self._timer = loop.call_later(_LOOK_EVERY_S, self._look) if self._under_way else None
