"""What a vacuum has found and deleted so far. The same object is its progress while it runs and its summary at the end.

Nothing here decides what is deleted. Savings are at the storage price of S3 Standard in us-east-1, the one in
objectstore/metering.py. Deletes are free there; other requests of a vacuum show in the meter of its object store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from streamhouse.maintenance.vacuum.candidates import Garbage, GarbageCause, ObjectKind, SortedPage
from streamhouse.objectstore.metering import storage_cost_usd_month

TOLD_PROBLEMS: Final = 20  # messages kept; a person reads a few, and thousands of them say the same


class VacuumPhase(StrEnum):
    PURGING = "purging deleted topics"
    RAISING = "raising the GC horizon"
    DEREFERENCED = "deleting dereferenced objects"
    LISTING = "listing the object store"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    objects: int = 0
    size_bytes: int = 0

    def plus(self, objects: int, size_bytes: int) -> Tally:
        return Tally(objects=self.objects + objects, size_bytes=self.size_bytes + size_bytes)


@dataclass(slots=True, kw_only=True)
class VacuumSummary:
    plan_only: bool = False
    phase: VacuumPhase = VacuumPhase.PURGING
    horizon_ms: int = 0
    """What is stamped at or above it stays."""
    entries_purged: int = 0
    """Entries of deleted topics whose rows were dropped. Their objects wait for the grace period from now on."""
    listed: int = 0
    young: int = 0
    """Listed objects that a writer may still commit. Those that a listing could leave out do not count."""
    foreign: int = 0
    """Listed objects whose keys are not ours, with the same exception. They are never touched."""
    garbage: dict[tuple[GarbageCause, ObjectKind], Tally] = field(default_factory=dict)
    """Deleted; of a plan, what a vacuum would delete for certain. When several vacuums run at once, each counts the
    unreferenced objects that it has asked the object store to delete, so one object may count twice."""
    undecided: Tally = field(default_factory=Tally)
    """Counted by a plan only: objects that a vacuum would look at and a plan cannot judge. See ``Vacuum.plan``."""
    failed: int = 0
    """Objects that could not be deleted. The next vacuum finds them again."""
    records_left: int = 0
    """Records of dereferenced objects that stay: the object could not be deleted, or its key is none of ours, or a
    partition has a lower horizon."""
    problems: list[str] = field(default_factory=list)
    """The first problems, as sentences."""
    gave_up: bool = False
    """True when so much failed that the vacuum ended early."""

    @property
    def total(self) -> Tally:
        return Tally(
            objects=sum(tally.objects for tally in self.garbage.values()),
            size_bytes=sum(tally.size_bytes for tally in self.garbage.values()),
        )

    @property
    def saved_usd_month(self) -> float:
        return storage_cost_usd_month(self.total.size_bytes)

    def count_page(self, page: SortedPage) -> None:
        self.listed += len(page.suspects) + len(page.leftovers) + page.young + page.foreign
        self.young += page.young
        self.foreign += page.foreign

    def count_garbage(self, found: Iterable[Garbage]) -> None:
        for each in found:
            place = (each.cause, each.kind)
            self.garbage[place] = self.garbage.get(place, Tally()).plus(1, each.size_bytes)

    def count_failures(self, failed: Mapping[str, Exception]) -> None:
        self.failed += len(failed)
        for key, error in failed.items():
            self.tell(f"{key} could not be deleted: {error}")

    def tell(self, problem: str) -> None:
        if len(self.problems) < TOLD_PROBLEMS:
            self.problems.append(problem)

    def by_kind(self) -> dict[ObjectKind, Tally]:
        found: dict[ObjectKind, Tally] = {}
        for (_, kind), tally in self.garbage.items():
            found[kind] = found.get(kind, Tally()).plus(tally.objects, tally.size_bytes)
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "plan_only": self.plan_only,
            "phase": str(self.phase),
            "horizon_ms": self.horizon_ms,
            "entries_purged": self.entries_purged,
            "listed": self.listed,
            "young": self.young,
            "foreign": self.foreign,
            "garbage": [
                {"cause": str(cause), "kind": str(kind), "objects": tally.objects, "size_bytes": tally.size_bytes}
                for (cause, kind), tally in sorted(self.garbage.items())
            ],
            "objects": self.total.objects,
            "size_bytes": self.total.size_bytes,
            "saved_usd_month": self.saved_usd_month,
            "undecided": {"objects": self.undecided.objects, "size_bytes": self.undecided.size_bytes},
            "failed": self.failed,
            "records_left": self.records_left,
            "problems": list(self.problems),
            "gave_up": self.gave_up,
        }
