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

import msgspec

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.definitions.catalog import DefinitionKind, Stored

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
        """All fields but the name, those of the storage beside the others."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        document |= document.pop("storage")
        return {key: value for key, value in document.items() if key not in ("name", "time_column")}


StoredTable = Stored[TableSpec]


def _write(spec: TableSpec, generation: int) -> Mapping[str, Any]:
    return {**spec.to_document(), "generation": generation}


def _read(name: str, document: Mapping[str, Any]) -> tuple[TableSpec, int]:
    """Raises InvalidSetting with the path of the key, KeyError and TypeError."""
    try:
        spec = msgspec.convert({**document, "name": name, "storage": document}, TableSpec)
        return spec, msgspec.convert(document["generation"], int)
    except msgspec.ValidationError as error:
        raise InvalidSetting(str(error)) from error


TABLES: Final = DefinitionKind(name="table", checkpoints="tables/", write=_write, read=_read)
