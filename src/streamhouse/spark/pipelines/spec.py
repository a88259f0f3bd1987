"""What a pipeline is: topics as views, one SELECT over them, one target. Pure, and without Spark.

A spec has one canonical document (``to_document``). The metadata store keeps it, and two specs are equal if their
documents are. ``parsing.parse_pipeline`` reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from streamhouse.core.urls import mask_url


class Format(StrEnum):
    """How the value of a record becomes columns."""

    JSON = "json"
    """One object; its fields are the columns of ``schema``."""
    TEXT = "text"
    """``key`` and ``value`` as strings."""
    BINARY = "binary"
    """The source's own columns."""


class BadRecords(StrEnum):
    """What happens to a value that is not JSON of the schema."""

    FAIL = "fail"
    DROP = "drop"
    NULL = "null"


class OutputMode(StrEnum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class TargetMode(StrEnum):
    INSERT = "insert"
    UPSERT = "upsert"


class TargetKind(StrEnum):
    TOPIC = "topic"
    POSTGRES = "postgres"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    column: str
    delay: str
    """As Spark reads intervals: ``10 minutes``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    view: str
    """The name that the SQL uses."""
    topic: str
    format: Format = Format.TEXT
    schema: str | None = None
    """DDL; for JSON only."""
    watermark: Watermark | None = None
    starting: str = "earliest"
    """``earliest`` or ``latest``: where a pipeline begins that has no progress."""
    bad_records: BadRecords = BadRecords.FAIL
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the source, such as ``maxOffsetsPerTrigger``."""

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"topic": self.topic, "format": self.format.value}
        if self.schema is not None:
            document["schema"] = self.schema
            document["bad_records"] = self.bad_records.value
        if self.watermark is not None:
            document["watermark"] = {"column": self.watermark.column, "delay": self.watermark.delay}
        document["starting"] = self.starting
        if self.options:
            document["options"] = dict(sorted(self.options.items()))
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTarget:
    topic: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the sink, such as ``compression``."""

    kind: ClassVar[TargetKind] = TargetKind.TOPIC

    def to_document(self) -> dict[str, Any]:
        return {"name": self.topic} | ({"options": dict(sorted(self.options.items()))} if self.options else {})

    def __str__(self) -> str:
        return f"topic {self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget:
    url: str = field(repr=False)
    """May contain ${NAME}, taken from the runner's environment, so that no password is stored."""
    table: str
    mode: TargetMode = TargetMode.INSERT
    key: tuple[str, ...] = ()
    """The columns by which an upsert finds a row."""
    order_by: str | None = None
    """A column: of two rows with one key, the row with the higher value counts. None: the later row counts."""
    create: bool = True

    kind: ClassVar[TargetKind] = TargetKind.POSTGRES

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"url": self.url, "table": self.table, "mode": self.mode.value}
        if self.key:
            document["key"] = list(self.key)
        if self.order_by is not None:
            document["order_by"] = self.order_by
        return document | {"create": self.create}

    def __str__(self) -> str:
        return f"PostgreSQL table {self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTarget:
    """A Parquet, Iceberg or Delta table; the options are those of ``streamhouse.spark.tables``."""

    format: str
    path: str
    partition_by: str = "none"
    options: Mapping[str, str] = field(default_factory=dict)

    kind: ClassVar[TargetKind] = TargetKind.TABLE

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"format": self.format, "path": self.path, "partition_by": self.partition_by}
        return document | ({"options": dict(sorted(self.options.items()))} if self.options else {})

    def __str__(self) -> str:
        return f"{self.format} table {self.path}"


TargetSpec = TopicTarget | PostgresTarget | TableTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    name: str
    sources: tuple[SourceSpec, ...]
    sql: str
    target: TargetSpec
    output_mode: OutputMode = OutputMode.APPEND
    trigger_ms: int | None = None
    """The time between batches. None: the next batch starts when there are records."""
    available_now: bool = False
    """Read what there is, then end."""
    isolated: bool = False
    """In a Spark application of its own."""

    @property
    def ends(self) -> bool:
        return self.available_now

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": self.name,
            "sources": {source.view: source.to_document() for source in self.sources},
            "sql": self.sql,
            "target": {self.target.kind.value: self.target.to_document()},
            "output_mode": self.output_mode.value,
        }
        if self.available_now:
            document["trigger"] = "available-now"
        elif self.trigger_ms is not None:
            document["trigger"] = f"{self.trigger_ms}ms"
        return document | ({"isolated": True} if self.isolated else {})

    def masked_document(self) -> dict[str, Any]:
        """The document with masked passwords, for output."""
        document = self.to_document()
        if isinstance(self.target, PostgresTarget):
            document["target"]["postgres"]["url"] = mask_url(self.target.url)
        return document

    def fingerprint(self) -> str:
        """A hash of all that a checkpoint depends on: sources, SQL, mode and target. The trigger, the start of a new
        pipeline and a password may change without a new checkpoint.
        """
        document = self.to_document()
        for source in document["sources"].values():
            source.pop("starting", None)
            source.pop("options", None)
        target = document["target"][self.target.kind.value]
        for name in ("options", "url", "create"):
            target.pop(name, None)
        for name in ("trigger", "isolated", "name"):
            document.pop(name, None)
        document["sql"] = " ".join(self.sql.split())
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
