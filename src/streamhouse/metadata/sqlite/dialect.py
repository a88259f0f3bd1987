"""Runs the statements of the row layer, which are PostgreSQL's SQL, on SQLite.

What is translated, and into what:

    $1                                   $1, a named parameter (SQLite counts the rest by name too)
    sh_now_ms(), sh_tick()               $now: the time of this transaction
    $5::text::jsonb                      $5: SQLite's columns take any type
    greatest(a, b), least(a, b)          max(a, b), min(a, b); no argument may be NULL
    FOR UPDATE, FOR SHARE OF e, …        nothing: the writer holds the only lock there is
    x = ANY ($1::uuid[])                 x IN (SELECT … FROM json_each($1))
    unnest($1::uuid[], $2::integer[])    a SELECT from json_each over one list of rows
        WITH ORDINALITY AS k (a, b, n)
    RETURNING t.a                        RETURNING a

UUIDs are 16 bytes in SQLite's columns. In a JSON list they are hex digits, and ``sh_uuid`` (``connections.py``) turns
them back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Coroutine, Sequence
from functools import cache
from typing import Any, Final, TypeVar
from uuid import UUID

from streamhouse.metadata.contract import Change, ObjectRef
from streamhouse.metadata.rows.layer import Row, RowTx
from streamhouse.metadata.sqlite.objects import add_references, drop_references
from streamhouse.metadata.sqlite.transactions import Tx

T = TypeVar("T")

_UNNEST: Final = re.compile(r"unnest\(([^)]*)\)\s*(?:(WITH ORDINALITY)\s+)?AS (\w+) \(([^)]*)\)")
_LISTED: Final = re.compile(r"\$(\d+)::(\w+)\[\]")
_ANY: Final = re.compile(r"= ANY \(\$(\d+)::(\w+)\[\]\)")
_PLAIN: Final = (
    (re.compile(r"\s+FOR (?:NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?"), ""),
    (re.compile(r"\bsh_(?:now_ms|tick)\(\)"), "$now"),
    (re.compile(r"\bgreatest\("), "max("),
    (re.compile(r"\bleast\("), "min("),
    (re.compile(r"::\w+"), ""),
)


class SqliteRowTx(RowTx):
    """The row layer's view of one SQLite transaction. Its awaits never wait."""

    __slots__ = ("_tx",)

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def fetch(self, query: str, *args: Any) -> list[Row]:
        return list(self._tx.rows(*self._bound(query, args)))

    async def fetchrow(self, query: str, *args: Any) -> Row | None:
        return self._tx.row(*self._bound(query, args))

    async def execute(self, query: str, *args: Any) -> int:
        return self._tx.run(*self._bound(query, args))

    async def notify(self, change: Change) -> None:
        self._tx.notify(change)

    async def reference(self, objects: Sequence[ObjectRef]) -> None:
        add_references(self._tx, objects)

    async def dereference(self, keys: Sequence[str]) -> None:
        drop_references(self._tx, keys)

    def _bound(self, query: str, args: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
        sql, lists = _translated(query)
        values = {str(place): _stored(value) for place, value in enumerate(args, start=1)}
        values["now"] = self._tx.now_ms
        for name, places in lists:
            columns = [args[place - 1] for place in places]
            rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
            values[name] = json.dumps(rows, default=_json_value)
        return sql, values


def run_now(step: Coroutine[Any, Any, T]) -> T:
    """Run a step of the row layer to its end. It awaits nothing but its SqliteRowTx, so it cannot pause."""
    try:
        step.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    step.close()
    raise AssertionError("a step of the row layer waited for something other than its transaction")


@cache
def _translated(query: str) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    """The statement for SQLite, and its lists: the name of each parameter and the places of the columns in it."""
    lists: dict[str, tuple[int, ...]] = {}

    def listed(places: tuple[int, ...]) -> str:
        name = "list_" + "_".join(map(str, places))
        lists[name] = places
        return f"json_each(${name})"

    def unnest(match: re.Match[str]) -> str:
        types = _LISTED.findall(match[1])
        names = re.split(r",\s*", match[4])
        only = len(types) == 1
        columns = [
            f"{_element('value' if only else f'json_extract(value, {chr(39)}$[{place}]{chr(39)})', kind)} AS {name}"
            for place, ((_, kind), name) in enumerate(zip(types, names, strict=False))
        ]
        if match[2]:
            columns.append(f"key + 1 AS {names[-1]}")
        source = listed(tuple(int(number) for number, _ in types))
        return f"(SELECT {', '.join(columns)} FROM {source}) AS {match[3]}"

    sql = _UNNEST.sub(unnest, query)
    sql = _ANY.sub(lambda match: f"IN (SELECT {_element('value', match[2])} FROM {listed((int(match[1]),))})", sql)
    for pattern, replacement in _PLAIN:
        sql = pattern.sub(replacement, sql)
    before, returning, after = sql.partition("RETURNING")
    return before + returning + re.sub(r"\b[a-z]\.", "", after), tuple(lists.items())


def _element(value: str, kind: str) -> str:
    return f"sh_uuid({value})" if kind == "uuid" else value


def _stored(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    return None if isinstance(value, list) else value  # lists are bound as JSON, under their own names


def _json_value(value: object) -> str:
    if isinstance(value, UUID):
        return value.hex
    assert isinstance(value, bytes)  # a UUID as it came out of a column
    return value.hex()
