"""What a setting's value may be. A kind parses what a source gave, formats it back, and says what it expects.

A raw value is text (a flag, a variable, a TOML string) or a TOML scalar. A kind raises InvalidSetting without knowing
where the value came from; ``resolve`` adds that. A secret never appears in a message of a kind.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.suggest import did_you_mean
from streamhouse.core.units import format_duration, format_size, parse_duration, parse_size
from streamhouse.core.urls import MASK, local_path, mask_url, scheme_of

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_TEXT_CHARS: Final = 4096  # a path or URL longer than this is a pasted mistake
MAX_ADDRESSES: Final = 16  # listeners of one process; a machine has a handful of networks
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ValueKind(Protocol[T]):
    """``name`` and ``allowed`` go into the reference; ``example`` goes into errors."""

    @property
    def name(self) -> str: ...
    @property
    def allowed(self) -> str: ...
    @property
    def example(self) -> str: ...
    def parse(self, raw: object) -> T: ...
    def format(self, value: T) -> str: ...


def shown(value: object) -> str:
    """A value inside a message, short enough to read."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}…{text[-1]}"


def _text_of(raw: object, *, hint: str) -> str:
    if not isinstance(raw, str):
        raise InvalidSetting(f"expected text, got {_type_name(raw)}", hint=hint)
    if not raw.strip():
        raise InvalidSetting("it is empty", hint=hint)
    if len(raw) > MAX_TEXT_CHARS:
        raise InvalidSetting(f"it is longer than {MAX_TEXT_CHARS} characters", hint=hint)
    if _CONTROL.search(raw):
        raise InvalidSetting("it holds a control character", hint=hint)
    return raw


