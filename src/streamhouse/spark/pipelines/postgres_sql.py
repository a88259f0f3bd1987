"""The SQL of the PostgreSQL target, and how Spark's types are called there. Pure.

    tasks    COPY streamhouse_stage.<run>           rows, each with its attempt
    driver   lock the progress row; INSERT … SELECT the winning attempts' rows; move the progress; commit

The staging table is UNLOGGED: what a crash takes from it was never committed. Not MERGE: two of them race for a new
key and one fails, where ON CONFLICT waits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.pipelines.spec import PostgresTarget, TargetMode

SCHEMA: Final = "streamhouse"
"""The schema of progress and staging tables, separate from the user's own."""
PROGRESS: Final = f"{SCHEMA}.pipeline_progress"
ATTEMPT: Final = "_streamhouse_attempt"
ROW: Final = "_streamhouse_row"
_ATTEMPTS: Final = "\0attempts\0"
"""A placeholder for the parameter until all names are filled in: a name may contain a percent sign, but never this."""

_TYPES: Final[Mapping[str, str]] = {
    "string": "text",
    "bigint": "bigint",
    "int": "integer",
    "smallint": "smallint",
    "tinyint": "smallint",
    "double": "double precision",
    "float": "real",
    "boolean": "boolean",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "date": "date",
    "binary": "bytea",
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_NESTED: Final = ("struct<", "array<", "map<")
_NAMED: Final = re.compile(r"(?:varchar|char)\(\d+\)")
_NUMBERS: Final = frozenset({"smallint", "integer", "bigint", "real", "double precision"})
_FAMILIES: Final = (
    {"smallint", "integer", "bigint"},
    {"real", "double precision"},
    {"text", "character varying", "character"},
    {"json", "jsonb"},
    {"timestamptz", "timestamp with time zone"},
    {"timestamp", "timestamp without time zone"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    type: str
    """The type in PostgreSQL."""

    @property
    def is_json(self) -> bool:
        return self.type == "jsonb"


def columns_of(fields: Sequence[tuple[str, str]], target: PostgresTarget) -> tuple[Column, ...]:
    """``fields`` are names and Spark's short type names. Raises InvalidSetting."""
    columns = tuple(Column(name=name, type=_type(name, kind)) for name, kind in fields)
    names = [column.name for column in columns]
    if len(set(names)) != len(names):
        raise InvalidSetting(f"the SQL gives two columns one name: {', '.join(names)}", hint="rename one with AS")
    for wanted in (*target.key, *([target.order_by] if target.order_by else [])):
        if wanted not in names:
            raise InvalidSetting(
                f"the SQL has no column {wanted!r}, which the target's key or order_by names",
                hint=f"its columns are {', '.join(names)}",
            )
    return columns


def create_target(target: PostgresTarget, columns: Sequence[Column]) -> str:
    lines = [f"{quoted(column.name)} {column.type}" for column in columns]
    if target.key:
        lines.append(f"PRIMARY KEY ({_names(target.key)})")
    return f"CREATE TABLE IF NOT EXISTS {table_name(target.table)} ({', '.join(lines)})"


def create_progress() -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {PROGRESS} (pipeline text PRIMARY KEY, name text NOT NULL, progress text,"
        " updated_at timestamptz NOT NULL DEFAULT now())"
    )


def create_stage(stage: str, columns: Sequence[Column]) -> str:
    lines = [f"{ATTEMPT} text NOT NULL", f"{ROW} bigint NOT NULL"]
    lines += [f"{quoted(column.name)} {column.type}" for column in columns]
    return f"CREATE UNLOGGED TABLE {stage_name(stage)} ({', '.join(lines)})"


def copy_into(stage: str, columns: Sequence[Column]) -> str:
    names = ", ".join([ATTEMPT, ROW, *(quoted(column.name) for column in columns)])
    return f"COPY {stage_name(stage)} ({names}) FROM STDIN (FORMAT csv)"


def insert(target: PostgresTarget, stage: str, columns: Sequence[Column]) -> str:
    """Takes one parameter: the list of attempts that count."""
    return _insert(target, stage, columns).replace("%", "%%").replace(_ATTEMPTS, "%s")


def _insert(target: PostgresTarget, stage: str, columns: Sequence[Column]) -> str:
    names = _names([column.name for column in columns])
    chosen = f"FROM {stage_name(stage)} WHERE {ATTEMPT} = ANY({_ATTEMPTS})"
    if target.mode is TargetMode.INSERT:
        return f"INSERT INTO {table_name(target.table)} ({names}) SELECT {names} {chosen}"
    key, order = _names(target.key), ""
    if target.order_by is not None:
        order = f"{quoted(target.order_by)} DESC NULLS LAST, "
    select = f"SELECT DISTINCT ON ({key}) {names} {chosen} ORDER BY {key}, {order}{ATTEMPT} DESC, {ROW} DESC"
    others = [column.name for column in columns if column.name not in target.key]
    if not others:
        action = "DO NOTHING"
    else:
        changes = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
        action = f"DO UPDATE SET {changes}"
        if target.order_by is not None:
            by = quoted(target.order_by)
            action += f" WHERE t.{by} IS NULL OR t.{by} <= EXCLUDED.{by}"
    return f"INSERT INTO {table_name(target.table)} AS t ({names}) {select} ON CONFLICT ({key}) {action}"


def check_table(target: PostgresTarget, columns: Sequence[Column], found: Mapping[str, str]) -> None:
    """``found``: the columns that the table has, with their types. Raises InvalidSetting."""
    for column in columns:
        if column.name not in found:
            raise InvalidSetting(
                f"the table {target.table} has no column {column.name!r}",
                hint=f"it has {', '.join(found)}; rename the SQL's column with AS, or add one to the table",
            )
        if not _fits(column.type, found[column.name]):
            raise InvalidSetting(
                f"the column {column.name!r} of {target.table} is {found[column.name]}, and the SQL gives "
                f"{column.type}",
                hint=f"cast it in the SQL: CAST({column.name} AS …)",
            )


def table_name(table: str) -> str:
    return ".".join(quoted(part) for part in table.split("."))


def stage_name(stage: str) -> str:
    return f"{SCHEMA}.{quoted(stage)}"


def quoted(name: str) -> str:
    if "\0" in name:
        raise InvalidSetting(f"{name!r} is no name of a column")
    return '"' + name.replace('"', '""') + '"'


def _names(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def _type(name: str, kind: str) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if match := _DECIMAL.fullmatch(kind):
        return f"numeric({match[1]},{match[2]})"
    if _NAMED.fullmatch(kind):
        return "text"
    if kind.startswith(_NESTED):
        return "jsonb"
    raise InvalidSetting(f"the column {name!r} is {kind}, which PostgreSQL does not have", hint="cast it in the SQL")


def _fits(ours: str, theirs: str) -> bool:
    ours, theirs = ours.split("(")[0], theirs.split("(")[0]
    return (
        ours == theirs
        or (theirs == "numeric" and ours in _NUMBERS)
        or any({ours, theirs} <= family for family in _FAMILIES)
    )
