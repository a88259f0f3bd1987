"""`streamhouse cost`: what the requests and the stored bytes of a cluster cost on S3, and what causes it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from streamhouse.app.costs import (
    ProcessCost,
    StoredCost,
    check_address,
    costs_by_process,
    requests_by_topic,
    stored_costs,
)
from streamhouse.app.logs import set_up_logs
from streamhouse.app.maintenance_passes import MaintenancePasses, PassEnd, run_pass
from streamhouse.cli.conventions import emit, note
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import Output, OutputOption, progress, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidRequest
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.settings import LogLevel, Settings
from streamhouse.core.urls import mask_url
from streamhouse.metadata.contract import Topic
from streamhouse.objectstore.metering import request_cost_usd, storage_cost_usd_month
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.topic_requests import OTHER_NAME, PARTS_PER_REQUEST, SHARED_NAME

_MONTH_S: Final = 30 * 86_400
_LONG_ENOUGH_S: Final = 3_600
"""The requests of a shorter time say little of a month."""
_NAMED: Final = 5  # processes in one sentence; the rows name all
_NO_TOPIC: Final = "(no topic)"
_ESTIMATE: Final = (
    "an estimate: list prices of S3 Standard in us-east-1, without transfer, tax and discounts; requests count from the"
    " start of each process"
)


class CostBy(StrEnum):
    TOPIC = "topic"
    PREFIX = "prefix"
    PROCESS = "process"


_COLUMNS: Final[Mapping[CostBy, tuple[str, ...]]] = {
    CostBy.TOPIC: (
        *("topic", "partitions", "entries", "log_bytes", "stored_bytes", "storage_usd_per_month"),
        *("writes", "lists", "reads", "request_cost_usd"),
    ),
    CostBy.PREFIX: ("prefix", "objects", "stored_bytes", "storage_usd_per_month"),
    CostBy.PROCESS: ("process", "address", "writes", "lists", "reads", "request_cost_usd", "up_s", "problem"),
}
"""The fields of a row that a table shows. JSON has all."""


@dataclass(slots=True)
class _Report:
    """What was found; a part is None when it was not asked for."""

    processes: list[ProcessCost] | None = None
    stored: StoredCost | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)


def register(app: typer.Typer) -> None:
    app.command("cost")(takes_settings(cost))


def cost(
    chosen: ChosenSettings,
    by: Annotated[
        CostBy | None, typer.Option("--by", help="Show what each topic, prefix or process causes; else sums alone.")
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="HOST:PORT", help="Ask this process too, a compactor say. Repeatable."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Estimate what the requests and the stored bytes of the cluster cost on S3, and show what causes it.

    Requests are those that live processes have counted since their start; `--by topic` divides them between topics.
    What is stored is listed, which costs one request for 1,000 objects; `--by process` lists nothing.
    """
    settings = chosen.load().settings
    for each in address or ():
        check_address(each)
    if address and by is CostBy.PREFIX:
        raise InvalidRequest(f"--by {by} asks no process, so --address has no effect", hint="leave one of them out")
    log = settings.log
    set_up_logs(replace(log, level=LogLevel.WARNING) if log.level is LogLevel.INFO else log)
    report = _Report()

    async def work(maintenance: MaintenancePasses, topics: list[Topic]) -> None:
        await _find(report, by, settings, maintenance, topics, address or [])

    with progress("counting what is stored"):
        end = asyncio.run(run_pass(settings, None, work, clock=SystemClock(), randomness=SystemRandomness()))
    if end.error is not None:
        raise end.error
    if end.interrupted:
        note("interrupted: nothing is shown, because the sums are not complete")
        raise typer.Exit(ExitCode.INTERRUPTED)
    _show(report, by, end, output, settings)
    if by is CostBy.PROCESS and not _answered(report):
        raise typer.Exit(ExitCode.UNAVAILABLE)


async def _find(
    report: _Report,
    by: CostBy | None,
    settings: Settings,
    maintenance: MaintenancePasses,
    topics: list[Topic],
    addresses: list[str],
) -> None:
    if by is not CostBy.PREFIX:
        report.processes = await costs_by_process(
            maintenance, alive_within_ms=settings.agent.liveness_timeout_ms, more=addresses
        )
    if by is not CostBy.PROCESS:
        report.stored = await stored_costs(maintenance, topics if by is CostBy.TOPIC else [])
    match by:
        case CostBy.PROCESS:
            report.rows = [_process_row(each) for each in report.processes or ()]
        case CostBy.PREFIX:
            report.rows = _prefix_rows(report.stored)
        case CostBy.TOPIC:
            report.rows = _topic_rows(report.stored, report.processes or [])


# Rows.


def _process_row(cost: ProcessCost) -> dict[str, Any]:
    return {
        "process": cost.process,
        "address": cost.address,
        **_request_fields(None if cost.problem else cost.requests),
        "request_cost_usd_per_month": _per_month(cost),
        "up_s": None if cost.up_s is None else round(cost.up_s),
        "problem": cost.problem or None,
    }


def _request_fields(requests: Mapping[Operation, float] | None) -> dict[str, Any]:
    """None: they are not known."""
    if requests is None:
        return dict.fromkeys(("writes", "lists", "reads", "requests", "request_cost_usd"))
    counts = {operation.value: requests.get(operation, 0) for operation in Operation}
    return {
        "writes": counts["put"] + counts["multipart"],
        "lists": counts["list"],
        "reads": counts["get"] + counts["range_get"] + counts["head"],
        "requests": counts,
        "request_cost_usd": request_cost_usd(requests),
    }


