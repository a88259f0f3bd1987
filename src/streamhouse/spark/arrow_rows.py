"""Decoded batches → Arrow batches of exactly the types that Spark expects. Pure.

Spark compares schemas to the letter, down to the name of a list's element. The topic is no part of a record, so a batch
is of one topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from streamhouse.spark.rows import HEADERS, TOPIC

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
"""Where the decoder's name for a column differs."""


def decoded_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """What the decoder has to make for these columns; for the topic alone, something to count rows by."""
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
