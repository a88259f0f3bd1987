"""What the tests of settings share: a TOML file that was read, and the settings that flags give."""

from __future__ import annotations

from pathlib import Path

from streamhouse.core.errors import ConfigError
from streamhouse.core.settings import Settings, resolve
from streamhouse.core.settings.sources import ConfigFile

HERE = Path("/some where")


def file(**table: object) -> ConfigFile:
    return ConfigFile(path=Path("/etc/streamhouse.toml"), table=table)


def settings(**flags: object) -> Settings:
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return resolve(flags=named, base_dir=HERE).require().settings


def only(problems: tuple[ConfigError, ...]) -> ConfigError:
    assert len(problems) == 1, problems
    return problems[0]
