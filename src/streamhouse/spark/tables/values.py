"""Turns values into rows: JSON of a given or an inferred schema, or Avro. What cannot become a row keeps its reason.

A decoder belongs to one task. Under an inferred schema it meets fields that the table has no column for yet; those
become columns at the batch's commit, together with what the other tasks have found.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

import pyarrow as pa

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.limits import MAX_DEFINITION_BYTES
from streamhouse.core.suggest import did_you_mean
from streamhouse.spark.tables.coercion import Coerce, coercion_to, json_text
from streamhouse.spark.tables.columns import (
    MAX_COLUMNS,
    OWN_COLUMNS,
    check_columns,
    is_own,
    merged_schema,
    name_fault,
    parse_ddl,
    wider,
)
from streamhouse.spark.tables.spec import TableSpec, ValueFormat, ValueSpec

_INT64: Final = range(-(2**63), 2**63)
_CONFLUENT_HEADER_BYTES: Final = 5
"""A zero and the number of a schema in a registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    rows: list[int]
    """The indexes of the values that became rows."""
    columns: Mapping[str, pa.Array]
    bad: list[tuple[int, str]]
    """The values that did not become rows, and why."""


def value_columns(values: ValueSpec) -> pa.Schema:
    """The columns that are known before any record is read, without our own. Raises InvalidSetting."""
    if values.format is ValueFormat.AVRO:
        try:
            columns = avro_columns(json.loads(values.schema))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidSetting(f"the Avro schema cannot be used: {error}") from error
        check_columns(columns.names)
        return columns
    return parse_ddl(values.schema) if values.schema else pa.schema([])


def row_schema(spec: TableSpec) -> pa.Schema:
    """Return our own columns and those of the values. Raises InvalidSetting."""
    return merged_schema(OWN_COLUMNS, value_columns(spec.values))


def parse_values(text: str, read_file: Callable[[str], str]) -> ValueSpec:
    """``json``, ``ddl:id BIGINT, …``, ``avro:orders.avsc`` or ``avro-confluent:orders.avsc``. Raises InvalidSetting."""
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip().lower()
    if kind == "json" and not rest:
        return ValueSpec(format=ValueFormat.JSON)
    if kind == "ddl" and rest.strip():
        values = ValueSpec(format=ValueFormat.JSON, schema=rest.strip())
    elif kind in ("avro", "avro-confluent") and rest.strip():
        schema = read_file(rest.strip())
        if len(schema) > MAX_DEFINITION_BYTES // 2:
            raise InvalidSetting(f"the Avro schema has {len(schema)} characters, more than {MAX_DEFINITION_BYTES // 2}")
        values = ValueSpec(format=ValueFormat.AVRO, schema=schema, confluent=kind == "avro-confluent")
    else:
        forms = ("json", "ddl:id BIGINT, name STRING", "avro:FILE", "avro-confluent:FILE")
        hint = did_you_mean(kind, ("json", "ddl", "avro", "avro-confluent"), otherwise=f"write {', or '.join(forms)}")
        raise InvalidSetting(f"there is no schema {text[:80]!r}", hint=hint)
    value_columns(values)
    return values


class ValueDecoder(Protocol):
    def decode(self, values: Sequence[bytes | None]) -> Decoded: ...


class _GivenColumns:
    """Shared by the decoders of a given schema: puts objects into its columns, if they fit."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._coerce = {field.name: coercion_to(field.type) for field in schema}

    def fill(self, rows: list[int], objects: list[dict[str, Any]], bad: list[tuple[int, str]]) -> Decoded:
        """``rows``: the position of each object among the values. ``bad``: values that are no objects; those that do
        not fit are added.
        """
        kept: list[int] = []
        found: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        for row, each in zip(rows, objects, strict=True):
            try:
                cells = [_cell(coerce, each.get(name), name) for name, coerce in self._coerce.items()]
            except ValueError as error:
                bad.append((row, str(error)))
                continue
            kept.append(row)
            for column, cell in zip(found.values(), cells, strict=True):
                column.append(cell)
        columns = {field.name: pa.array(found[field.name], field.type) for field in self._schema}
        return Decoded(rows=kept, columns=columns, bad=bad)


class GivenJson:
    """JSON with given columns. Other fields are left out."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = _GivenColumns(schema)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        rows, objects, bad = _objects(values)
        return self._columns.fill(rows, objects, bad)


