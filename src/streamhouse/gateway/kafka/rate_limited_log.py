"""Log lines about what clients did wrong, not too many: a scanner or a broken client must not fill the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

logger = logging.getLogger("streamhouse.kafka")

LINES: Final = 20
WINDOW_S: Final = 10.0


@dataclass(slots=True)
class _Window:
    since: float
    said: int = 0
    left_out: int = 0


class RateLimitedLog:
    """At most LINES lines of one level in WINDOW_S seconds, so that many bad clients do not hide one bug of ours; those
    left out are counted in the next window."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[int, _Window] = {}

    def say(self, level: int, text: str, *, error: BaseException | None = None) -> None:
        if not logger.isEnabledFor(level):
            return
        now = self._now()
        window = self._windows.setdefault(level, _Window(now))
        if now - window.since >= WINDOW_S:
            if window.left_out:
                logger.log(level, "%d more lines like these were left out", window.left_out)
            window.since, window.said, window.left_out = now, 0, 0
        if window.said >= LINES:
            window.left_out += 1
            return
        window.said += 1
        logger.log(level, "%s", text, exc_info=error)
