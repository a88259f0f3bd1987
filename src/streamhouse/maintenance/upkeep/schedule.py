"""Decides when retention is due. Pure.

Time limits are looked at on an interval. A size limit cannot wait for it: a fast writer would write many times the
limit in between. So a pass is also due once as many bytes were written as a thirty-second of the smallest limit; what
is on the disk is then over the limit by little more than that. A writer of a tiny limit would make passes without end,
so they have a shortest distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHARE_OF_LIMIT: Final = 32
_SHORTEST_MS: Final = 50
"""A pass takes some 10 ms. So often it only comes where a limit is that small for what is written, and then the log is
short."""


@dataclass(slots=True)
class RetentionSchedule:
    interval_ms: int
    due_ms: int
    """When the next pass is due by the clock."""
    _passed_at_ms: int = 0
    _passed_bytes: int = 0

    def is_due(self, *, now_ms: int, written_bytes: int, limit_bytes: int | None) -> bool:
        """``written_bytes``: all that was written since the start. ``limit_bytes``: the smallest size limit."""
        if now_ms >= self.due_ms:
            return True
        if limit_bytes is None or now_ms - self._passed_at_ms < _SHORTEST_MS:
            return False
        return written_bytes - self._passed_bytes > limit_bytes // _SHARE_OF_LIMIT

    def passed(self, *, now_ms: int, written_bytes: int) -> None:
        """A pass has begun now, with so much written before it."""
        self._passed_at_ms, self._passed_bytes = now_ms, written_bytes
        self.due_ms = now_ms + self.interval_ms
