"""The rows that Spark sees: names, types and order of the Kafka source's columns, and what of them the decoder makes.

    key, value            binary, null for a record without a key, a tombstone
    topic                 string
    partition             int
    offset                long
    timestamp             timestamp, microseconds, UTC
    timestampType         int: 0 create time, 1 log-append time
    headers               array<struct<key: string, value: binary>>, only when asked for

Imports neither pyspark nor Arrow: options are checked by it, and arrow_rows.py has the Arrow types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.suggest import did_you_mean

TOPIC: Final = "topic"
HEADERS: Final = "headers"
DDL_TYPES: Final[Mapping[str, str]] = {
    "key": "BINARY",
    "value": "BINARY",
    TOPIC: "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "timestampType": "INT",
    HEADERS: "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
DEFAULT_COLUMNS: Final = tuple(name for name in DDL_TYPES if name != HEADERS)


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns in their proper spelling. Raises InvalidSetting."""
    by_lower = {name.lower(): name for name in DDL_TYPES}
    for name in names:
        if name.lower() not in by_lower:
            raise InvalidSetting(
                f"there is no column {name[:80]!r}",
                hint=did_you_mean(name, DDL_TYPES, otherwise=f"the columns are {', '.join(DDL_TYPES)}"),
            )
    if not names:
        raise InvalidSetting("no column is named", hint=f"the columns are {', '.join(DDL_TYPES)}")
    if len({name.lower() for name in names}) != len(names):
        raise InvalidSetting("a column is named twice")
    return tuple(by_lower[name.lower()] for name in names)


def ddl(columns: Sequence[str]) -> str:
    """The schema as Spark parses it."""
    return ", ".join(f"`{name}` {DDL_TYPES[name]}" for name in columns)
