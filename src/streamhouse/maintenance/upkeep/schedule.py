"""Decides when retention is due. Pure.

Time limits are looked at on an interval, in all partitions. A size limit cannot wait for it: a fast writer would write
many times the limit in between. So an early pass, over the partitions with a size limit alone, is due once as many
bytes were committed there as a thirty-second of the smallest limit; what is on the disk is then over the limit by
little more than that. Passes have a distance, so that a tiny limit or very many partitions do not keep a core busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_SHARE_OF_LIMIT: Final = 32
_SHORTEST_MS: Final = 50
_REST: Final = 1
"""After an early pass, so many times its duration passes before the next: it takes half of one core at most. Where
writes wait for it, it comes at once."""


class RetentionDue(Enum):
    ALL = auto()
    """The interval is over: all partitions."""
    LIMITED = auto()
    """Much was committed under a size limit: the partitions that have one."""


@dataclass(slots=True)
class RetentionSchedule:
    interval_ms: int
    due_ms: int
    """When the next pass over all partitions is due by the clock."""
    _early_from_ms: int = 0
    """No early pass before."""
    _has_failed: bool = False
    _passed_bytes: int = 0

    def due(
        self, *, now_ms: int, committed_bytes: int, limit_bytes: int | None, writes_wait: bool = False
    ) -> RetentionDue | None:
        """``committed_bytes``: all that was committed under size limits since the start. ``limit_bytes``: the smallest
        size limit."""
        if now_ms >= self.due_ms:
            return RetentionDue.ALL
        if writes_wait and not self._has_failed:
            return RetentionDue.LIMITED
        if limit_bytes is None or now_ms < self._early_from_ms:
            return None
        is_much = committed_bytes - self._passed_bytes > limit_bytes // _SHARE_OF_LIMIT
        return RetentionDue.LIMITED if is_much else None

    def begins(self, due: RetentionDue, *, now_ms: int, committed_bytes: int) -> None:
        """A pass begins now, with so much committed before it."""
        self._passed_bytes = committed_bytes
        if due is RetentionDue.ALL:
            self.due_ms = now_ms + self.interval_ms

    def ended(self, *, now_ms: int, took_ms: int) -> None:
        self._early_from_ms = now_ms + max(_SHORTEST_MS, _REST * took_ms)
        self._has_failed = False

    def failed(self, *, now_ms: int, pause_ms: int) -> None:
        """Try all again after the pause, and nothing before."""
        self.due_ms = self._early_from_ms = now_ms + pause_ms
        self._has_failed = True
