"""What a pipeline is: topics as views, one SELECT over them, one target. Pure, and without Spark.

A spec has one canonical document (``to_document``). The metadata store keeps it, and two specs are equal if their
documents are. ``parsing.parse_pipeline`` reads it. Watermarks and targets are ``Document`` structs: read as they are
declared here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.ids import check_topic_name
from streamhouse.core.urls import mask_url
from streamhouse.spark.address import is_address_option
from streamhouse.spark.definitions.documents import Document, DocumentProblem, KeyRule, Text

MAX_COLUMNS: Final = 1_600
"""The most columns that a row of PostgreSQL can have."""

_DELAY: Final = r"^[0-9]+(\.[0-9]+)? *[a-zA-Z]+( +[0-9]+ *[a-zA-Z]+)*\Z"
_TABLE: Final = r"^([A-Za-z_][A-Za-z0-9_$]{0,62}\.)?[A-Za-z_][A-Za-z0-9_$]{0,62}\Z"
_RESERVED_OPTIONS: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "startingoffsets", "kafka.group.id", "columns", "topic"}
    | {"txnappid", "txnversion", "includeheaders", "startingtimestamp", "startingoffsetsbytimestamp"}
)
"""Options that the pipeline itself sets."""


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


# Values that a document contains.


def _check_option(name: str) -> None:
    if name.lower() in _RESERVED_OPTIONS:
        raise InvalidSetting("is set by the pipeline itself", hint="remove it")
    if is_address_option(name):
        raise InvalidSetting("is the runner's own setting", hint="a pipeline runs where its topics are")


def _flag_as_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _names(given: Any) -> Any:
    """A list, or names with commas between them."""
    if isinstance(given, str):
        given = given.split(",")
    return [each.strip() if isinstance(each, str) else each for each in given] if isinstance(given, list) else given


def _check_no_twins(names: tuple[str, ...]) -> None:
    if len(set(names)) != len(names):
        raise InvalidSetting("names a column twice")


def _check_url(url: str) -> None:  # its message does not show the URL, which may contain a password
    if not re.match(r"postgres(ql)?://", url):
        raise InvalidSetting("is not a postgresql:// address")


def _check_absolute(path: str) -> None:
    if "://" not in path and not path.startswith("/"):
        raise InvalidSetting("is not absolute: the runner may be elsewhere", hint="path: /data/orders, or s3://…")


_INTERVAL: Final = KeyRule(example="watermark: {column: at, delay: 10 minutes}", wrong="is not an interval")
_KEY: Final = KeyRule(example="key: [minute, product]", before=_names, check=_check_no_twins)
TopicName = Annotated[Text, KeyRule(example="target: {topic: out}", check=check_topic_name)]
Flag = Annotated[bool, KeyRule(example="write true or false")]
Options = dict[
    Annotated[str, KeyRule(check=_check_option)],
    Annotated[Text, KeyRule(example="give it a value", before=_flag_as_text)],
]


class Watermark(Document, frozen=True, kw_only=True):
    column: Annotated[Text, _INTERVAL]
    delay: Annotated[str, Meta(min_length=1, pattern=_DELAY), _INTERVAL]
    """The delay in the form of Spark's intervals: ``10 minutes``."""


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


class TopicTarget(Document, frozen=True, kw_only=True):
    topic: TopicName = msgspec.field(name="name")
    options: Options = msgspec.field(default_factory=dict)
    """Options of the sink, such as ``compression``."""

    kind: ClassVar[TargetKind] = TargetKind.TOPIC

    def to_document(self) -> dict[str, Any]:
        return {"name": self.topic} | ({"options": dict(sorted(self.options.items()))} if self.options else {})

    def __str__(self) -> str:
        return f"topic {self.topic}"


class PostgresTarget(Document, frozen=True, kw_only=True):
    url: Annotated[Text, KeyRule(example="url: postgresql://user:${PGPASSWORD}@host/database", check=_check_url)]
    """May contain ${NAME}, taken from the runner's environment, so that no password is stored."""
    table: Annotated[
        str, Meta(pattern=_TABLE), KeyRule(example="table: public.orders_per_minute", wrong="is not a name of a table")
    ]
    mode: TargetMode = TargetMode.INSERT
    key: Annotated[tuple[Text, ...], Meta(max_length=MAX_COLUMNS), _KEY] = ()
    """The columns by which an upsert finds a row."""
    order_by: Text | None = None
    """A column: of two rows with one key, the row with the higher value counts. None: the later row counts."""
    create: Flag = True

    kind: ClassVar[TargetKind] = TargetKind.POSTGRES

    def contradictions(self) -> Iterator[DocumentProblem]:
        if (self.mode is TargetMode.UPSERT) != bool(self.key):
            said = "an insert has no key" if self.key else "an upsert needs a key"
            yield DocumentProblem(path=("mode",), message=said, hint="key: [minute, product]")
        if self.order_by is not None and not self.key:
            said = "chooses between rows of one key, and there is no key"
            yield DocumentProblem(path=("order_by",), message=said, hint="set key, or remove order_by")

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"url": self.url, "table": self.table, "mode": self.mode.value}
        if self.key:
            document["key"] = list(self.key)
        if self.order_by is not None:
            document["order_by"] = self.order_by
        return document | {"create": self.create}

    def __str__(self) -> str:
        return f"PostgreSQL table {self.table}"

    __repr__ = __str__  # the URL may contain a password


class TableTarget(Document, frozen=True, kw_only=True):
    """A Parquet, Iceberg or Delta table; the options are those of ``streamhouse.spark.tables``."""

    format: Annotated[Literal["parquet", "iceberg", "delta"], KeyRule(example="format: delta")]
    path: Annotated[Text, KeyRule(example="path: /data/orders", check=_check_absolute)]
    partition_by: Text = "none"
    options: Options = msgspec.field(default_factory=dict)

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
    """Whether it runs in a Spark application of its own."""

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
