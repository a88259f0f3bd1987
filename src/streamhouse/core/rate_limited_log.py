"""A log with a bound on its lines, for messages that may come in thousands: they must not fill the disk.

A broken client can cause such messages, or a bucket that has lost many objects.

At most LINES lines of one level are written in WINDOW_S seconds. The others are counted, and the count is written with
the first line after the window. Each level has its own bound, so that many bad clients do not hide one bug of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

LINES: Final = 20
WINDOW_S: Final = 10.0


@dataclass(slots=True)
class _RepeatWindow:
    since: float
    written: int = 0
    left_out: int = 0


class RateLimitedLog:
    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        """``now`` returns seconds of a clock that never goes back."""
        self._logger = logger
        self._now = now
        self._windows: dict[int, _RepeatWindow] = {}

    def log(
        self,
        level: int,
        text: str,
        *args: object,
        error: BaseException | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Log as ``Logger.log`` does."""
        if not self._logger.isEnabledFor(level):
            return
        now = self._now()
        for other_level, other in self._windows.items():
            if now - other.since >= WINDOW_S and other.left_out:
                self._logger.log(other_level, "%d more lines like these were left out", other.left_out)
                other.left_out = 0
        window = self._windows.setdefault(level, _RepeatWindow(now))
        if now - window.since >= WINDOW_S:
            window.since, window.written = now, 0
        if window.written >= LINES:
            window.left_out += 1
            return
        window.written += 1
        self._logger.log(level, text, *args, exc_info=error, extra=extra)
