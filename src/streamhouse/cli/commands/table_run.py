"""`streamhouse table run`: the command that starts Spark for tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamhouse.cli.manners import note, progress
from streamhouse.cli.setting_flags import ChosenSettings
from streamhouse.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamhouse.spark.tables.service import TableService

_EXTRAS = ("pyspark", "pyarrow", "pandas", "psycopg", "deltalake", "pyiceberg", "sqlalchemy", "fastavro")


def run(
    chosen: ChosenSettings,
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME…]", help="Only these.")] = None,
    master: Annotated[
        str, typer.Option("--master", help="Where Spark runs: local[*], spark://host:7077 or sc://host:15002.")
    ] = "local[*]",
    checkpoints: Annotated[
        str | None,
        typer.Option("--checkpoints", metavar="DIR", help="Where checkpoints lie; DATA_DIR/checkpoints if not given."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Read what there is, and end.")] = False,
    fast_start: Annotated[
        bool, typer.Option("--fast-start", help="Ready some seconds sooner, slower at heavy work; for trying out.")
    ] = False,
) -> None:
    """Keep wanted tables up to date: start, watch, start again after failures, go on where each table stands."""
    import signal
    import threading

    service = open_tables(chosen, checkpoints)
    for name in names or []:
        service.get(name)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with progress("starting Spark"):
        spark = _spark(master, fast_start)
    note(f"tables are filled on {master}; checkpoints in {service.place.checkpoints}")
    try:
        service.run(spark, stopping, only=names or (), once=once, tell=note)
    finally:
        spark.stop()


def _spark(master: str, fast_start: bool) -> SparkSession:
    from streamhouse.spark.sessions import session

    config = {"spark.sql.session.timeZone": "UTC"}
    if master.startswith("sc://"):
        return session(remote=master, config=config)
    return session(master=master, app_name="streamhouse tables", fast_start=fast_start, config=config)


def open_tables(chosen: ChosenSettings, checkpoints: str | None = None) -> TableService:
    try:
        from streamhouse.spark.pipelines.place import place_of
        from streamhouse.spark.tables.service import TableService
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        raise ConfigError("tables need Spark", hint="pip install 'streamhouse[spark,tables]'") from error
    return TableService(place_of(chosen.load().settings, checkpoints))
