"""What ``/readyz`` says of a process. Pure; app/health.py finds it out.

ready       200   it serves clients, and nothing is wrong
degraded    200   it serves clients, but has a problem that moving clients to another agent would not solve
not ready   503   it cannot serve: it starts or stops, a store is away, or its disk takes no writes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class Readiness(StrEnum):
    READY = "ready"
    DEGRADED = "degraded"
    NOT_READY = "not ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthProblem:
    what: str
    """The part that does not work: "the object store s3://bucket"."""
    problem: str
    since_ms: int
    """The time at which the problem began, by the wall clock."""
    what_to_do: str
    blocks: bool
    """Whether the process cannot serve clients because of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    process: str
    """The name that people read: "agent a-1", "server without an agent"."""
    problems: Sequence[HealthProblem] = ()

    @property
    def state(self) -> Readiness:
        if any(problem.blocks for problem in self.problems):
            return Readiness.NOT_READY
        return Readiness.DEGRADED if self.problems else Readiness.READY

    @property
    def ready(self) -> bool:
        return self.state is not Readiness.NOT_READY

    def as_json(self, *, now_ms: int) -> dict[str, object]:
        return {
            "state": self.state.value,
            "process": self.process,
            "problems": [
                {
                    "what": each.what,
                    "problem": each.problem,
                    "since": _utc(each.since_ms),
                    "for_s": max(0, now_ms - each.since_ms) // 1000,
                    "what_to_do": each.what_to_do,
                    "blocks": each.blocks,
                }
                for each in self.problems
            ],
        }


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
