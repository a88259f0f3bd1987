"""Gives a command every setting as a flag, from the one declaration each setting has.

    @takes_settings
    def serve(chosen: ChosenSettings, port: int = 9092) -> None:
        settings = chosen.load().settings

The command gets --config and one flag per setting besides its own options. Values are passed on as they were typed:
the settings themselves say what fits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from streamhouse.core.settings import SCHEMA, Resolution, Resolved, Setting, attempt_settings, load_settings

PANEL: Final = "Settings (each also as a STREAMHOUSE_… variable or in the TOML file)"
_PARAMETERS: Final = {setting.key.replace(".", "_"): setting for setting in SCHEMA}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSettings:
    """The settings that the command line gives."""

    flags: Mapping[str, object]
    config_path: Path | None

    def load(self) -> Resolution:
        return load_settings(flags=self.flags, config_path=self.config_path)

    def attempt(self) -> Resolved:
        return attempt_settings(flags=self.flags, config_path=self.config_path)


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its settings flags; it receives them as its first parameter, ``chosen``."""
    own = [each for each in inspect.signature(command, eval_str=True).parameters.values() if each.name != "chosen"]

    def run(**given: Any) -> None:
        flags = {setting.key: given.pop(name) for name, setting in _PARAMETERS.items()}
        command(ChosenSettings(flags=flags, config_path=given.pop("config")), **given)

    parameters = [*own, _config_parameter(), *(_parameter(name, setting) for name, setting in _PARAMETERS.items())]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads the flags from here
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def add_group(app: typer.Typer, name: str, help: str, commands: Mapping[str, Callable[..., None]]) -> None:
    """Adds a group of commands, each with its settings flags."""
    group = typer.Typer(help=help, no_args_is_help=True)
    for word, command in commands.items():
        group.command(word)(takes_settings(command))
    app.add_typer(group, name=name)


def _config_parameter() -> inspect.Parameter:
    option = typer.Option(
        "--config", metavar="FILE", help="The TOML file; else $STREAMHOUSE_CONFIG, else ./streamhouse.toml if there."
    )
    return _keyword("config", Annotated[Path | None, option])


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    declared, is_boolean = setting.declaration, setting.kind.name == "boolean"
    spelling = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}" if is_boolean else setting.flag
    option = typer.Option(
        spelling,
        metavar=None if is_boolean else setting.kind.name.upper(),
        help=declared.doc,
        rich_help_panel=PANEL,
        show_default=declared.default or False,
    )
    return _keyword(name, Annotated[bool | None, option] if is_boolean else Annotated[str | None, option])


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
