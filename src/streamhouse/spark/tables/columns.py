"""Columns of a table: which types there are, how a person writes them, how two views of a column are reconciled. Pure.

Types are Arrow's. A schema is written as Spark's DDL: ``id BIGINT, name STRING, tags ARRAY<STRING>``. Inferred columns
have one of four types, and what is nested stays JSON text:

    BOOLEAN    BIGINT ──► DOUBLE ──► STRING        where two tasks saw different types, the wider one holds both
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.suggest import did_you_mean
from streamhouse.spark.tables.spec import TIMESTAMP

MAX_COLUMNS: Final = 1_000
"""Parquet readers hold a page of every column. Without a limit, data with arbitrary keys would add columns without end.
"""
MAX_COLUMN_NAME_CHARS: Final = 255
_MAX_DEPTH: Final = 20

KEY: Final = "_key"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIME_TYPE: Final = pa.timestamp("us", tz="UTC")
OWN_COLUMNS: Final = pa.schema(
    [(PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, TIME_TYPE), (KEY, pa.binary())]
)
"""Columns of every row that comes from a topic: they say where it comes from."""

_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int32(),  # Iceberg has no smaller integers
    "smallint": pa.int32(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIME_TYPE,
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN: Final = re.compile(r"\s*(?:`([^`]+)`|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|([<>(),:]))", re.ASCII)
_FORBIDDEN: Final = frozenset(' ,;{}()\n\t=`"./\\')


def name_fault(name: str) -> str | None:
    """Why a name cannot be a column's in all three formats; None when it can."""
    if not name or len(name) > MAX_COLUMN_NAME_CHARS:
        return f"a column's name has 1 to {MAX_COLUMN_NAME_CHARS} characters"
    if _FORBIDDEN.intersection(name) or not name.isprintable():
        return f"{name[:64]!r} cannot be a column's name"
    return None


def parse_ddl(text: str) -> pa.Schema:
    """Parses the columns that a user has given. Raises InvalidSetting."""
    schema = parse_schema(text)
    check_columns(schema.names)
    return schema


def parse_schema(text: str) -> pa.Schema:
    """Parses any columns, also our own. Raises InvalidSetting."""
    return pa.schema(_Ddl(text).fields(end=None, separator=None))


def check_columns(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        fault = name_fault(name)
        if fault is None and name.lower() in seen:
            fault = f"the column {name!r} is there twice"
        if fault is None and name.lower() in _OWN_NAMES:
            fault = f"the column {name!r} is one that every table has of its own"
        if fault is not None:
            raise InvalidSetting(fault)
        seen.add(name.lower())
    if not 0 < len(seen) <= MAX_COLUMNS:
        raise InvalidSetting(f"a table has 1 to {MAX_COLUMNS} columns, not {len(seen)}")


def is_own(name: str) -> bool:
    return name.lower() in _OWN_NAMES


def ddl_of(schema: pa.Schema) -> str:
    return ", ".join(f"{_quoted(field.name)} {type_text(field.type)}" for field in schema)


def type_text(kind: pa.DataType) -> str:
    """The type as DDL; the inverse of parsing."""
    if pa.types.is_list(kind):
        return f"ARRAY<{type_text(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {type_text(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    found = next((name for name, known in _NAMES if known == kind), None)
    return str(kind) if found is None else found.upper()


def wider(one: pa.DataType | None, other: pa.DataType) -> pa.DataType:
    """The type of an inferred column that can hold values of both types."""
    if one is None or one == other:
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return pa.string()


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without Arrow's large variants: some libraries return them, the formats do not know them."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type)) for field in kind])
    return kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, plain_type(field.type)) for field in schema])


def new_columns(known: pa.Schema, found: Iterable[pa.Schema]) -> dict[str, pa.DataType]:
    """The columns of files that ``known`` does not have, each with a type that holds the values of all files."""
    added: dict[str, pa.DataType] = {}
    for schema in found:
        for field in schema:
            if known.get_field_index(field.name) < 0:
                added[field.name] = wider(added.get(field.name), field.type)
    return added


