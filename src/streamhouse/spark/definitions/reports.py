"""A runner's report of one definition, kept beside it in the store; ``list``, ``describe`` and ``logs`` show it. Pure.

It is small and bounded: the current figures and the last events. It is for people. Nothing depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

MAX_EVENTS: Final = 100
MAX_MESSAGE_CHARS: Final = 1_000
STALE_MS: Final = 30_000
"""A runner reports every few seconds. One that has not reported for this long has died."""


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"
    """The runner starts it again at ``retry_at_ms``."""
    FINISHED = "finished"
    """The query has read all records that there were, as its definition asks."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at_ms: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    state: RunState = RunState.STOPPED
    runner: str = ""
    """The id of the runner: host and process."""
    batch: int | None = None
    rows: int = 0
    """Read since this start."""
    rows_per_second: float = 0.0
    lag: int | None = None
    """Records in the topics that are not in the target yet."""
    failures: int = 0
    """The number of failures in a row."""
    error: str = ""
    retry_at_ms: int | None = None
    events: tuple[Event, ...] = field(default=())

    def telling(self, at_ms: int, what: str) -> Report:
        event = Event(at_ms=at_ms, what=what[:MAX_MESSAGE_CHARS])
        return replace(self, events=(*self.events, event)[-MAX_EVENTS:])

    def to_json(self) -> str:
        return json.dumps(
            {
                "state": self.state.value,
                "runner": self.runner,
                "batch": self.batch,
                "rows": self.rows,
                "rows_per_second": round(self.rows_per_second, 1),
                "lag": self.lag,
                "failures": self.failures,
                "error": self.error[:MAX_MESSAGE_CHARS],
                "retry_at_ms": self.retry_at_ms,
                "events": [[event.at_ms, event.what] for event in self.events],
            },
            ensure_ascii=False,
        )


def read_report(text: str) -> Report:
    """An unreadable report counts as an empty one."""
    try:
        document: Mapping[str, Any] = json.loads(text) if text else {}
        return Report(
            state=RunState(document.get("state", RunState.STOPPED)),
            runner=str(document.get("runner", "")),
            batch=document.get("batch"),
            rows=int(document.get("rows", 0)),
            rows_per_second=float(document.get("rows_per_second", 0)),
            lag=document.get("lag"),
            failures=int(document.get("failures", 0)),
            error=str(document.get("error", "")),
            retry_at_ms=document.get("retry_at_ms"),
            events=tuple(Event(at_ms=int(at_ms), what=str(what)) for at_ms, what in document.get("events", [])),
        )
    except (ValueError, TypeError, AttributeError):
        return Report()


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """How many records the sources have beyond what the query has read, from Spark's progress report."""
    lag = 0
    for source in progress.get("sources", []):
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end is None or latest is None:
            return None
        lag += sum(max(0, offset - end.get(partition, 0)) for partition, offset in latest.items())
    return lag


def _offsets(given: object) -> dict[tuple[str, str], int] | None:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return None
    if not isinstance(given, dict):
        return None
    return {
        (topic, partition): offset
        for topic, partitions in given.items()
        if not topic.startswith("$") and isinstance(partitions, dict)
        for partition, offset in partitions.items()
    }
