"""What an agent suffers from, place by place, for its health; and for its log, once for each cause.

When the metadata is away, every loop says so: that is one outage, told when the first notices it and when the last is
well again.
"""

from __future__ import annotations

import logging
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataUnavailable, StoreUnavailable
from streamhouse.core.outage import Outage

_METADATA: Final = "the metadata store"
_OBJECTS: Final = "the object store"

_log = logging.getLogger(__name__)


class Troubles:
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._words: dict[str, str] = {}
        self._causes: dict[str, str] = {}
        self._outages: dict[str, Outage] = {}  # a cause is a place's name, or one of two stores

    def __bool__(self) -> bool:
        return bool(self._words)

    def __str__(self) -> str:
        return "; ".join(self._words.values())

    def report(self, where: str, error: Exception | str | None) -> None:
        cause = None if error is None else _cause(where, error)
        before = self._causes.pop(where, None)
        self._words.pop(where, None)
        if error is not None and cause is not None:
            words = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
            self._words[where] = f"{where}: {words}"
            self._causes[where] = cause
            self._outage(cause).fails(words)
        if before is not None and before not in self._causes.values():
            self._outage(before).works()

    def forget(self) -> None:
        """The agent stops: nothing waits for what was away."""
        for outage in self._outages.values():
            outage.forget()

    def _outage(self, cause: str) -> Outage:
        if cause not in self._outages:
            self._outages[cause] = Outage(cause, clock=self._clock, log=_log)
        return self._outages[cause]


def _cause(where: str, error: Exception | str) -> str:
    if isinstance(error, (MetadataUnavailable, TimeoutError)):  # no other call of the membership has a time-out
        return _METADATA
    return _OBJECTS if isinstance(error, StoreUnavailable) else where
