"""What became of each damaged entry, and the sums of a run. Data only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from streamhouse.maintenance.compaction.stats import CompactionStats
from streamhouse.maintenance.repair.damages import JudgedEntry


class RepairOutcome(StrEnum):
    REPAIRED = "repaired"
    """A new object has taken the place of the damaged one, and was verified."""
    REPLACED = "replaced"
    """Retention, compaction or another repair was faster: what stands there now was verified, or nothing does."""
    REPAIRABLE = "repairable"
    """It was only planned: every batch was read and is whole."""
    NOT_REPAIRABLE = "not repairable"
    """Left as it is, because something could be lost."""
    PUT_OFF = "put off"
    """Left as it is for now: another process is at work there. The next run tries again."""
    STILL_DAMAGED = "still damaged"
    """It was written anew, and its records have a fault of their own that could not be seen before."""


_HEALED: Final = frozenset({RepairOutcome.REPAIRED, RepairOutcome.REPLACED})


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRepair:
    judged: JudgedEntry
    outcome: RepairOutcome
    reason: str = ""
    """Why it is not repaired, or not yet."""
    new_object: str = ""
    """The key of the object that was written."""


TellRepair = Callable[[EntryRepair], None]


@dataclass(slots=True, kw_only=True)
class RepairSummary:
    """Counters of a run. Complete when the run has returned."""

    plan_only: bool = False
    entries: int = 0
    """Damaged entries that the run has to look at."""
    left_out: int = 0
    """Damaged entries that are too many for one run."""
    is_index_damaged: bool = False
    """Rows of the metadata store contradict each other: no repair changes that."""
    outcomes: Counter[RepairOutcome] = field(default_factory=Counter)
    rewriting: CompactionStats = field(default_factory=CompactionStats)
    """Bytes that were read and written."""

    @property
    def done(self) -> int:
        return self.outcomes.total()

    @property
    def is_all_healed(self) -> bool:
        """Whether nothing of what the verification has found is left."""
        healed = sum(self.outcomes[outcome] for outcome in _HEALED)
        return healed == self.entries and not self.left_out and not self.is_index_damaged
