"""Asking before something is removed: on a terminal with a question, anywhere else only with --yes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.manners import note
from streamhouse.core.errors import InvalidSetting

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def consent(what: Sequence[str], *, yes: bool) -> None:
    """Say ``what`` would happen, and end the command unless the person agrees."""
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
