"""The `streamhouse` command, and the table of its commands.

A command's module imports the platform, which takes longer than `--help` and `--version` may take. So a module is
imported when its command is called, and the table has what `--help` shows of it: the first sentences of the command's
own help, word for word, which a test compares. To add a command: one file in commands/ with ``register(app)``, and one
line in the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import typer
import typer.main
from typer.core import TyperCommand

from streamhouse import __version__
from streamhouse.cli import conventions


class ListedCommand(NamedTuple):
    module: str
    """The file in commands/."""
    help: str


COMMANDS: Final[Mapping[str, ListedCommand]] = {
    "chaos": ListedCommand(
        "chaos", "Let real Kafka clients write and read while agents and stores fail; then check the log and report."
    ),
    "demo": ListedCommand(
        "demo",
        "Run three agents in this process, kill one, stop one, and show which agent leads what and where the data is.",
    ),
    "apply": ListedCommand(
        "pipeline",
        "Create and update pipelines as a file says. The same file again changes nothing; others stay as they are.",
    ),
    "dev": ListedCommand(
        "serve", "Run everything in this process, on SQLite and a local directory unless told otherwise."
    ),
    "agent": ListedCommand(
        "serve", "Run one agent of a fleet: it takes its share of the partitions and gives them back when it stops."
    ),
    "server": ListedCommand(
        "serve", "Run the server; with DISABLE_EMBEDDED_AGENT=1 it leads nothing and leaves that to standalone agents."
    ),
    "status": ListedCommand(
        "status", "Show whether a process is ready, what is wrong with it and what to do, and its main figures."
    ),
    "topic-configs": ListedCommand(
        "topic_configs", "List every topic config: type, default, valid values, and whether it has an effect here."
    ),
    "compact": ListedCommand(
        "maintenance", "Copy small objects of the log into large ones, once; readers and writers may go on."
    ),
    "retain": ListedCommand(
        "maintenance", "Delete the records that retention.ms and retention.bytes no longer keep, once."
    ),
    "vacuum": ListedCommand(
        "maintenance", "Delete for ever the objects that no record of the log is in, once; of all topics together."
    ),
    "verify": ListedCommand(
        "maintenance", "Prove that every record of the log is there and whole, and show what is not."
    ),
    "compactor": ListedCommand(
        "compactor",
        "Run retention, compaction, key compaction and vacuum for the cluster in a process without an agent.",
    ),
    "cost": ListedCommand(
        "cost", "Estimate what the requests and the stored bytes of the cluster cost on S3, and show what causes it."
    ),
    "config": ListedCommand("config", "Show and check the settings."),
    "pipeline": ListedCommand("pipeline", "SQL from topics into topics, tables and PostgreSQL."),
    "spark": ListedCommand("spark", "What a Spark cluster needs of StreamHouse."),
    "table": ListedCommand("table", "Topics as Parquet, Iceberg and Delta tables."),
}


def load(name: str) -> Any:
    """Imports the module of a command and returns the command itself."""
    module = importlib.import_module(f"streamhouse.cli.commands.{COMMANDS[name].module}")
    found = typer.Typer()
    module.register(found)
    return typer.main.get_group(found).commands[name]


class LazyCommand(TyperCommand):
    """Stands in the list of commands. To call the command and to complete its arguments, both typer and the shell ask
    for a context first; they get the context of the command itself."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        assert self.name is not None
        return load(self.name).make_context(*args, **more)


app = typer.Typer(
    name="streamhouse",
    cls=conventions.CommandGroup,
    help="S3-native, Kafka-compatible event streaming.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, secrets among them
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _never_called() -> None:
    """Typer wants a function for each command; ``LazyCommand`` loads the real one."""


for _name, _listed in COMMANDS.items():
    app.command(_name, cls=LazyCommand, help=_listed.help)(_never_called)


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