def merged_schema(known: pa.Schema, more: pa.Schema) -> pa.Schema:
    return pa.schema([*known, *(field for field in more if known.get_field_index(field.name) < 0)])


def check_types(known: pa.Schema, more: pa.Schema, where: str) -> None:
    """Raises InvalidSetting if the type of a column would change."""
    for field in more:
        place = known.get_field_index(field.name)
        if place >= 0 and known.field(place).type != field.type:
            raise InvalidSetting(
                f"the column {field.name} of {where} is {known.field(place).type}, not {field.type}",
                hint="columns may be added, not changed: give it another name, or cast it",
            )


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) else f"`{name}`"


class _Ddl:
    """A recursive-descent parser of ``name TYPE, …``, with nested types in angle brackets."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        self._quoted: set[int] = set()
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise InvalidSetting(
                    f"the schema cannot be read from {text[at : at + 40]!r} on",
                    hint="write it like: id BIGINT, name STRING",
                )
            if match[1] is not None:
                self._quoted.add(len(self._tokens))
            self._tokens.append(next(group for group in match.groups() if group is not None))
            at = match.end()
        self._at = 0

    def fields(self, *, end: str | None, separator: str | None, depth: int = 0) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while True:
            name = self._next("a column's name")
            if separator is not None:
                self._expect(separator)
            fields.append(pa.field(name, self._type(depth)))
            if self._peek() != ",":
                break
            self._at += 1
        if end is not None:
            self._expect(end)
        elif self._peek() is not None:
            raise self._fault(f"a comma or the end, not {self._peek()!r}")
        return fields

    def _type(self, depth: int) -> pa.DataType:
        if depth > _MAX_DEPTH:
            raise InvalidSetting(f"the schema is nested more than {_MAX_DEPTH} deep")
        word = self._next("a type").lower()
        if word == "array":
            return pa.list_(self._bracketed(1, depth)[0])
        if word == "map":
            return pa.map_(*self._bracketed(2, depth))
        if word == "struct":
            self._expect("<")
            return pa.struct(self.fields(end=">", separator=":", depth=depth + 1))
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word not in _SIMPLE:
            known = (*_SIMPLE, "decimal", "array", "struct", "map")
            hint = did_you_mean(word, known, otherwise=f"the types are {', '.join(known)}")
            raise InvalidSetting(f"there is no type {word[:40]!r}", hint=hint)
        return _SIMPLE[word]

    def _bracketed(self, count: int, depth: int) -> list[pa.DataType]:
        self._expect("<")
        types = [self._type(depth + 1)]
        while len(types) < count:
            self._expect(",")
            types.append(self._type(depth + 1))
        self._expect(">")
        return types

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._at += 1
            precision = self._number()
            if self._peek() == ",":
                self._at += 1
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise InvalidSetting(f"there is no DECIMAL({precision}, {scale})")
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        word = self._next("a number")
        if not word.isdigit() or len(word) > 3:
            raise self._fault(f"a number, not {word[:20]!r}")
        return int(word)

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, what: str) -> str:
        word = self._peek()
        if word is None or (word in "<>(),:" and self._at not in self._quoted):
            raise self._fault(f"{what}, not {'the end' if word is None else repr(word)}")
        self._at += 1
        return word

    def _expect(self, mark: str) -> None:
        if self._peek() != mark:
            found = self._peek()
            raise self._fault(f"{mark!r}, not {'the end' if found is None else repr(found)}")
        self._at += 1

    def _fault(self, what: str) -> InvalidSetting:
        return InvalidSetting(
            f"the schema {self._text[:80]!r} needs {what}", hint="write it like: id BIGINT, name STRING"
        )


_OWN_NAMES: Final = frozenset(name.lower() for name in OWN_COLUMNS.names)
_NAMES: Final = [(name, kind) for name, kind in _SIMPLE.items() if name not in ("tinyint", "smallint")]
