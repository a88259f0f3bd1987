"""`streamhouse compact`, `retain`, `vacuum` and `verify`: one pass of maintenance each, beside agents or without one.

What a pass does is in maintenance_steps.py; here are flags, the questions before it, and what is shown after it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from streamhouse.app.logs import set_up_logs
from streamhouse.app.maintenance_passes import PassEnd, compaction_rules, run_pass
from streamhouse.cli.commands.maintenance_steps import CompactPass, Pass, RetainPass, RowList, VacuumPass
from streamhouse.cli.commands.verify_step import VerifyPass
from streamhouse.cli.conventions import YesOption, consent, emit, note
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import Output, OutputOption, progress_bar, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings, takes_settings
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidRequest
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.settings import LogLevel, LogSettings, Settings
from streamhouse.core.units import format_duration, parse_duration
from streamhouse.core.urls import mask_url
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.verify import VerifyDepth, VerifyOptions

_RULES: Final = CompactionRules()

Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Only these topics; all if none is named.")]
PlanOption = Annotated[bool, typer.Option("--plan", help="Only show what would be done; change nothing.")]


def register(app: typer.Typer) -> None:
    for command in (compact, retain, vacuum, verify):
        app.command(command.__name__)(takes_settings(command))


def compact(
    chosen: ChosenSettings,
    topics: Topics = None,
    plan: PlanOption = False,
    min_entries: Annotated[
        int, typer.Option("--min-entries", help="From this many on, small entries in a row become one object.")
    ] = _RULES.min_entries,
    max_age: Annotated[
        str, typer.Option("--max-age", metavar="TIME", help="Fewer become one once the oldest is older than this.")
    ] = format_duration(_RULES.max_age_ms),
    output: OutputOption = Output.TABLE,
) -> None:
    """Copy small objects of the log into large ones, once; readers and writers may go on.

    Consumers see the same records at the same offsets. The small objects stay until `streamhouse vacuum` deletes them.
    """
    settings = chosen.load().settings
    rules = replace(compaction_rules(settings), min_entries=min_entries, max_age_ms=parse_duration(max_age))
    _run(CompactPass(plan_only=plan, rules=rules), settings, topics, output)


def retain(
    chosen: ChosenSettings, topics: Topics = None, plan: PlanOption = False, output: OutputOption = Output.TABLE
) -> None:
    """Delete the records that retention.ms and retention.bytes no longer keep, once.

    Only topics with `delete` in cleanup.policy lose records. The objects stay until `streamhouse vacuum` deletes them.
    """
    _run(RetainPass(plan_only=plan), chosen.load().settings, topics, output)


def vacuum(
    chosen: ChosenSettings,
    topics: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    plan: PlanOption = False,
    writer_grace: Annotated[
        str | None,
        typer.Option(
            "--writer-grace", metavar="TIME", help="Keep what was uploaded since; else maintenance.writer_grace."
        ),
    ] = None,
    reader_grace: Annotated[
        str | None,
        typer.Option(
            "--reader-grace", metavar="TIME", help="Keep what was in the log since; else maintenance.reader_grace."
        ),
    ] = None,
    yes: YesOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete for ever the objects that no record of the log is in, once; of all topics together.

    It takes no TOPIC: an object may hold records of many topics, and an upload that failed belongs to none.
    """
    if topics:
        raise InvalidRequest(
            f"vacuum takes no topic ({', '.join(topics)[:200]}): an object may hold records of many topics",
            hint="run it without one; --plan shows what it would delete",
        )
    settings = chosen.load().settings
    graces = settings.maintenance
    options = VacuumOptions(
        writer_grace_ms=graces.writer_grace_ms if writer_grace is None else parse_duration(writer_grace),
        reader_grace_ms=graces.reader_grace_ms if reader_grace is None else parse_duration(reader_grace),
    )
    if not plan:
        uploaded, left = format_duration(options.writer_grace_ms), format_duration(options.reader_grace_ms)
        what = (
            f"deletes for ever from {mask_url(settings.store.url)}: uploads older than {uploaded} that were not"
            f" committed, and objects whose last record left the log more than {left} ago"
        )
        consent([what], yes=yes)
    _run(VacuumPass(plan_only=plan, options=options), settings, None, output)