class InferredJson:
    """JSON with inferred columns: those of the table, and one for every new field."""

    def __init__(self, known: pa.Schema) -> None:
        self._known = {field.name: coercion_to(field.type) for field in known if not is_own(field.name)}
        self._types: dict[str, pa.DataType] = {field.name: field.type for field in known if not is_own(field.name)}
        self._found: dict[str, pa.DataType] = {}
        self._lower = {name.lower() for name in self._known}

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        rows, objects, bad = _objects(values)
        kept: list[int] = []
        cells: list[dict[str, Any]] = []
        for row, each in zip(rows, objects, strict=True):
            try:
                cells.append(self._row(each))
            except ValueError as error:
                bad.append((row, str(error)))
                continue
            kept.append(row)
        present = {name for row in cells for name in row}
        columns: dict[str, pa.Array] = {}
        for name, kind in (*self._types.items(), *self._found.items()):
            if name in present:
                coerce = coercion_to(kind) if name in self._found else _as_it_is
                columns[name] = pa.array([coerce(row.get(name)) for row in cells], kind)
        return Decoded(rows=kept, columns=columns, bad=bad)

    def _row(self, each: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        new: dict[str, pa.DataType] = {}
        for name, value in each.items():
            known = self._known.get(name)
            if known is not None:
                row[name] = _cell(known, value, name)
            elif value is not None:
                self._check_new(name, new)
                if isinstance(value, str):
                    _cell(json_text, value, name)
                new[name] = wider(self._found.get(name), _inferred(value))
                row[name] = value
        self._lower.update(name.lower() for name in new)
        self._found.update(new)
        return row

    def _check_new(self, name: str, new: Mapping[str, pa.DataType]) -> None:
        if name in self._found:
            return
        fault = name_fault(name)
        if fault is None and is_own(name):
            fault = f"the field {name} has the name of a column that every table has of its own"
        if fault is None and (name.lower() in self._lower or name.lower() in {other.lower() for other in new}):
            fault = f"the field {name} differs from another column only in case"
        if fault is None and len(self._known) + len(self._found) + len(new) >= MAX_COLUMNS:
            fault = f"the field {name} would be one column more than the {MAX_COLUMNS} that a table may have"
        if fault is not None:
            raise ValueError(fault)


class Avro:
    """Values of one Avro schema, with or without the five bytes that registry clients write first."""

    def __init__(self, schema: Mapping[str, Any], *, confluent: bool) -> None:
        from fastavro.schema import parse_schema

        self._avro = parse_schema(dict(schema))
        self._columns = _GivenColumns(avro_columns(schema))
        self._confluent = confluent

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        rows: list[int] = []
        records: list[dict[str, Any]] = []
        bad: list[tuple[int, str]] = []
        for row, value in enumerate(values):
            try:
                records.append({} if value is None else self._record(value))
            except ValueError as error:
                bad.append((row, str(error)))
                continue
            rows.append(row)
        return self._columns.fill(rows, records, bad)

    def _record(self, value: bytes) -> dict[str, Any]:
        from fastavro import schemaless_reader

        if self._confluent:
            if len(value) < _CONFLUENT_HEADER_BYTES or value[0] != 0:
                raise ValueError("the value does not begin with a registry's header")
            value = value[_CONFLUENT_HEADER_BYTES:]
        stream = io.BytesIO(value)
        try:
            record = schemaless_reader(stream, self._avro, None)
        except Exception as error:  # fastavro raises whatever its reading of foreign bytes ran into
            raise ValueError(f"not Avro of this schema: {type(error).__name__} {error}"[:200]) from None
        if stream.read(1):
            raise ValueError("not Avro of this schema: bytes are left over")
        if not isinstance(record, dict):
            raise ValueError("not an Avro record")
        return record


def avro_columns(schema: Mapping[str, Any]) -> pa.Schema:
    """Raises ValueError for a schema that no table can have."""
    if schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise ValueError("an Avro schema for rows is a record")
    return pa.schema([(field["name"], _avro_type(field["type"])) for field in schema["fields"]])


_AVRO_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_AVRO_LOGICAL: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


def _avro_type(kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        return _avro_type(others[0]) if len(others) == 1 else pa.string()  # of several types: JSON text
    if isinstance(kind, str):
        if kind not in _AVRO_SIMPLE:
            raise ValueError(f"the Avro type {kind!r} cannot be a column")
        return _AVRO_SIMPLE[kind]
    logical, inner = kind.get("logicalType"), kind["type"]
    if logical == "decimal":
        return pa.decimal128(int(kind["precision"]), int(kind.get("scale", 0)))
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    if inner == "array":
        return pa.list_(_avro_type(kind["items"]))
    if inner == "map":
        return pa.map_(pa.string(), _avro_type(kind["values"]))
    if inner == "record":
        return pa.struct([(field["name"], _avro_type(field["type"])) for field in kind["fields"]])
    return _avro_type(inner)


def _cell(coerce: Coerce, value: Any, name: str) -> Any:
    try:
        return coerce(value)
    except ValueError as error:
        raise ValueError(f"field {name}: {error}") from None


def _as_it_is(value: Any) -> Any:
    return value


def _inferred(value: Any) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _INT64 else pa.string()
    return pa.float64() if isinstance(value, float) else pa.string()


def _objects(values: Sequence[bytes | None]) -> tuple[list[int], list[dict[str, Any]], list[tuple[int, str]]]:
    """A record without a value (a tombstone) is a row with only our own columns."""
    rows: list[int] = []
    objects: list[dict[str, Any]] = []
    bad: list[tuple[int, str]] = []
    for row, value in enumerate(values):
        try:
            each = {} if value is None else json.loads(value, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            bad.append((row, f"not JSON: {error}"[:200]))
            continue
        if not isinstance(each, dict):
            bad.append((row, "not a JSON object"))
            continue
        rows.append(row)
        objects.append(each)
    return rows, objects, bad


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
