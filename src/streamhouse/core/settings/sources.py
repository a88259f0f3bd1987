"""Flags, environment and TOML tables, read into raw values that remember where they came from.

Precedence is not decided here, and no value is parsed here. A name that is not declared is a problem of its own: it is
reported with its place and the closest known name, never ignored, and never with its value, which may be a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ConfigError, InvalidSetting, UnknownSetting
from streamhouse.core.settings.kinds import Boolean
from streamhouse.core.settings.schema import ENV_PREFIX, Setting
from streamhouse.core.suggest import did_you_mean

NON_SETTING_VARIABLES: Final[Mapping[str, str]] = {
    "STREAMHOUSE_CONFIG": "the TOML file to read when --config is not given",
    "STREAMHOUSE_SERVICE_PORTS": "LOW-HIGH: ports for the servers that tests and `make services-up` start",
    "STREAMHOUSE_OXIA": "the Oxia server binary that tests and `make services-up` start",
    "STREAMHOUSE_PURE": "1 makes pure Python serve even where the compiled modules are there",
}
"""Variables with our prefix that are not settings: they steer how the process is found, built or tested."""

_EVERYTHING: Final = "`streamhouse config show` lists every setting"


class OriginKind(StrEnum):
    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    PROFILE = "profile"
    DERIVED = "derived"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value came from: the kind, and the flag, variable, file or profile that gave it."""

    kind: OriginKind
    detail: str = ""

    def __str__(self) -> str:
        match self.kind:
            case OriginKind.FLAG | OriginKind.ENVIRONMENT | OriginKind.FILE | OriginKind.PROFILE:
                return f"{self.kind.value} {self.detail}"
            case OriginKind.DERIVED:
                return f"default, {self.detail}"
            case OriginKind.DEFAULT:
                return "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawValue:
    setting: Setting
    origin: Origin
    raw: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """A TOML file that was read and parsed."""

    path: Path
    table: Mapping[str, object]


Found = RawValue | ConfigError


def from_flags(flags: Mapping[str, object], schema: tuple[Setting, ...]) -> Iterator[Found]:
    """Flags by setting key (``lease.ttl``). None is a flag that was not given."""
    by_key = {setting.key: setting for setting in schema}
    for key, raw in flags.items():
        if raw is None:
            continue
        setting = by_key.get(key)
        if setting is None:
            flag = "--" + key.replace(".", "-").replace("_", "-")
            known = [each.flag for each in schema]
            yield UnknownSetting(
                f"there is no setting for the flag {flag[:100]}",
                hint=did_you_mean(flag, known, otherwise=_EVERYTHING),
            )
            continue
        yield RawValue(setting=setting, origin=Origin(kind=OriginKind.FLAG, detail=setting.flag), raw=raw)


def from_environment(environ: Mapping[str, str], schema: tuple[Setting, ...]) -> Iterator[Found]:
    """An empty variable counts as not set: that is how compose files and CI systems pass "nothing"."""
    by_variable = {setting.variable: setting for setting in schema}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or variable in NON_SETTING_VARIABLES:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            known = [*by_variable, *NON_SETTING_VARIABLES]
            yield UnknownSetting(
                f"there is no setting for the environment variable {variable[:100]}",
                hint=did_you_mean(variable, known, otherwise=_EVERYTHING),
            )
        elif environ[variable]:
            yield _from_variable(setting, variable, environ[variable])
    for setting in schema:
        yield from _from_alias(setting, environ)


def _from_variable(setting: Setting, variable: str, raw: object) -> RawValue:
    return RawValue(setting=setting, origin=Origin(kind=OriginKind.ENVIRONMENT, detail=variable), raw=raw)


def _from_alias(setting: Setting, environ: Mapping[str, str]) -> Iterator[Found]:
    alias = setting.declaration.alias
    if alias is None or not environ.get(alias.variable):
        return
    try:
        value = Boolean().parse(environ[alias.variable]) != alias.inverted
    except InvalidSetting as error:
        yield InvalidSetting(f"environment {alias.variable}: {error.message}", hint=error.hint)
        return
    own = environ.get(setting.variable, "")
    try:
        agrees = not own or Boolean().parse(own) is value
    except InvalidSetting:
        return  # the variable of our own name is wrong, and is reported as such when it is parsed
    if not agrees:
        yield InvalidSetting(
            f"the environment variables {alias.variable} and {setting.variable} contradict each other",
            hint=f"keep {setting.variable}",
        )
        return
    yield _from_variable(setting, alias.variable, value)


def from_file(file: ConfigFile, schema: tuple[Setting, ...]) -> Iterator[Found]:
    """Yield the settings of a TOML file, which may have top-level keys and one level of sections."""
    by_key = {setting.key: setting for setting in schema}
    sections = {setting.section for setting in schema if setting.section}
    for name, value in file.table.items():
        if name in sections:
            if not isinstance(value, Mapping):
                yield InvalidSetting(
                    f"{file.path}: {name} is a section, not a value", hint=f"write [{name}] and its keys below"
                )
                continue
            for inner, raw in value.items():
                yield _from_key(file, f"{name}.{inner}", raw, by_key)
        else:
            yield _from_key(file, name, value, by_key, sections)


def _from_key(
    file: ConfigFile,
    key: str,
    raw: object,
    by_key: Mapping[str, Setting],
    sections: set[str] | frozenset[str] = frozenset(),
) -> Found:
    setting = by_key.get(key)
    if setting is not None:
        return RawValue(setting=setting, origin=Origin(kind=OriginKind.FILE, detail=str(file.path)), raw=raw)
    what = "section" if isinstance(raw, Mapping) else "setting"
    known = [f"[{section}]" for section in sections] if what == "section" else list(by_key)
    name = f"[{key}]" if what == "section" else key
    return UnknownSetting(
        f"{file.path}: there is no {what} {name[:100]}", hint=did_you_mean(name, known, otherwise=_EVERYTHING)
    )
