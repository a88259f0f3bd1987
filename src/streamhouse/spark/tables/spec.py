"""What a table is: where its rows come from, how they are read, where they are kept. Pure, and without Arrow, so that a
listing works where no extra is installed.

{"topic": "orders", "format": "delta", "location": "file:///srv/orders", "partition_by": "day",
 "values": {"format": "json", "schema": "id BIGINT"}, "dead_letters": "orders.dead-letters", "generation": 1, …}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from streamhouse.spark.definitions.catalog import Kind, Stored

DEFAULT_NAMESPACE: Final = "streamhouse"
TIMESTAMP: Final = "_timestamp"
"""The column with a record's time."""


class TableFormat(StrEnum):
    PARQUET = "parquet"
    ICEBERG = "iceberg"
    DELTA = "delta"


class PartitionBy(StrEnum):
    NONE = "none"
    DAY = "day"
    HOUR = "hour"


class ValueFormat(StrEnum):
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpec:
    """How the values of records become columns (values.py)."""

    format: ValueFormat
    schema: str = ""
    """DDL for JSON, empty when it is inferred; for Avro, the schema as JSON."""
    confluent: bool = False
    """Avro after the five bytes that clients of a schema registry write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """Where and in which format rows are kept. A pipeline's table target has one too."""

    format: TableFormat
    location: str
    partition_by: PartitionBy = PartitionBy.NONE
    time_column: str = TIMESTAMP
    catalog: str = field(default="", repr=False)
    """Iceberg only: the URL of the catalog's SQL database. It may contain a password. Empty: the default."""
    namespace: str = DEFAULT_NAMESPACE
    table: str = ""
    """The name in the catalog; empty: the last part of the location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    name: str
    topic: str
    storage: StorageSpec
    values: ValueSpec
    dead_letters: str = ""
    """A topic. Empty: a record that cannot become a row stops the table."""
    trigger_ms: int = 10_000
    """How often rows are committed. Each commit makes files."""
    max_bytes: str = "256MiB"
    """How much one batch reads at most, so that a backfill is many commits."""

    @property
    def ends(self) -> bool:
        return False

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
        }


StoredTable = Stored[TableSpec]


def _write(spec: TableSpec, generation: int) -> Mapping[str, Any]:
    return {**spec.to_document(), "generation": generation}


def _read(name: str, document: Mapping[str, Any]) -> tuple[TableSpec, int]:
    values = document["values"]
    spec = TableSpec(
        name=name,
        topic=document["topic"],
        storage=StorageSpec(
            format=TableFormat(document["format"]),
            location=document["location"],
            partition_by=PartitionBy(document["partition_by"]),
            catalog=document["catalog"],
            namespace=document["namespace"],
            table=document["table"],
        ),
        values=ValueSpec(
            format=ValueFormat(values["format"]), schema=values["schema"], confluent=bool(values["confluent"])
        ),
        dead_letters=document["dead_letters"],
        trigger_ms=int(document["trigger_ms"]),
        max_bytes=document["max_bytes"],
    )
    return spec, int(document["generation"])


TABLES: Final = Kind(name="table", checkpoints="tables/", write=_write, read=_read)
