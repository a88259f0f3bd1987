"""`streamhouse table run`: the command that starts Spark for tables."""

from __future__ import annotations

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
from streamhouse.cli.manners import note
from streamhouse.cli.setting_flags import ChosenSettings
from streamhouse.core.errors import ConfigError

if TYPE_CHECKING:
    from streamhouse.spark.tables.service import TableService

_EXTRAS = ("pyspark", "pyarrow", "pandas", "psycopg", "deltalake", "pyiceberg", "sqlalchemy", "fastavro")


def run(
    chosen: ChosenSettings,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Only these.")] = None,
    master: Master = "local[*]",
    checkpoints: Checkpoints = None,
    once: Annotated[bool, typer.Option("--once", help="Read what there is, and end.")] = False,
    fast_start: FastStart = False,
) -> None:
    """Keep wanted tables up to date: start, watch, start again after failures, go on where each table stands."""
    service = open_tables(chosen, checkpoints)
    for name in names or []:
        service.get(name)
    log_to_stderr(events=not shows_progress())
    stopping = stop_signals()
    application = open_application(
        master, name="streamhouse tables", config={}, fast_start=fast_start, stopping=stopping
    )
    note(f"tables are filled on {master}; checkpoints in {service.place.checkpoints}")
    try:
        with RunProgress("table") as show:
            went_well = service.run(application, stopping, only=names or (), once=once, show=show)
    except BaseException:
        application.stop()
        raise
    if not went_well:
        begin_again(stopping)
    application.stop()
    note("stopped; every table goes on where it stands")


def open_tables(chosen: ChosenSettings, checkpoints: str | None = None) -> TableService:
    try:
        from streamhouse.spark.pipelines.place import place_of
        from streamhouse.spark.tables.service import TableService
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise ConfigError("tables need Spark", hint="pip install 'streamhouse[spark,tables]'") from error
    return TableService(place_of(chosen.load().settings, checkpoints))
