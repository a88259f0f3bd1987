"""From a document, written by a user or by ``to_document``, to a spec. Pure.

The structs declare the keys of a document and what each may be. definitions/documents.py reads them and finds all
problems in one pass, each with the path of its key, from which yaml_file.py finds the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from streamhouse.core.errors import ConfigError, InvalidSetting
from streamhouse.core.ids import check_topic_name
from streamhouse.core.limits import MAX_DEFINITION_BYTES
from streamhouse.core.suggest import did_you_mean
from streamhouse.core.units import parse_duration
from streamhouse.spark.address import is_address_option
from streamhouse.spark.definitions.documents import Document, Problem, Rule, Text, read
from streamhouse.spark.pipelines.spec import (
    BadRecords,
    Format,
    OutputMode,
    PipelineSpec,
    PostgresTarget,
    SourceSpec,
    TableTarget,
    TargetKind,
    TargetMode,
    TargetSpec,
    TopicTarget,
    Watermark,
)

MAX_SOURCES: Final = 64
"""Topics of one pipeline: before each batch, Spark asks every source for its latest offsets, one after the other."""
MAX_COLUMNS: Final = 1_600
"""The most columns that a row of PostgreSQL can have."""

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)
_VIEW: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}\Z"
_DELAY: Final = r"^[0-9]+(\.[0-9]+)? *[a-zA-Z]+( +[0-9]+ *[a-zA-Z]+)*\Z"
_TABLE: Final = r"^([A-Za-z_][A-Za-z0-9_$]{0,62}\.)?[A-Za-z_][A-Za-z0-9_$]{0,62}\Z"
_RESERVED_OPTIONS: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "startingoffsets", "kafka.group.id", "columns", "topic"}
    | {"txnappid", "txnversion", "includeheaders", "startingtimestamp", "startingoffsetsbytimestamp"}
)
"""Options that the pipeline itself sets."""


def check_pipeline_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{name[:80]!r} is not a valid name for a pipeline",
            hint="use 1 to 63 lower-case letters, digits, '-' and '_', with a letter or digit at both ends",
        )
    return name


def parse_pipeline(document: object) -> tuple[PipelineSpec | None, list[Problem]]:
    """The spec; or None and the problems."""
    found, problems = read(_Pipeline, document)
    return (None if found is None else _pipeline(found)), problems


def load_pipeline(document: object) -> PipelineSpec:
    """Raises InvalidSetting with the first problem."""
    spec, problems = parse_pipeline(document)
    if spec is None:
        first = problems[0]
        raise InvalidSetting(
            f"{'.'.join(first.path)}: {first.message}" if first.path else first.message, hint=first.hint
        )
    return spec


# Short forms and checks of single values.


def _check_option(name: str) -> None:
    if name.lower() in _RESERVED_OPTIONS:
        raise InvalidSetting("is set by the pipeline itself", hint="remove it")
    if is_address_option(name):
        raise InvalidSetting("is the runner's own setting", hint="a pipeline runs where its topics are")


def _flag_as_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _sources_by_view(given: Any) -> Any:
    """``orders, bills`` and ``[orders, bills]`` name topics. Their views have the same names, as far as SQL allows."""
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",")]
    if not isinstance(given, list):
        return given
    if not all(isinstance(each, str) for each in given):
        raise InvalidSetting("is not a list of topics")
    return {re.sub(r"[^A-Za-z0-9_]", "_", topic): {"topic": topic} for topic in given}


def _check_source_count(sources: Mapping[str, Any]) -> None:
    if not 0 < len(sources) <= MAX_SOURCES:
        raise InvalidSetting(f"has {len(sources)} sources, not 1 to {MAX_SOURCES}")


def _watermark_of(given: Any) -> Any:
    """``at, 10 minutes``"""
    if not isinstance(given, str):
        return given
    column, _, delay = given.partition(",")
    return {"column": column.strip(), "delay": delay.strip()}


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


def _check_one_target(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    kinds = [kind.value for kind in TargetKind]
    named = [kind for kind in kinds if given.get(kind) is not None]
    if len(named) != 1:
        others = [str(name) for name in given if name not in kinds]
        hint = did_you_mean(others[0], kinds, otherwise=_TARGET_EXAMPLE) if others else _TARGET_EXAMPLE
        raise InvalidSetting(f"names {' and '.join(named) or 'none'} of {', '.join(kinds)}", hint=hint)
    return given


def _trigger(text: str | None) -> tuple[int | None, bool]:
    """``PipelineSpec.trigger_ms`` and ``available_now``."""
    if text is None:
        return None, False
    if text.lower().replace("_", "-") in ("available-now", "availablenow"):
        return None, True
    try:
        return parse_duration(text), False
    except ConfigError as error:
        raise InvalidSetting(error.message, hint="write it like 10s, or available-now") from None


# The keys of a document.

_TARGET_EXAMPLE: Final = "target: {topic: out}, or {postgres: {url: …, table: …}}, or {table: {format: …, path: …}}"
_WATERMARK_RULE: Final = Rule(example="watermark: {column: at, delay: 10 minutes}", wrong="is not an interval")
_VIEW_RULE: Final = Rule(example="letters, digits and '_', not a digit first", wrong="is not a name that SQL can use")
_TABLE_RULE: Final = Rule(example="table: public.orders_per_minute", wrong="is not a name of a table")
_SOURCES_RULE: Final = Rule(
    example="sources: {orders: {topic: orders}}, or just [orders]", before=_sources_by_view, check=_check_source_count
)

_TopicName = Annotated[Text, Rule(example="target: {topic: out}", check=check_topic_name)]
_Flag = Annotated[bool, Rule(example="write true or false")]
_Options = dict[Annotated[str, Rule(check=_check_option)], Annotated[Text, Rule(before=_flag_as_text)]]


class _Watermark(Document, frozen=True, kw_only=True):
    column: Annotated[Text, _WATERMARK_RULE]
    delay: Annotated[str, Meta(min_length=1, max_length=4_096, pattern=_DELAY), _WATERMARK_RULE]


class _Source(Document, frozen=True, kw_only=True):
    topic: _TopicName | None = None
    schema: Annotated[str, Meta(min_length=1, max_length=64 * 1024)] | None = None
    format: Format | None = None
    watermark: Annotated[_Watermark, Rule(before=_watermark_of)] | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    bad_records: BadRecords = BadRecords.FAIL
    options: _Options = msgspec.field(default_factory=dict)

    def chosen_format(self) -> Format:
        return self.format or (Format.TEXT if self.schema is None else Format.JSON)

    def contradictions(self) -> Iterator[Problem]:
        format = self.chosen_format()
        if (self.schema is not None) != (format is Format.JSON):
            said = "json needs a schema" if self.schema is None else f"{format.value} has no schema"
            yield Problem(path=("format",), message=said, hint='schema: "id BIGINT, amount DOUBLE, at TIMESTAMP"')


class _Topic(Document, frozen=True, kw_only=True):
    name: _TopicName
    options: _Options = msgspec.field(default_factory=dict)


class _Postgres(Document, frozen=True, kw_only=True):
    url: Annotated[Text, Rule(example="url: postgresql://user:${PGPASSWORD}@host/database", check=_check_url)]
    table: Annotated[str, Meta(pattern=_TABLE), _TABLE_RULE]
    mode: TargetMode | None = None
    key: Annotated[
        tuple[Text, ...],
        Meta(max_length=MAX_COLUMNS),
        Rule(example="key: [minute, product]", before=_names, check=_check_no_twins),
    ] = ()
    order_by: Text | None = None
    create: _Flag = True

    def chosen_mode(self) -> TargetMode:
        return self.mode or (TargetMode.UPSERT if self.key else TargetMode.INSERT)

    def contradictions(self) -> Iterator[Problem]:
        if (self.chosen_mode() is TargetMode.UPSERT) != bool(self.key):
            said = "an insert has no key" if self.key else "an upsert needs a key"
            yield Problem(path=("mode",), message=said, hint="key: [minute, product]")
        if self.order_by is not None and not self.key:
            said = "chooses between rows of one key, and there is no key"
            yield Problem(path=("order_by",), message=said, hint="set key, or remove order_by")


class _Table(Document, frozen=True, kw_only=True):
    format: Annotated[Literal["parquet", "iceberg", "delta"], Rule(example="format: delta")]
    path: Annotated[Text, Rule(example="path: /data/orders", check=_check_absolute)]
    partition_by: Text = "none"
    options: _Options = msgspec.field(default_factory=dict)


class _Target(Document, frozen=True, kw_only=True):
    topic: Annotated[_Topic, Rule(before=lambda given: {"name": given} if isinstance(given, str) else given)] | None = (
        None
    )
    postgres: _Postgres | None = None
    table: _Table | None = None


class _Pipeline(Document, frozen=True, kw_only=True):
    name: Annotated[Text, Rule(example="name: orders-per-minute", check=check_pipeline_name)]
    sources: Annotated[dict[Annotated[str, Meta(pattern=_VIEW), _VIEW_RULE], _Source | None], _SOURCES_RULE]
    sql: Annotated[str, Meta(min_length=1, max_length=MAX_DEFINITION_BYTES // 2), Rule(example="sql: SELECT … FROM …")]
    target: Annotated[_Target, Rule(example=_TARGET_EXAMPLE, before=_check_one_target)]
    output_mode: OutputMode = OutputMode.APPEND
    trigger: Annotated[Text, Rule(check=_trigger)] | None = None
    isolated: _Flag = False

    def contradictions(self) -> Iterator[Problem]:
        if self.output_mode is OutputMode.APPEND:
            return
        if self.target.postgres is not None and not self.target.postgres.key:
            said = f"{self.output_mode.value} mode writes rows again, and an insert would double them"
            yield Problem(path=("output_mode",), message=said, hint="set target.postgres.mode to upsert, and its key")
        if self.target.table is not None:
            said = "a table only grows: its mode is append"
            yield Problem(path=("output_mode",), message=said, hint="output_mode: append")


# From documents to specs.


def _pipeline(found: _Pipeline) -> PipelineSpec:
    trigger_ms, available_now = _trigger(found.trigger)
    return PipelineSpec(
        name=found.name,
        sources=tuple(_source(view, source or _Source()) for view, source in found.sources.items()),
        sql=found.sql.strip().rstrip(";").strip(),
        target=_target(found.target),
        output_mode=found.output_mode,
        trigger_ms=trigger_ms,
        available_now=available_now,
        isolated=found.isolated,
    )


def _source(view: str, found: _Source) -> SourceSpec:
    mark = found.watermark
    return SourceSpec(
        view=view,
        topic=found.topic or view,
        format=found.chosen_format(),
        schema=found.schema,
        watermark=None if mark is None else Watermark(column=mark.column, delay=mark.delay),
        starting=found.starting,
        bad_records=found.bad_records,
        options=found.options,
    )


def _target(found: _Target) -> TargetSpec:
    if found.topic is not None:
        return TopicTarget(topic=found.topic.name, options=found.topic.options)
    if (to := found.postgres) is not None:
        return PostgresTarget(
            url=to.url, table=to.table, mode=to.chosen_mode(), key=to.key, order_by=to.order_by, create=to.create
        )
    assert found.table is not None, "_check_one_target"
    table = found.table
    return TableTarget(format=table.format, path=table.path, partition_by=table.partition_by, options=table.options)