def _per_month(cost: ProcessCost) -> float | None:
    """At the rate since its start; None while that is too short a time."""
    if cost.up_s is None or cost.up_s < _LONG_ENOUGH_S:
        return None
    return cost.request_cost_usd / cost.up_s * _MONTH_S


def _prefix_rows(stored: StoredCost | None) -> list[dict[str, Any]]:
    assert stored is not None
    return [
        {
            "prefix": prefix,
            "objects": usage.objects,
            "stored_bytes": usage.bytes,
            "storage_usd_per_month": storage_cost_usd_month(usage.bytes),
        }
        for prefix, usage in stored.prefixes.items()
    ]


def _topic_rows(stored: StoredCost | None, processes: list[ProcessCost]) -> list[dict[str, Any]]:
    """The topic that stores most first; then deleted topics that made requests; what is no topic's last."""
    assert stored is not None
    shares = stored.shares
    answered = [each for each in processes if not each.problem]
    parts = requests_by_topic(answered)

    def requests(name: str) -> dict[str, Any]:
        counts = {operation: count / PARTS_PER_REQUEST for operation, count in parts.get(name, {}).items()}
        return _request_fields(counts if answered else None)

    rows = [
        {
            "topic": share.name,
            "partitions": share.partitions,
            "entries": share.entries,
            "log_bytes": share.log_bytes,
            **_stored_fields(share.stored_bytes, share.objects, share.shared_objects),
            **requests(share.name),
        }
        for share in sorted(shares.topics.values(), key=lambda each: (-each.stored_bytes, each.name))
    ]
    no_log = {"partitions": None, "entries": None, "log_bytes": None}
    without_log = parts.keys() - {share.name for share in shares.topics.values()}
    rows += [
        {"topic": name, **no_log, **_stored_fields(None, None, None), **requests(name)}
        for name in sorted(without_log, key=lambda name: (name in (OTHER_NAME, SHARED_NAME), name))
    ]
    unowned = _stored_fields(shares.unowned_bytes, shares.unowned_objects, None)
    return [*rows, {"topic": _NO_TOPIC, **no_log, **unowned, **_request_fields(None)}]


def _stored_fields(size_bytes: int | None, objects: int | None, shared_objects: int | None) -> dict[str, Any]:
    return {
        "stored_bytes": size_bytes,
        "objects": objects,
        "shared_objects": shared_objects,
        "storage_usd_per_month": None if size_bytes is None else storage_cost_usd_month(size_bytes),
    }


# What is shown.


def _summary(report: _Report, end: PassEnd) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if report.processes is not None:
        answered = _answered(report)
        months = [_per_month(each) for each in answered]
        found["processes"] = len(answered)
        found["unreachable_processes"] = len(report.processes) - len(answered)
        found["request_cost_usd"] = sum(each.request_cost_usd for each in answered) if answered else None
        found["request_cost_usd_per_month"] = _sum_of_all(months)
    if report.stored is not None:
        total = report.stored.total
        found["stored_objects"] = total.objects
        found["stored_bytes"] = total.bytes
        found["storage_usd_per_month"] = storage_cost_usd_month(total.bytes)
        found["list_requests_of_this_command"] = report.stored.list_requests
        found["metadata_calls_of_this_command"] = report.stored.metadata_calls
    found["cost_of_this_command_usd"] = end.request_cost_usd
    return found


def _answered(report: _Report) -> list[ProcessCost]:
    return [each for each in report.processes or () if not each.problem]


def _sum_of_all(figures: list[float | None]) -> float | None:
    """None when one of them is not known, or there is none."""
    known = [each for each in figures if each is not None]
    return sum(known) if figures and len(known) == len(figures) else None


def _notes(report: _Report, by: CostBy | None, settings: Settings) -> list[str]:
    notes = [f"{_where(each)} is not in the sums: {each.problem}" for each in report.processes or () if each.problem]
    if report.processes is not None and not _answered(report):
        notes.append(_why_unknown(report.processes, settings))
    if by is CostBy.TOPIC:
        left_out = 0 if report.stored is None else report.stored.shares.blobs_left_out
        if left_out:
            notes.append(f"{left_out:,} entries lie in shared blobs beyond the limit; those blobs count as {_NO_TOPIC}")
    return [*notes, _ESTIMATE]


def _why_unknown(asked: list[ProcessCost], settings: Settings) -> str:
    if asked:
        named = ", ".join(_where(each) for each in asked[:_NAMED])
        why = f"no process answered (asked: {named}{', …' if len(asked) > _NAMED else ''})"
    else:
        why = f"no live agent is registered in {mask_url(settings.metadata.url)}, so no process was asked"
    return (
        f"what requests cost is unknown: {why}; start an agent (`streamhouse dev` or `streamhouse agent`, with the same"
        " settings), or name a process that runs with --address HOST:PORT"
    )


def _where(cost: ProcessCost) -> str:
    return cost.process if cost.address in (None, cost.process) else f"{cost.process} at {cost.address}"


def _show(report: _Report, by: CostBy | None, end: PassEnd, output: Output, settings: Settings) -> None:
    summary, notes = _summary(report, end), _notes(report, by, settings)
    if output is Output.JSON:
        show_json({"by": by, "rows": report.rows, "summary": summary, "notes": notes})
    else:
        if by is not None:
            columns = _COLUMNS[by]
            show_table(columns, [[_cell(column, row[column]) for column in columns] for row in report.rows])
            emit("")
        show_table(
            ["what", "value"],
            [[what, "unknown" if value is None else _cell(what, value)] for what, value in summary.items()],
        )
    for words in notes:
        note(words)


def _cell(what: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"${value:,.6f}" if "usd" in what else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
