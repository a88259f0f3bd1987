"""`streamhouse spark …`: what a Spark cluster needs of us, and what it does for us."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamhouse.cli.commands import spark_maintenance
from streamhouse.cli.conventions import emit, note
from streamhouse.cli.output import progress
from streamhouse.spark.packing import pack as pack_into
from streamhouse.spark.shim import ARCHIVE_DIRECTORY


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="What a Spark cluster needs of StreamHouse.")
    group.command("pack")(pack)
    spark_maintenance.add_commands(group)
    app.add_typer(group, name="spark")


def pack(
    directory: Annotated[Path, typer.Option("--directory", help="Where to write the archive.")] = Path(),
) -> None:
    """Pack StreamHouse and its libraries for executors that do not have them, and print the archive's path.

    It fits machines of the same platform and Python version as this one. `streamhouse.spark.session()` makes and sends
    one by itself; by hand it goes into spark.archives.
    """
    with progress("packing"):
        archive = pack_into(directory.resolve())
    emit(str(archive))
    note(f"by hand: --conf spark.archives={archive}#{ARCHIVE_DIRECTORY}")
