"""What can be wrong, and a bounded list of what was."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_EXAMPLES: Final = 50  # of one kind: a broken log has as many anomalies as records; a person reads a few


class AnomalyKind(StrEnum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    WRONG_OFFSET = "wrong offset"
    UNSTABLE_READ = "unstable read"
    FOREIGN = "foreign record"
    HOLE = "hole"
    UNREADABLE = "unreadable"
    COMMIT_WENT_BACK = "committed offset went back"
    SKIPPED = "skipped by a group"
    UNAVAILABLE = "unavailable"


MEANINGS: Final = {
    AnomalyKind.LOST: "acknowledged with acks=all, and not in the log",
    AnomalyKind.DUPLICATED: "in the log twice, though its producer is idempotent or does not retry",
    AnomalyKind.REORDERED: "behind a record that the same producer sent later to the same partition",
    AnomalyKind.WRONG_OFFSET: "the acknowledged offset holds another record",
    AnomalyKind.UNSTABLE_READ: "two reads of one offset gave two different records",
    AnomalyKind.FOREIGN: "a record that is damaged, lies on another partition than its own, or was never sent",
    AnomalyKind.HOLE: "the last read of the log jumped over offsets",
    AnomalyKind.UNREADABLE: "the last read did not reach the end of the partition in time",
    AnomalyKind.COMMIT_WENT_BACK: "a group's committed offset was lower than one that had been acknowledged before",
    AnomalyKind.SKIPPED: "a group committed past a record that none of its members was given",
    AnomalyKind.UNAVAILABLE: (
        "a partition acknowledged nothing for longer than the limit, or a group had not committed everything at the end"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    kind: AnomalyKind
    where: str
    """A topic and partition, or a group."""
    what: str
    at_ms: int | None
    """When it was promised or seen; none when the history does not say."""


class Findings:
    """Counts every anomaly and keeps the first few of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[AnomalyKind] = Counter()
        self._examples: defaultdict[AnomalyKind, list[Anomaly]] = defaultdict(list)

    def add(self, kind: AnomalyKind, where: str, what: str, at_ms: int | None = None) -> None:
        self.counts[kind] += 1
        if len(self._examples[kind]) < MAX_EXAMPLES:
            self._examples[kind].append(Anomaly(kind=kind, where=where, what=what, at_ms=at_ms))

    def examples(self) -> list[Anomaly]:
        return [anomaly for kind in AnomalyKind for anomaly in self._examples.get(kind, ())]

    def total(self) -> int:
        return self.counts.total()
