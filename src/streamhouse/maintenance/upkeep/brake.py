"""Decides when writes must wait for retention, so that a size limit bounds the disk of a single node. Pure.

``retention.bytes`` says what may stay, and a fast writer commits more than that while one pass of retention runs. So
all writes wait once much more was committed under size limits than the last pass has looked at: an eighth of what these
limits allow together. They go on when a pass has caught up. A pass that takes long, or fails, must not make a log
read-only: writes wait for ``_LONGEST_MS`` at most, then not again before a pass has ended well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHARE_OF_LIMITS: Final = 8
_LEAST_BYTES: Final = 16 * 1024 * 1024
"""Below this, writes would stop and go on every few milliseconds."""
_LONGEST_MS: Final = 2_000


@dataclass(slots=True)
class Brake:
    holds: bool = False
    """Whether writes wait now."""
    _caught_up_bytes: int = 0
    _held_since_ms: int = 0
    _has_given_up: bool = False

    def look(self, *, now_ms: int, committed_bytes: int, limits_bytes: int | None) -> bool:
        """Returns whether writes wait from now on. ``committed_bytes``: all that was committed under size limits since
        the start. ``limits_bytes``: all size limits together; None when there is none."""
        behind_bytes = committed_bytes - self._caught_up_bytes
        if limits_bytes is None or behind_bytes <= max(_LEAST_BYTES, limits_bytes // _SHARE_OF_LIMITS):
            self.holds = False
        elif self.holds and now_ms - self._held_since_ms >= _LONGEST_MS:
            self.holds, self._has_given_up = False, True
        elif not self.holds and not self._has_given_up:
            self.holds, self._held_since_ms = True, now_ms
        return self.holds

    def caught_up(self, committed_bytes: int) -> None:
        """A pass has ended well that began when so much was committed."""
        self._caught_up_bytes = committed_bytes
        self._has_given_up = False
