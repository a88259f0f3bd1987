"""The timers of all groups in one heap, which uses one timer of the event loop.

Members send heartbeats far more often than they expire. So moving a timer to a later time must be cheap: it is one
write into a dict. The heap keeps the earlier entry. When that entry is due, it is put back with the later time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Generic, TypeVar

from streamhouse.core.clock import Clock

T = TypeVar("T")

_SPARE_ENTRIES: Final = 1_000


@dataclass(order=True, slots=True)
class _Entry(Generic[T]):
    at_ms: int
    number: int
    key: T = field(compare=False)


class Timers(Generic[T]):
    def __init__(self, *, clock: Clock, fire: Callable[[T], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._heap: list[_Entry[T]] = []
        self._wanted: dict[T, int] = {}
        self._queued: dict[T, _Entry[T]] = {}
        self._numbers = count()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at_ms = 0

    def __len__(self) -> int:
        return len(self._wanted)

    def set(self, key: T, at_ms: int | None) -> None:
        """Replaces the time of this key. None: cancel it."""
        if at_ms is None:
            self._wanted.pop(key, None)
            return
        self._wanted[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued.at_ms:
            self._push(key, at_ms)
            self._wake()

    def run_due(self) -> None:
        """Call ``fire`` for every timer that is due."""
        now_ms = self._clock.boot_ms()
        try:
            while self._heap and self._heap[0].at_ms <= now_ms:
                self._look_at(heapq.heappop(self._heap), now_ms)
        finally:
            self._wake()

    def _look_at(self, entry: _Entry[T], now_ms: int) -> None:
        if self._queued.get(entry.key) is not entry:
            return  # it was replaced by an earlier entry
        del self._queued[entry.key]
        wanted_ms = self._wanted.get(entry.key)
        if wanted_ms is None:
            return
        if wanted_ms > now_ms:
            self._push(entry.key, wanted_ms)
        else:
            del self._wanted[entry.key]
            self._fire(entry.key)

    def close(self) -> None:
        self._heap.clear()
        self._wanted.clear()
        self._queued.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _push(self, key: T, at_ms: int) -> None:
        if len(self._heap) > 2 * len(self._wanted) + _SPARE_ENTRIES:
            self._tidy()
        entry = _Entry(at_ms, next(self._numbers), key)
        self._queued[key] = entry
        heapq.heappush(self._heap, entry)

    def _tidy(self) -> None:
        """Drop entries of cancelled timers before they are due."""
        self._heap = [entry for key, entry in self._queued.items() if key in self._wanted]
        self._queued = {entry.key: entry for entry in self._heap}
        heapq.heapify(self._heap)

    def _wake(self) -> None:
        if not self._heap:
            return
        at_ms = self._heap[0].at_ms
        if self._handle is not None:
            if self._handle_at_ms <= at_ms:
                return
            self._handle.cancel()
        self._handle_at_ms = at_ms
        delay_s = max(at_ms - self._clock.boot_ms(), 0) / 1000
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._woken)

    def _woken(self) -> None:
        self._handle = None
        self.run_due()
