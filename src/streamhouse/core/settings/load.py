"""The edge: finds and reads the TOML file, takes the process's environment and working directory, and resolves.

The file is the one named by the caller (``--config``), else by ``STREAMHOUSE_CONFIG``, else ``streamhouse.toml`` in the
working directory if there is one. Only the last may be missing.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ConfigError, InvalidSetting
from streamhouse.core.limits import MAX_CONFIG_FILE_BYTES
from streamhouse.core.settings.resolve import Resolution, Resolved, resolve
from streamhouse.core.settings.sources import ConfigFile
from streamhouse.core.units import format_size

DEFAULT_FILE: Final = "streamhouse.toml"
CONFIG_VARIABLE: Final = "STREAMHOUSE_CONFIG"


def load_settings(
    *,
    flags: Mapping[str, object] | None = None,
    config_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
) -> Resolution:
    """The settings in force, or the first thing that is wrong with them."""
    return attempt_settings(flags=flags, config_path=config_path, environ=environ, working_dir=working_dir).require()


def attempt_settings(
    *,
    flags: Mapping[str, object] | None = None,
    config_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
) -> Resolved:
    """The settings in force, or everything that is wrong with them. Left out: this process's own surroundings."""
    surroundings = os.environ if environ is None else environ
    here = Path.cwd() if working_dir is None else working_dir
    try:
        file = find_file(config_path=config_path, environ=surroundings, working_dir=here)
    except ConfigError as error:
        return Resolved(resolution=None, problems=(error,))
    resolved = resolve(flags=flags, environ=surroundings, file=file, base_dir=here)
    if resolved.resolution is None or (problem := _file_in_the_way(resolved.resolution)) is None:
        return resolved
    return Resolved(resolution=None, problems=(problem,))


def _file_in_the_way(resolution: Resolution) -> InvalidSetting | None:
    """The data directory may be missing, but it must be possible to make it."""
    data_dir = resolution.settings.data_dir
    nearest = next((path for path in (data_dir, *data_dir.parents) if os.path.exists(path)), None)
    if nearest is None or os.path.isdir(nearest):
        return None
    what = "a file" if nearest == data_dir else f"inside {nearest}, which is a file"
    return InvalidSetting(
        f"data_dir from {resolution.origins['data_dir']} must be a directory; {data_dir} is {what}",
        hint="name a directory with --data-dir or STREAMHOUSE_DATA_DIR; it is made if it does not exist",
    )


def find_file(*, config_path: Path | None, environ: Mapping[str, str], working_dir: Path) -> ConfigFile | None:
    variable = environ.get(CONFIG_VARIABLE, "")
    if config_path is not None:
        return _read(working_dir / config_path, named_by="--config")
    if variable:
        return _read(working_dir / variable, named_by=f"environment {CONFIG_VARIABLE}")
    default = working_dir / DEFAULT_FILE
    return _read(default, named_by="the working directory") if os.path.lexists(default) else None


def _read(path: Path, *, named_by: str) -> ConfigFile:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_CONFIG_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidSetting(
            f"cannot read the configuration file {path}: {error.strerror}", hint=f"it is named by {named_by}"
        ) from error
    if len(content) > MAX_CONFIG_FILE_BYTES:
        raise InvalidSetting(f"the configuration file {path} is larger than {format_size(MAX_CONFIG_FILE_BYTES)}")
    try:
        return ConfigFile(path=path, table=tomllib.loads(content.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"the configuration file {path} is not UTF-8 (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"the configuration file {path} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise InvalidSetting(f"the configuration file {path} is nested too deeply") from error
