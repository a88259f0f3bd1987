"""schemas.json: every Kafka message we speak, by version. Written by scripts/gen_kafka_schemas.py.

{"3.request": {"name": "metadata", "versions": [0, 13], "flexible": 9, "fields": [field, …]}, "3.response": …}

field   [name, type, [first, last version], [first, last nullable version] or null, tag or null, default, [field, …]]
        what is absent at the end of a field is null
type    bool i8 i16 u16 i32 i64 f64 str bytes uuid struct, with [] before it for an array of them
default a number, true, {"text": …} or "null"; without one it is the zero of the type, and null where it may be
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    name: str
    kind: str
    is_array: bool
    versions: range
    nullable: range
    tag: int | None
    default: Any
    """The default as the table has it; use ``default_at``."""
    fields: tuple[FieldSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpec:
    name: str
    """snake_case name of the API, or of the data where it belongs to none."""
    versions: range
    flexible_from: int | None
    fields: tuple[FieldSpec, ...]

    def flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


@cache
def message_spec(name: str) -> MessageSpec:
    """``name``: "<api key>.request", "<api key>.response", or the name of the data. KeyError if it is not there."""
    row = _table()[name]
    return MessageSpec(
        name=row["name"],
        versions=_range(row["versions"]),
        flexible_from=row["flexible"],
        fields=_fields(row["fields"]),
    )


def message_names() -> Sequence[str]:
    return list(_table())


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("schemas.json").read_text())
    return table


def _fields(rows: list[list[Any]]) -> tuple[FieldSpec, ...]:
    return tuple(_field(*row) for row in rows)


def _field(
    name: str,
    kind: str,
    versions: list[int],
    nullable: list[int] | None = None,
    tag: int | None = None,
    default: Any = None,
    fields: Sequence[Any] = (),
) -> FieldSpec:
    return FieldSpec(
        name=name,
        kind=kind.removeprefix("[]"),
        is_array=kind.startswith("[]"),
        versions=_range(versions),
        nullable=range(0) if nullable is None else _range(nullable),
        tag=tag,
        default=default,
        fields=_fields(list(fields)),
    )


def _range(bounds: list[int]) -> range:
    first, last = bounds
    return range(first, last + 1)
