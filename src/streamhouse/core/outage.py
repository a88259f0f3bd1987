"""Logs an outage in two lines, however often a call was tried in between.

The first line says what fails; the second says that it works again, and after how long. A part counts as working again
only after a second without a failure: of many calls at a time, some fail while others succeed. Waits on the event loop;
decides nothing. The health of a process shows the outages that are active.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from streamhouse.core.clock import Clock

_SETTLED_AFTER_S: Final = 1.0


class Outage:
    def __init__(self, what: str, *, clock: Clock, log: logging.Logger) -> None:
        """``what``: the part, as in "problem with …" and "… works again"."""
        self.active = False
        """On hot paths, check this before a call of ``works``."""
        self.what = what
        self.problem = ""
        """The error of the last failure."""
        self.since_ms = 0
        """The time at which the outage began, by the wall clock."""
        self._clock = clock
        self._log = log
        self._began_ms = 0
        self._worked_ms = 0
        self._settling: asyncio.TimerHandle | None = None

    def fails(self, problem: object) -> None:
        self._unsettle()
        self.problem = words = str(problem) or type(problem).__name__
        if self.active:
            return
        self.active = True
        self._began_ms = self._clock.boot_ms()
        self.since_ms = self._clock.wall_ms()
        self._log.warning("problem with %s: %s", self.what, words, extra={"what": self.what, "problem": words})

    def works(self) -> None:
        if not self.active or self._settling is not None:
            return
        self._worked_ms = self._clock.boot_ms()
        self._settling = asyncio.get_running_loop().call_later(_SETTLED_AFTER_S, self._settled)

    def forget(self) -> None:
        """End the outage without a log line."""
        self._unsettle()
        self.active = False

    def _unsettle(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None

    def _settled(self) -> None:
        self._settling = None
        self.active = False
        for_s = max(0, self._worked_ms - self._began_ms) / 1000
        self._log.warning("%s works again after %.1f s", self.what, for_s, extra={"what": self.what, "for_s": for_s})
