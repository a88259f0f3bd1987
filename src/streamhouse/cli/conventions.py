"""How every command behaves: where its output goes, how it asks, how it fails, how it stops.

Data goes to stdout and nothing else does. Notes, progress and errors go to stderr, progress only on a terminal. A known
error is one line and an exit code; a traceback appears only with --verbose. Ctrl-C is one line and 130. When the reader
of stdout stops reading (`| head`), the command ends without a message.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from streamhouse.cli.exit_codes import ExitCode, exit_code_for
from streamhouse.core.errors import InvalidSetting, StreamHouseError

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_EXTRAS: Final = {
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "psycopg": "spark",
    "yaml": "spark",
    "deltalake": "tables",
    "pyiceberg": "tables",
    "sqlalchemy": "tables",
    "fastavro": "tables",
    "asyncpg": "postgres",
}
"""The extra that brings a package which is not installed everywhere."""

_verbose = False


def set_verbose(verbose: bool) -> None:
    global _verbose
    _verbose = verbose


def emit(text: str) -> None:
    """Data: one or more lines to stdout."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A note for the user, on stderr, where a script that reads stdout does not see it."""
    sys.stderr.write(f"{text}\n")


def consent(what: Sequence[str], *, yes: bool) -> None:
    """Say ``what`` would happen, and end the command unless the user agrees. Without a terminal, --yes is needed."""
    for line in what:
        note(line)
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidSetting("stdin is not a terminal; pass --yes", hint="nothing was changed")
    sys.stderr.write("go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("nothing was changed")
        raise typer.Exit(ExitCode.FAILURE)


@contextlib.contextmanager
def _ending_quietly() -> Iterator[None]:
    """Turns Ctrl-C and a closed pipe into our exit codes, before typer turns them into others."""
    try:
        yield
    except KeyboardInterrupt:
        note("interrupted")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        raise typer.Exit(ExitCode.CLOSED_PIPE) from None


class CommandGroup(TyperGroup):
    """The root command. Options that print and stop, such as --version, run while the context is made."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _ending_quietly():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with _ending_quietly():
            return super().invoke(ctx)


def run(app: typer.Typer) -> NoReturn:
    """Run the application and leave the process with the exit code that the outcome has."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        sys.exit(ExitCode.CLOSED_PIPE)
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(ExitCode.INTERRUPTED)
    except StreamHouseError as error:
        _explain(f"error: {error}")
        sys.exit(exit_code_for(type(error)))
    except ModuleNotFoundError as error:
        if (extra := _EXTRAS.get((error.name or "").partition(".")[0])) is None:
            _explain_bug(error)
        _explain(f"error: this needs the package {error.name} (pip install 'streamhouse[{extra}]')")
        sys.exit(ExitCode.USAGE)
    except Exception as error:
        _explain_bug(error)
    sys.exit(ExitCode.OK)


def _explain_bug(error: Exception) -> NoReturn:
    _explain(f"error: unexpected {type(error).__name__}: {error}")
    if not _verbose:
        note("this is a bug; run again with --verbose, in front of the command, for the traceback")
    sys.exit(ExitCode.FAILURE)


def _explain(line: str) -> None:
    if _verbose:
        traceback.print_exc(file=sys.stderr)
    note(line)


def _forget_stdout() -> None:
    """The reader has gone. What is still buffered must not raise again when the interpreter flushes at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
