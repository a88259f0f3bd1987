"""What a table is: where its rows come from, how they are read, where they lie. Pure, but for the check of paths.

{"topic": "orders", "format": "delta", "location": "file:///srv/orders", "partition_by": "day",
 "values": {"format": "json", "schema": "id BIGINT"}, "dead_letters": "orders.dead-letters", "generation": 1, …}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from streamhouse.core.errors import CorruptDocument, InvalidSetting
from streamhouse.core.limits import MAX_DEFINITION_BYTES
from streamhouse.core.suggest import did_you_mean
from streamhouse.spark.tables.columns import OWN_COLUMNS, TIMESTAMP, check_columns, merged_schema, parse_ddl
from streamhouse.spark.tables.files import PartitionBy
from streamhouse.spark.tables.values import avro_columns

DEFAULT_NAMESPACE: Final = "streamhouse"
_DDL_PREFIX: Final = "ddl:"


class TableFormat(StrEnum):
    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


class ValueFormat(StrEnum):
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpec:
    """How records' values become columns."""

    format: ValueFormat
    schema: str = ""
    """DDL for JSON, and empty when it is inferred; Avro's own JSON for Avro."""
    confluent: bool = False
    """Avro behind the five bytes of a schema registry's clients."""

    def columns(self) -> pa.Schema:
        """Those that are known beforehand, beside our own. Raises InvalidSetting."""
        if self.format is ValueFormat.AVRO:
            try:
                columns = avro_columns(json.loads(self.schema))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidSetting(f"the Avro schema cannot be used: {error}") from error
            check_columns(columns.names)
            return columns
        return parse_ddl(self.schema) if self.schema else pa.schema([])


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """Where and as what rows are kept; also what a pipeline's table target is made of."""

    format: TableFormat
    location: str
    partition_by: PartitionBy = PartitionBy.NONE
    time_column: str = TIMESTAMP
    catalog: str = field(default="", repr=False)
    """Of Iceberg: the URL of its SQL database; it may hold a password. Empty: the default for the location."""
    namespace: str = DEFAULT_NAMESPACE
    table: str = ""
    """Its name in the catalog; empty: the last part of the location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    name: str
    topic: str
    storage: StorageSpec
    values: ValueSpec
    dead_letters: str = ""
    """A topic; empty: a record that cannot become a row stops the table."""
    trigger_ms: int = 10_000
    """How often rows are committed: each commit makes files."""
    max_bytes: str = "256MiB"
    """What one batch reads at most, so that a backfill is many commits."""
    generation: int = 1
    """--reset begins a new one."""

    def schema(self) -> pa.Schema:
        return merged_schema(OWN_COLUMNS, self.values.columns())

    def to_document(self) -> dict[str, Any]:
        storage, values = self.storage, self.values
        return {
            "topic": self.topic,
            "format": storage.format.value,
            "location": storage.location,
            "partition_by": storage.partition_by.value,
            "catalog": storage.catalog,
            "namespace": storage.namespace,
            "table": storage.table,
            "values": {"format": values.format.value, "schema": values.schema, "confluent": values.confluent},
            "dead_letters": self.dead_letters,
            "trigger_ms": self.trigger_ms,
            "max_bytes": self.max_bytes,
            "generation": self.generation,
        }


def read_spec(name: str, document: str) -> TableSpec:
    """Raises CorruptDocument."""
    try:
        found = json.loads(document)
        values = found["values"]
        return TableSpec(
            name=name,
            topic=found["topic"],
            storage=StorageSpec(
                format=TableFormat(found["format"]),
                location=found["location"],
                partition_by=PartitionBy(found["partition_by"]),
                catalog=found["catalog"],
                namespace=found["namespace"],
                table=found["table"],
            ),
            values=ValueSpec(
                format=ValueFormat(values["format"]), schema=values["schema"], confluent=bool(values["confluent"])
            ),
            dead_letters=found["dead_letters"],
            trigger_ms=int(found["trigger_ms"]),
            max_bytes=found["max_bytes"],
            generation=int(found["generation"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDocument(f"the definition of the table {name} cannot be read") from error


def parse_values(text: str, read_file: Any) -> ValueSpec:
    """``json``, ``ddl:id BIGINT, …``, ``avro:orders.avsc`` or ``avro-confluent:orders.avsc``. Raises InvalidSetting."""
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip().lower()
    if kind == "json" and not rest:
        return ValueSpec(format=ValueFormat.JSON)
    if kind == "ddl" and rest.strip():
        values = ValueSpec(format=ValueFormat.JSON, schema=rest.strip())
    elif kind in ("avro", "avro-confluent") and rest.strip():
        schema = str(read_file(rest.strip()))
        if len(schema) > MAX_DEFINITION_BYTES // 2:
            raise InvalidSetting(f"the Avro schema has {len(schema)} characters, more than {MAX_DEFINITION_BYTES // 2}")
        values = ValueSpec(format=ValueFormat.AVRO, schema=schema, confluent=kind == "avro-confluent")
    else:
        forms = ("json", f"{_DDL_PREFIX}id BIGINT, name STRING", "avro:FILE", "avro-confluent:FILE")
        hint = did_you_mean(kind, ("json", "ddl", "avro", "avro-confluent"), otherwise=f"write {', or '.join(forms)}")
        raise InvalidSetting(f"there is no schema {text[:80]!r}", hint=hint)
    values.columns()
    return values
