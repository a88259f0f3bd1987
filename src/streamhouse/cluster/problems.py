"""The problems an agent has now: all of them for its health, and each cause once for its log.

When the metadata store is away, every loop reports it. That is one outage with one cause. It is logged when the first
loop reports it, and again when the last loop works again.
"""

from __future__ import annotations

import logging
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataUnavailable, StoreUnavailable
from streamhouse.core.outage import Outage

METADATA_STORE: Final = "the metadata store"
OBJECT_STORE: Final = "the object store"

_log = logging.getLogger(__name__)


class Problems:
    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._texts: dict[str, str] = {}
        self._causes: dict[str, str] = {}
        self._outages: dict[str, Outage] = {}  # the cause is the name of a loop, or one of the two stores

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __str__(self) -> str:
        return "; ".join(self._texts.values())

    def outages(self) -> list[Outage]:
        """The outages that go on, one for each cause."""
        return [outage for outage in self._outages.values() if outage.active]

    def report(self, where: str, error: Exception | str | None) -> None:
        """``where`` (the name of a loop) has this error; None when it works again."""
        cause = None if error is None else _cause(where, error)
        before = self._causes.pop(where, None)
        self._texts.pop(where, None)
        if error is not None and cause is not None:
            text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
            self._texts[where] = f"{where}: {text}"
            self._causes[where] = cause
            self._outage(cause).fails(text)
        if before is not None and before not in self._causes.values():
            self._outage(before).works()

    def forget(self) -> None:
        """The agent stops: do not log the end of any outage."""
        for outage in self._outages.values():
            outage.forget()

    def _outage(self, cause: str) -> Outage:
        if cause not in self._outages:
            self._outages[cause] = Outage(cause, clock=self._clock, log=_log)
        return self._outages[cause]


def _cause(where: str, error: Exception | str) -> str:
    if isinstance(error, (MetadataUnavailable, TimeoutError)):  # only calls to the metadata store have a time-out here
        return METADATA_STORE
    return OBJECT_STORE if isinstance(error, StoreUnavailable) else where