def _type_name(raw: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a decimal number", list: "a list", dict: "a table"}
    return names.get(type(raw), f"a {type(raw).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    example: str
    pattern: str = ""
    allowed: str = ""
    secret: bool = False
    name: str = "text"

    def parse(self, raw: object) -> str:
        hint = f"for example {self.example}" if not self.secret else "give it through the environment, not a flag"
        text = _text_of(raw, hint=hint)
        if self.pattern and not re.fullmatch(self.pattern, text):
            value = "the value" if self.secret else shown(text)
            raise InvalidSetting(f"{value} does not fit: {self.allowed}", hint=hint)
        return text

    def format(self, value: str) -> str:
        return MASK if self.secret else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Boolean:
    name: str = "boolean"
    allowed: str = "true or false"
    example: str = "true"

    def parse(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        word = str(raw).strip().lower() if isinstance(raw, str | int) else ""
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise InvalidSetting(f"{shown(raw)} is neither true nor false", hint="write true or false")

    def format(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    at_least_ms: int
    at_most_ms: int
    example: str
    name: str = "duration"

    @property
    def allowed(self) -> str:
        return f"{format_duration(self.at_least_ms)} to {format_duration(self.at_most_ms)}"

    def parse(self, raw: object) -> int:
        value = parse_duration(raw)  # type: ignore[arg-type]  # it refuses every other type itself
        if not self.at_least_ms <= value <= self.at_most_ms:
            raise InvalidSetting(
                f"{shown(raw)} is {self.format(value)}, outside {self.allowed}", hint=f"for example {self.example}"
            )
        return value

    def format(self, value: int) -> str:
        return format_duration(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    at_least_bytes: int
    at_most_bytes: int
    example: str
    name: str = "size"

    @property
    def allowed(self) -> str:
        return f"{format_size(self.at_least_bytes)} to {format_size(self.at_most_bytes)}"

    def parse(self, raw: object) -> int:
        value = parse_size(raw)  # type: ignore[arg-type]  # it refuses every other type itself
        if not self.at_least_bytes <= value <= self.at_most_bytes:
            raise InvalidSetting(
                f"{shown(raw)} is {self.format(value)}, outside {self.allowed}", hint=f"for example {self.example}"
            )
        return value

    def format(self, value: int) -> str:
        return format_size(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    at_least: int
    at_most: int
    example: str
    name: str = "number"

    @property
    def allowed(self) -> str:
        return f"{self.at_least} to {self.at_most}"

    def parse(self, raw: object) -> int:
        hint = f"for example {self.example}"
        text = str(raw).strip() if isinstance(raw, str | int) and not isinstance(raw, bool) else ""
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
            raise InvalidSetting(f"{shown(raw)} is not a whole number", hint=hint)
        value = int(text)
        if not self.at_least <= value <= self.at_most:
            raise InvalidSetting(f"{shown(raw)} is outside {self.allowed}", hint=hint)
        return value

    def format(self, value: int) -> str:
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """One or more host:port, separated by commas. A TOML file may have a list."""

    example: str
    ports_from: int = 1
    name: str = "addresses"
    allowed: str = "host:port, several separated by commas; an IPv6 host in brackets"

    def parse(self, raw: object) -> tuple[Address, ...]:
        hint = f"for example {self.example}"
        items = raw if isinstance(raw, list) else _text_of(raw, hint=hint).split(",")
        if not 1 <= len(items) <= MAX_ADDRESSES:
            raise InvalidSetting(f"{len(items)} addresses are given, 1 to {MAX_ADDRESSES} are allowed", hint=hint)
        return tuple(self._one(_text_of(item, hint=hint).strip(), hint) for item in items)

    def _one(self, text: str, hint: str) -> Address:
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.%a-z]+\]|[^\s/@:,\[\]]{1,253}):([0-9]{1,5})", text)
        if found is None:
            raise InvalidSetting(f"{shown(text)} is not host:port", hint=hint)
        port = int(found[2])
        if not self.ports_from <= port <= 65_535:
            raise InvalidSetting(f"{shown(text)}: a port is {self.ports_from} to 65535", hint=hint)
        return Address(host=found[1].strip("[]"), port=port)

    def format(self, value: tuple[Address, ...]) -> str:
        return ",".join(map(str, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[E]):
    options: type[E]
    example: str
    name: str = "choice"

    @property
    def allowed(self) -> str:
        return ", ".join(option.value for option in self.options)

    def parse(self, raw: object) -> E:
        for option in self.options:
            if isinstance(raw, str) and raw.strip().lower() == option.value:
                return option
        known = [option.value for option in self.options]
        raise InvalidSetting(
            f"{shown(raw)} is none of {self.allowed}",
            hint=did_you_mean(str(raw), known, otherwise=f"for example {self.example}"),
        )

    def format(self, value: E) -> str:
        return value.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A path. Relative ones count from the working directory, whatever source they stand in."""

    example: str
    name: str = "path"
    allowed: str = ""

    def parse(self, raw: object) -> Path:
        text = _text_of(raw, hint=f"for example {self.example}")
        if text.startswith("~"):
            raise InvalidSetting(
                f"{shown(text)} starts with '~', which only a shell expands", hint="write the path in full"
            )
        return Path(text)

    def absolute(self, value: Path, base_dir: Path) -> Path:
        return Path(os.path.normpath(base_dir / value))

    def format(self, value: Path) -> str:
        return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """``schemes`` are served; ``reserved`` ones are known but not built yet, and refused with that word."""

    schemes: tuple[str, ...]
    example: str
    reserved: tuple[str, ...] = ()
    local_schemes: tuple[str, ...] = ("file", "sqlite")
    name: str = "URL"

    @property
    def allowed(self) -> str:
        return ", ".join(f"{scheme}://" for scheme in self.schemes)

    def parse(self, raw: object) -> str:
        text = _text_of(raw, hint=f"for example {self.example}").strip()
        scheme = scheme_of(text)
        if scheme in self.reserved:
            raise InvalidSetting(
                f"{shown(mask_url(text))}: {scheme}:// is reserved, this version cannot open it",
                hint=f"use one of {self.allowed}",
            )
        if scheme not in self.schemes or not text[len(scheme) :].startswith("://"):
            raise InvalidSetting(
                f"{shown(mask_url(text))} starts with none of {self.allowed}", hint=f"for example {self.example}"
            )
        if scheme in self.local_schemes:
            local_path(text)
        return text

    def format(self, value: str) -> str:
        return mask_url(value)


AnyKind = ValueKind[Any]
