"""What the checker can find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from simulator.history import Key


class Kind(StrEnum):
    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    WRONG_OFFSET = "wrong offset"
    TORN = "torn batch"
    PHANTOM = "phantom"
    NOT_DENSE = "not dense"
    STALE_EPOCH = "stale epoch"
    STALE_LEADER = "stale leader"
    MISSING_OBJECT = "missing object"
    BAD_OBJECT = "bad object"
    UNSTABLE_READ = "unstable read"
    VANISHED = "vanished"
    CHANGED = "changed"
    TAKEN_EARLY = "taken early"
    WENT_BACK = "went back"
    GARBAGE = "garbage"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimAnomaly:
    kind: Kind
    key: Key | None
    detail: str

    def __str__(self) -> str:
        where = f" {self.key[0][:8]}/{self.key[1]}" if self.key else ""
        return f"{self.kind}{where}: {self.detail}"
