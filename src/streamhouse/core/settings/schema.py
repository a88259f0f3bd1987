"""How a setting is declared, and everything that follows from the declaration.

A setting is one line in a dataclass of declared.py:

    ttl_ms: int = duration("30s", at_least="1s", at_most="1h", doc="…", why="…")

inside the section ``lease``. From it follow the key ``lease.ttl``, the flag ``--lease-ttl``, the variable
``STREAMHOUSE_LEASE_TTL``, ``ttl`` under ``[lease]`` in the TOML file, the attribute ``settings.lease.ttl_ms`` and a row
in the reference. A duration's attribute ends in ``_ms`` because the integer is milliseconds; its key does not, because
the value carries its unit. A size ends in ``_bytes`` in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_type_hints

from streamhouse.core.settings.kinds import (
    Address,
    Addresses,
    AnyKind,
    Boolean,
    Choice,
    Directory,
    Duration,
    Number,
    Size,
    Text,
    Url,
)
from streamhouse.core.units import parse_duration, parse_size

ENV_PREFIX: Final = "STREAMHOUSE_"
DATA_DIR: Final = "{data_dir}"
"""A default may contain this text, which stands for the value of ``data_dir``."""

_METADATA: Final = "streamhouse.setting"
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvAlias:
    """A variable without our prefix that sets it, too."""

    variable: str
    inverted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What a setting's line says; the name is added when the schema is collected."""

    kind: AnyKind
    default: str | None  # as one would write it in a file; None = unset
    doc: str
    why: str
    fast: str | None = None
    cheap: str | None = None
    single_node: str | None = None
    secret: bool = False
    alias: EnvAlias | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting with all its names."""

    section: str  # empty at the top level
    attribute: str
    name: str
    declaration: Declaration

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def flag(self) -> str:
        return "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.key.replace(".", "_").upper()

    @property
    def kind(self) -> AnyKind:
        return self.declaration.kind


def collect(root: type[Any]) -> tuple[Setting, ...]:
    """Every setting of a settings class, in the order of declaration."""
    return tuple(_collect(root, section=""))


def _collect(owner: type[Any], *, section: str) -> Iterator[Setting]:
    hints = get_type_hints(owner)
    for each in fields(owner):
        declaration = _declaration(each)
        if declaration is not None:
            yield Setting(
                section=section,
                attribute=each.name,
                name=_public_name(each.name, declaration.kind),
                declaration=declaration,
            )
            continue
        nested = hints[each.name]
        if section or not is_dataclass(nested):
            raise TypeError(f"{owner.__name__}.{each.name} is neither a setting nor a section")
        yield from _collect(cast("type[Any]", nested), section=each.name)


def _declaration(each: Field[Any]) -> Declaration | None:
    found = each.metadata.get(_METADATA)
    return found if isinstance(found, Declaration) else None


def _public_name(attribute: str, kind: AnyKind) -> str:
    suffix = {"duration": "_ms", "size": "_bytes"}.get(kind.name, "")
    if not attribute.endswith(suffix):
        raise TypeError(f"the attribute {attribute} of a {kind.name} must end in {suffix}")
    return attribute.removesuffix("_ms") if kind.name == "duration" else attribute


# The words of a declaration. Each returns what the attribute will hold, so that mypy checks the annotation against it;
# there is no dataclass default, because only ``resolve`` knows what applies.


def _declare(declaration: Declaration, *, visible: bool = True) -> Any:
    for text in (declaration.default, declaration.fast, declaration.cheap, declaration.single_node):
        if text is not None and DATA_DIR not in text:
            declaration.kind.parse(text)
    return field(repr=visible, metadata={_METADATA: declaration})


def text(default: str, *, example: str, doc: str, why: str, pattern: str = "", allowed: str = "") -> str:
    kind = Text(example=example, pattern=pattern, allowed=allowed)
    return cast("str", _declare(Declaration(kind=kind, default=default, doc=doc, why=why)))


def optional_text(
    *, example: str, doc: str, why: str, pattern: str = "", allowed: str = "", secret: bool = False
) -> str | None:
    kind = Text(example=example, pattern=pattern, allowed=allowed, secret=secret)
    declaration = Declaration(kind=kind, default=None, doc=doc, why=why, secret=secret)
    return cast("str | None", _declare(declaration, visible=not secret))


def boolean(default: bool, *, doc: str, why: str, alias: EnvAlias | None = None) -> bool:
    word = "true" if default else "false"
    return cast("bool", _declare(Declaration(kind=Boolean(), default=word, doc=doc, why=why, alias=alias)))


def optional_boolean(*, doc: str, why: str) -> bool | None:
    return cast("bool | None", _declare(Declaration(kind=Boolean(), default=None, doc=doc, why=why)))


def duration(
    default: str,
    *,
    at_least: str,
    at_most: str,
    doc: str,
    why: str,
    fast: str | None = None,
    single_node: str | None = None,
) -> int:
    kind = Duration(at_least_ms=parse_duration(at_least), at_most_ms=parse_duration(at_most), example=default)
    declaration = Declaration(kind=kind, default=default, doc=doc, why=why, fast=fast, single_node=single_node)
    return cast("int", _declare(declaration))


def size(
    default: str,
    *,
    at_least: str | int,
    at_most: str | int,
    doc: str,
    why: str,
    single_node: str | None = None,
) -> int:
    kind = Size(at_least_bytes=parse_size(at_least), at_most_bytes=parse_size(at_most), example=default)
    declaration = Declaration(kind=kind, default=default, doc=doc, why=why, single_node=single_node)
    return cast("int", _declare(declaration))


def number(
    default: int,
    *,
    at_least: int,
    at_most: int,
    doc: str,
    why: str,
    fast: int | None = None,
    cheap: int | None = None,
    single_node: int | None = None,
) -> int:
    kind = Number(at_least=at_least, at_most=at_most, example=str(default))
    declaration = Declaration(
        kind=kind,
        default=str(default),
        doc=doc,
        why=why,
        fast=_text_of(fast),
        cheap=_text_of(cheap),
        single_node=_text_of(single_node),
    )
    return cast("int", _declare(declaration))


def _text_of(number: int | None) -> str | None:
    return None if number is None else str(number)


def addresses(default: str, *, ports_from: int, doc: str, why: str) -> tuple[Address, ...]:
    kind = Addresses(example=default, ports_from=ports_from)
    return cast("tuple[Address, ...]", _declare(Declaration(kind=kind, default=default, doc=doc, why=why)))


def optional_addresses(*, example: str, doc: str, why: str) -> tuple[Address, ...] | None:
    declaration = Declaration(kind=Addresses(example=example), default=None, doc=doc, why=why)
    return cast("tuple[Address, ...] | None", _declare(declaration))


def choice(default: E, *, doc: str, why: str) -> E:
    kind = Choice(options=type(default), example=default.value)
    return cast("E", _declare(Declaration(kind=kind, default=default.value, doc=doc, why=why)))


def directory(default: str, *, doc: str, why: str) -> Path:
    kind = Directory(example=default.replace(DATA_DIR, "/var/lib/streamhouse"))
    return cast("Path", _declare(Declaration(kind=kind, default=default, doc=doc, why=why)))


def url(
    default: str, *, schemes: tuple[str, ...], example: str, doc: str, why: str, reserved: tuple[str, ...] = ()
) -> str:
    kind = Url(schemes=schemes, reserved=reserved, example=example)
    return cast("str", _declare(Declaration(kind=kind, default=default, doc=doc, why=why), visible=False))


def optional_url(*, schemes: tuple[str, ...], example: str, doc: str, why: str) -> str | None:
    kind = Url(schemes=schemes, example=example)
    return cast("str | None", _declare(Declaration(kind=kind, default=None, doc=doc, why=why), visible=False))
