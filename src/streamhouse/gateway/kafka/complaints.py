"""Log lines about what clients did wrong, not too many: a scanner or a broken client must not fill the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("streamhouse.kafka")

LINES: Final = 20
WINDOW_S: Final = 10.0


class Complaints:
    """At most LINES lines in WINDOW_S seconds; those left out are counted in the next window's first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since = now()
        self._said = 0
        self._left_out = 0

    def say(self, level: int, text: str, *, error: BaseException | None = None) -> None:
        if not logger.isEnabledFor(level):
            return
        now = self._now()
        if now - self._since >= WINDOW_S:
            if self._left_out:
                logger.warning("%d more complaints about clients were left out", self._left_out)
            self._since, self._said, self._left_out = now, 0, 0
        if self._said >= LINES:
            self._left_out += 1
            return
        self._said += 1
        logger.log(level, "%s", text, exc_info=error)
