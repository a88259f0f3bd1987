"""`streamhouse pipeline run` and `validate`: the commands that start Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamhouse.cli.commands.spark_runner import (
    Checkpoints,
    FastStart,
    Master,
    RunProgress,
    begin_again,
    log_to_stderr,
    open_application,
    shows_progress,
    stop_signals,
)
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.manners import note, progress
from streamhouse.cli.output import Output, OutputOption, show_json, show_table
from streamhouse.cli.setting_flags import ChosenSettings
from streamhouse.core.errors import ConfigError, InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamhouse.spark.pipelines.catalog import StoredPipeline
    from streamhouse.spark.pipelines.runner import Shown
    from streamhouse.spark.pipelines.service import Pipelines
    from streamhouse.spark.pipelines.spec import PipelineSpec

Conf = Annotated[list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. Repeatable.")]


def run(
    chosen: ChosenSettings,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Only these, isolated or not.")] = None,
    master: Master = "local[*]",
    checkpoints: Checkpoints = None,
    conf: Conf = None,
    fast_start: FastStart = False,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when no pipeline is to run any more.")] = False,
    parent: Annotated[
        int | None, typer.Option("--parent", hidden=True, help="End when this process has ended.")
    ] = None,
) -> None:
    """Keep wanted pipelines running: start, watch, start again after failures, resume where their targets stand."""
    from streamhouse.core.clock import SystemClock
    from streamhouse.spark.pipelines.isolated import IsolatedRunners, isolated_reports

    pipelines = open_pipelines(chosen, checkpoints)
    for name in names or []:
        pipelines.get(name)
    log_to_stderr(events=not shows_progress())
    config = _config(conf)
    stopping = stop_signals(parent)
    isolated = IsolatedRunners(
        _command(chosen, master, checkpoints, conf, fast_start),
        SystemClock(),
        tell=note if shows_progress() else None,
    )
    application = open_application(
        master,
        name="streamhouse pipelines",
        config=config,
        fast_start=fast_start,
        stopping=stopping,
        aside=parent is not None,
    )
    note(f"pipelines run on {master}; checkpoints in {pipelines.place.checkpoints}")
    from streamhouse.spark.pipelines.service import run as run_pipelines

    elsewhere: list[Shown] = []

    def look(pipelines: Sequence[StoredPipeline]) -> None:
        isolated.look(pipelines)
        elsewhere[:] = isolated_reports(pipelines)

    with RunProgress("pipeline") as show:
        went_well = run_pipelines(
            pipelines,
            application,
            stopping,
            only=names or (),
            until_idle=until_idle,
            show=lambda shown: show([*shown, *elsewhere]),
            beside=look if not names else lambda pipelines: None,
        )
    isolated.stop()
    if not went_well:
        begin_again(stopping)
    application.stop()
    note("stopped; every pipeline goes on where its target stands")


def validate(
    chosen: ChosenSettings,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Pipelines that are defined.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="A file of pipelines instead.")
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find out whether pipelines would run: names, types, output mode and target, without reading or writing a row."""
    if bool(names) == (file is not None):
        raise InvalidSetting("say what to validate", hint="names of pipelines, or --file FILE")
    pipelines = open_pipelines(chosen)
    specs = _specs_in(file) if file is not None else [pipelines.get(name).spec for name in names or []]
    rows = _validate(pipelines, specs, master, _config(conf))
    if output is Output.JSON:
        show_json(rows)
    else:
        columns = ["name", "ok", "stateful", "columns", "problem"]
        show_table(columns, [[str(row[column]) for column in columns] for row in rows])
    if not all(row["ok"] for row in rows):
        raise typer.Exit(ExitCode.USAGE)


def open_pipelines(chosen: ChosenSettings, checkpoints: str | None = None) -> Pipelines:
    try:
        from streamhouse.spark.pipelines.place import place_of
        from streamhouse.spark.pipelines.service import Pipelines
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "psycopg", "yaml", "pyarrow", "pandas"):
            raise
        raise ConfigError("pipelines need Spark", hint="pip install 'streamhouse[spark]'") from error
    return Pipelines(place_of(chosen.load().settings, checkpoints))


def _validate(
    pipelines: Pipelines, specs: Sequence[PipelineSpec], master: str, config: dict[str, str]
) -> list[dict[str, object]]:
    from streamhouse.core.errors import StreamHouseError
    from streamhouse.spark.pipelines.validation import validate

    rows: list[dict[str, object]] = []
    application = open_application(master, name="streamhouse validate", config=config, fast_start=True)
    with progress("trying") as say:
        for spec in specs:
            say(f"trying {spec.name}")
            try:
                found = validate(application.session_for(spec.name), spec, pipelines.place)
                columns = ", ".join(f"{name} {kind}" for name, kind in found.columns)
                row = {"ok": True, "stateful": found.is_stateful, "columns": columns, "problem": ""}
            except StreamHouseError as error:
                row = {"ok": False, "stateful": "", "columns": "", "problem": str(error)}
            rows.append({"name": spec.name, **row})
        application.stop()
    return rows


def _specs_in(file: Path) -> list[PipelineSpec]:
    from streamhouse.cli.commands.apply import read_file

    return [each.spec for each in read_file(file)]


def _config(conf: list[str] | None) -> dict[str, str]:
    config: dict[str, str] = {}
    for given in conf or []:
        name, equals, value = given.partition("=")
        if not equals or not name:
            raise InvalidSetting(f"--conf {given[:80]!r} is not NAME=VALUE")
        config[name] = value
    return config


def _command(
    chosen: ChosenSettings, master: str, checkpoints: str | None, conf: list[str] | None, fast_start: bool
) -> list[str]:
    """This very command, for one pipeline: its name is appended."""
    import os

    from streamhouse.core.settings import SCHEMA

    command = [sys.executable, "-m", "streamhouse", "pipeline", "run", "--parent", str(os.getpid()), "--master", master]
    for flag, value in (("--checkpoints", checkpoints), ("--config", chosen.config_path)):
        command += [] if value is None else [flag, str(value)]
    for each in conf or []:
        command += ["--conf", each]
    command += ["--fast-start"] if fast_start else []
    for setting in SCHEMA:
        typed = chosen.flags.get(setting.key)
        if isinstance(typed, bool):
            command.append(setting.flag if typed else f"--no-{setting.flag.removeprefix('--')}")
        elif typed is not None:
            command += [setting.flag, str(typed)]
    return command