def verify(
    chosen: ChosenSettings,
    topics: Topics = None,
    plan: PlanOption = False,
    quick: Annotated[bool, typer.Option("--quick", help="Metadata and sizes of objects; reads no record.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every record too: ten times the CPU.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write anew what is damaged while all of its records are whole.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Prove that every record of the log is there and whole, and show what is not.

    It reads all bytes of the log. Exit code 11 when damage is left at the end. It changes nothing without --repair, and
    with it only what loses nothing; --repair --plan verifies too, and shows what would be repaired.
    """
    if quick and deep:
        raise InvalidRequest("--quick and --deep were both given", hint="give one of them, or none")
    if quick and repair:
        raise InvalidRequest(
            "--quick and --repair were both given: only a verification that reads records can say what is whole",
            hint="leave --quick out",
        )
    depth = VerifyDepth.QUICK if quick else VerifyDepth.DEEP if deep else VerifyDepth.BYTES
    step = VerifyPass(plan_only=plan, options=VerifyOptions(depth=depth), repair=repair)
    _run(step, chosen.load().settings, topics, output)


# What they share.


def _run(step: Pass, settings: Settings, topics: list[str] | None, output: Output) -> None:
    set_up_logs(_quieter(settings.log))
    with progress_bar(step.doing) as tell:
        end = asyncio.run(
            run_pass(
                settings,
                topics or None,
                lambda maintenance, chosen: step.work(maintenance, chosen, tell),
                clock=SystemClock(),
                randomness=SystemRandomness(),
            )
        )
    if output is Output.JSON:
        show_json(_document(step, end))
    else:
        _show(step, end)
    for words in step.notes:
        note(words)
    if end.error is not None:
        raise end.error
    code = step.exit_code()
    if end.interrupted and code is not ExitCode.DAMAGED:
        rest = "verify begins anew" if step.name == "verify" else "the next pass does the rest"
        note(f"interrupted: what is shown was done, and what was under way may be; {rest}")
        code = ExitCode.INTERRUPTED
    if code is not ExitCode.OK:
        raise typer.Exit(code)


def _quieter(log: LogSettings) -> LogSettings:
    """At level info an agent logs each step. Here the table has the steps."""
    return replace(log, level=LogLevel.WARNING) if log.level is LogLevel.INFO else log


def _document(step: Pass, end: PassEnd) -> dict[str, Any]:
    document = {
        "pass": step.name,
        "plan_only": step.plan_only,
        "ended": _ended(end),
        "error": None if end.error is None else str(end.error),
        "summary": {**step.summary(), "request_cost_usd": end.request_cost_usd},
        step.rows_are: step.rows,
        "rows_left_out": step.rows_left_out,
        "notes": step.notes,
    }
    for more in step.more_rows:
        document |= {more.name: more.rows, f"{more.name}_left_out": more.left_out}
    return document


def _ended(end: PassEnd) -> str:
    if end.error is not None:
        return "failed"
    return "interrupted" if end.interrupted else "complete"


def _show(step: Pass, end: PassEnd) -> None:
    first = RowList(
        name=step.rows_are,
        columns=step.columns,
        cut=step.cut,
        not_on_a_terminal=step.not_on_a_terminal,
        rows=step.rows,
        left_out=step.rows_left_out,
    )
    for listed in (first, *step.more_rows):
        if listed.rows:
            _show_rows(listed)
    facts = {
        "pass": f"{step.name}, plan only: nothing was changed" if step.plan_only else step.name,
        "ended": _ended(end),
        **step.summary(),
        "request_cost_usd": end.request_cost_usd,
    }
    show_table(["what", "value"], [[what, _cell(what, value)] for what, value in facts.items()])


def _show_rows(listed: RowList) -> None:
    show_table(
        listed.columns,
        [[_cell(column, row.get(column)) for column in listed.columns] for row in listed.rows],
        cut=listed.cut,
        not_on_a_terminal=listed.not_on_a_terminal,
    )
    if listed.left_out:
        emit(f"and {listed.left_out:,} more")
    emit("")


def _cell(what: str, value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"${round(value, 6) + 0.0:,.6f}"
    if isinstance(value, int) and not what.endswith(("_offset", "_ms", "partition")):
        return f"{value:,}"
    return str(value)
