"""The `streamhouse` command. To add a command: one file in commands/ with ``register(app)``, one line below."""

from __future__ import annotations

from typing import Annotated

import typer

from streamhouse import __version__
from streamhouse.cli import conventions
from streamhouse.cli.commands import chaos, config, demo, pipeline, serve, spark, status, table, topic_configs

app = typer.Typer(
    name="streamhouse",
    cls=conventions.CommandGroup,
    help="S3-native, Kafka-compatible event streaming.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, secrets among them
    context_settings={"help_option_names": ["--help", "-h"]},
)

chaos.register(app)
config.register(app)
demo.register(app)
pipeline.register(app)
serve.register(app)
spark.register(app)
status.register(app)
table.register(app)
topic_configs.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        conventions.emit(f"streamhouse {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")] = False,
) -> None:
    conventions.set_verbose(verbose)


def main() -> None:
    conventions.run(app)
