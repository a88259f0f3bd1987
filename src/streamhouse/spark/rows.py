"""The rows that Spark sees: names, types and order of the Kafka source's columns, and what of them the decoder makes.

    key, value            binary, null for a record without a key, a tombstone
    topic                 string
    partition             int
    offset                long
    timestamp             timestamp, microseconds, UTC
    timestampType         int: 0 create time, 1 log-append time
    headers               array<struct<key: string, value: binary>>, only when asked for

Spark compares schemas to the letter, down to the name of a list's element, so the Arrow types here are exactly those
that it expects. The topic is not part of a record, so an Arrow batch has records of one topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

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
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    TOPIC: pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", _HEADER)),
}
_DECODED_NAMES: Final[Mapping[str, str]] = {"timestampType": "timestamp_type"}
"""The columns for which the decoder has another name."""


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


def decoded_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that the decoder has to make. For the topic alone, a small one, to count the rows."""
    return tuple(_DECODED_NAMES.get(name, name) for name in columns if name != TOPIC) or ("partition",)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def shape(batch: pa.RecordBatch, topic: str, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name == TOPIC:
            arrays.append(pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows))
            continue
        array = batch.column(_DECODED_NAMES.get(field.name, field.name))
        arrays.append(array.cast(field.type) if field.name == HEADERS else array)  # no copy: only a name changes
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
