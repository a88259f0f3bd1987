"""`streamhouse config`: which settings are in force, where each comes from, and whether they hold together."""

from __future__ import annotations

import typer

from streamhouse.cli.conventions import emit
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import Output, OutputOption, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings, add_group
from streamhouse.core.settings import Resolution, effective


def register(app: typer.Typer) -> None:
    add_group(app, "config", "Show and check the settings.", {"show": show, "check": check})


def show(chosen: ChosenSettings, output: OutputOption = Output.TABLE) -> None:
    """Print every setting in force with its source; secrets are masked."""
    rows = effective(chosen.load())
    if output is Output.JSON:
        show_json([{"key": row.key, "value": row.value, "source": row.source} for row in rows])
    else:
        show_table(["setting", "value", "source"], [[row.key, row.text, row.source] for row in rows])


def check(chosen: ChosenSettings, output: OutputOption = Output.TABLE) -> None:
    """Check all settings without starting anything. Exit code 2 if something is wrong."""
    outcome = chosen.attempt()
    if output is Output.JSON:
        problems = [
            {"error": type(problem).__name__, "message": problem.message, "hint": problem.hint}
            for problem in outcome.problems
        ]
        show_json({"ok": not problems, "problems": problems})
    elif outcome.resolution is not None:
        emit(_summary(outcome.resolution))
    else:
        emit("\n".join(str(problem) for problem in outcome.problems))
    if outcome.problems:
        raise typer.Exit(ExitCode.USAGE)


def _summary(resolution: Resolution) -> str:
    rows, settings = effective(resolution), resolution.settings
    chosen = sum(row.chosen for row in rows)
    return (
        f"ok: {len(rows)} settings, {chosen} chosen, the others by default; "
        f"profile {settings.profile.value}, durability {settings.effective_durability.value}"
    )
