"""A log with a bound on its lines, for messages that clients can cause: a broken client must not fill the disk.

At most LINES lines of one level are written in WINDOW_S seconds. The others are counted, and the count is written when
the next window begins. Each level has its own bound, so that many bad clients do not hide one bug of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINES: Final = 20
WINDOW_S: Final = 10.0


@dataclass(slots=True)
class _Window:
    since: float
    written: int = 0
    left_out: int = 0


class RateLimitedLog:
    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        """``now`` returns seconds of a clock that never goes back."""
        self._logger = logger
        self._now = now
        self._windows: dict[int, _Window] = {}

    def log(self, level: int, text: str, *, error: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        now = self._now()
        window = self._windows.setdefault(level, _Window(now))
        if now - window.since >= WINDOW_S:
            if window.left_out:
                self._logger.log(level, "%d more lines like these were left out", window.left_out)
            window.since, window.written, window.left_out = now, 0, 0
        if window.written >= LINES:
            window.left_out += 1
            return
        window.written += 1
        self._logger.log(level, "%s", text, exc_info=error)
