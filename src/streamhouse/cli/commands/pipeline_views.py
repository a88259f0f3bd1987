"""How pipelines are shown: rows of tables and documents of JSON, from what the store keeps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamhouse.metadata.contract import WantedState
    from streamhouse.spark.pipelines.catalog import StoredPipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownEvent:
    at: str
    what: str
    place: tuple[int, int]
    """When, and the how manieth at that time: what --follow goes on after."""


def summary(stored: StoredPipeline, now_ms: int) -> dict[str, Any]:
    from streamhouse.spark.pipelines.reports import read_report

    report = read_report(stored.report)
    return {
        "name": stored.name,
        "wanted": stored.wanted.value,
        "state": state_of(stored, now_ms),
        "batch": report.batch,
        "rows_per_second": round(report.rows_per_second, 1),
        "lag": report.lag,
        "target": str(stored.spec.target),
    }


def description(stored: StoredPipeline, now_ms: int) -> dict[str, Any]:
    from streamhouse.spark.pipelines.reports import read_report

    report = read_report(stored.report)
    return {
        **summary(stored, now_ms),
        "rows": report.rows,
        "failures": report.failures,
        "error": report.error,
        "retry_at": None if report.retry_at_ms is None else when(report.retry_at_ms),
        "runner": report.runner,
        "reported_at": when(stored.report_at_ms) if stored.report else None,
        "version": stored.version,
        "generation": stored.generation,
        "checkpoint_version": stored.spec.fingerprint(),
        "created_at": when(stored.created_at_ms),
        "updated_at": when(stored.updated_at_ms),
        "definition": stored.spec.masked_document(),
    }


def deletion_plan(stored: StoredPipeline, checkpoints: Sequence[str], *, keep_progress: bool) -> list[str]:
    """What would go, and what would stay."""
    from streamhouse.spark.pipelines.spec import TargetKind

    target, lines = stored.spec.target, [f"{stored.name}: goes: its definition and log"]
    lines += [f"{stored.name}: goes: the checkpoint {path}" for path in checkpoints]
    if not checkpoints:
        lines.append(f"{stored.name}: no checkpoints are here; say --checkpoints if its runner was told where")
    if target.kind is TargetKind.TABLE or keep_progress:
        lines.append(f"{stored.name}: stays: its progress, in {target}")
    else:
        lines.append(f"{stored.name}: goes: its progress")
    return [*lines, f"{stored.name}: stays: every row in {target}, and the topics it reads"]


def reset_plan(stored: StoredPipeline) -> list[str]:
    return [
        f"{stored.name}: goes, when its runner begins anew: its progress, and its checkpoints up to now",
        f"{stored.name}: stays: every row in {stored.spec.target}; what is read again comes on top of them",
    ]


def events(stored: StoredPipeline, *, after: tuple[int, int]) -> list[ShownEvent]:
    from streamhouse.spark.pipelines.reports import read_report

    found: list[ShownEvent] = []
    count, at_ms = 0, -1
    for event in read_report(stored.report).events:
        count = count + 1 if event.at_ms == at_ms else 1
        at_ms = event.at_ms
        if (at_ms, count) > after:
            found.append(ShownEvent(at=when(at_ms), what=event.what, place=(at_ms, count)))
    return found


def when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Reported(Protocol):
    """A pipeline or a table."""

    @property
    def wanted(self) -> WantedState: ...
    @property
    def report(self) -> str: ...
    @property
    def report_at_ms(self) -> int: ...


def state_of(stored: Reported, now_ms: int) -> str:
    """A runner that was killed cannot say so."""
    from streamhouse.metadata.contract import WantedState
    from streamhouse.spark.pipelines.reports import STALE_MS, State, read_report

    report = read_report(stored.report)
    lively = report.state in (State.STARTING, State.RUNNING, State.FAILED)
    if lively and now_ms - stored.report_at_ms > STALE_MS:
        return "no runner" if stored.wanted is WantedState.RUNNING else State.STOPPED.value
    if not lively and stored.wanted is WantedState.RUNNING and report.state is not State.FINISHED:
        return "waiting"
    return report.state.value
