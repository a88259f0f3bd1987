"""Reads a spec from a document that a user or ``to_document`` wrote, and says how the metadata store keeps it. Pure.

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
from streamhouse.core.limits import MAX_DEFINITION_BYTES
from streamhouse.core.suggest import did_you_mean
from streamhouse.core.units import parse_duration
from streamhouse.spark.definitions.catalog import DefinitionKind, Stored
from streamhouse.spark.definitions.documents import Document, DocumentProblem, KeyRule, Text, read
from streamhouse.spark.pipelines.spec import (
    BadRecords,
    Flag,
    Format,
    Options,
    OutputMode,
    PipelineSpec,
    PostgresTarget,
    SourceSpec,
    TableTarget,
    TargetKind,
    TargetMode,
    TargetSpec,
    TopicName,
    TopicTarget,
    Watermark,
)

MAX_SOURCES: Final = 64
"""Topics of one pipeline: before each batch, Spark asks every source for its latest offsets, one after the other."""

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)
_VIEW: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,127}\Z"


def check_pipeline_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{name[:80]!r} is not a valid name for a pipeline",
            hint="use 1 to 63 lower-case letters, digits, '-' and '_', with a letter or digit at both ends",
        )
    return name


def parse_pipeline(document: object) -> tuple[PipelineSpec | None, list[DocumentProblem]]:
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


def _with_mode(given: Any) -> Any:
    """Rows with a key are upserted unless the document says otherwise."""
    if not isinstance(given, Mapping) or given.get("mode") is not None:
        return given
    return {**given, "mode": TargetMode.UPSERT if given.get("key") else TargetMode.INSERT}


def _topic_of(given: Any) -> Any:
    return {"name": given} if isinstance(given, str) else given


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
_VIEW_RULE: Final = KeyRule(
    example="letters, digits and '_', not a digit first", wrong="is not a name that SQL can use"
)
_SOURCES_RULE: Final = KeyRule(
    example="sources: {orders: {topic: orders}}, or just [orders]", before=_sources_by_view, check=_check_source_count
)


class _SourceDocument(Document, frozen=True, kw_only=True):
    topic: TopicName | None = None
    schema: Annotated[str, Meta(min_length=1, max_length=64 * 1024)] | None = None
    format: Format | None = None
    watermark: Annotated[Watermark, KeyRule(before=_watermark_of)] | None = None
    starting: Literal["earliest", "latest"] = "earliest"
    bad_records: BadRecords = BadRecords.FAIL
    options: Options = msgspec.field(default_factory=dict)

    def chosen_format(self) -> Format:
        return self.format or (Format.TEXT if self.schema is None else Format.JSON)

    def contradictions(self) -> Iterator[DocumentProblem]:
        format = self.chosen_format()
        if (self.schema is not None) != (format is Format.JSON):
            said = "json needs a schema" if self.schema is None else f"{format.value} has no schema"
            yield DocumentProblem(
                path=("format",), message=said, hint='schema: "id BIGINT, amount DOUBLE, at TIMESTAMP"'
            )


class _TargetDocument(Document, frozen=True, kw_only=True):
    topic: Annotated[TopicTarget, KeyRule(before=_topic_of)] | None = None
    postgres: Annotated[PostgresTarget, KeyRule(before=_with_mode)] | None = None
    table: TableTarget | None = None

    def chosen(self) -> TargetSpec:
        chosen = self.topic or self.postgres or self.table
        assert chosen is not None, "_check_one_target"
        return chosen


class _Pipeline(Document, frozen=True, kw_only=True):
    name: Annotated[Text, KeyRule(example="name: orders-per-minute", check=check_pipeline_name)]
    sources: Annotated[dict[Annotated[str, Meta(pattern=_VIEW), _VIEW_RULE], _SourceDocument | None], _SOURCES_RULE]
    sql: Annotated[
        str, Meta(min_length=1, max_length=MAX_DEFINITION_BYTES // 2), KeyRule(example="sql: SELECT … FROM …")
    ]
    target: Annotated[_TargetDocument, KeyRule(example=_TARGET_EXAMPLE, before=_check_one_target)]
    output_mode: OutputMode = OutputMode.APPEND
    trigger: Annotated[Text, KeyRule(check=_trigger)] | None = None
    isolated: Flag = False

    def contradictions(self) -> Iterator[DocumentProblem]:
        if self.output_mode is OutputMode.APPEND:
            return
        if self.target.postgres is not None and not self.target.postgres.key:
            said = f"{self.output_mode.value} mode writes rows again, and an insert would double them"
            yield DocumentProblem(
                path=("output_mode",), message=said, hint="set target.postgres.mode to upsert, and its key"
            )
        if self.target.table is not None:
            said = "a table only grows: its mode is append"
            yield DocumentProblem(path=("output_mode",), message=said, hint="output_mode: append")


# From documents to specs.


def _pipeline(found: _Pipeline) -> PipelineSpec:
    trigger_ms, available_now = _trigger(found.trigger)
    return PipelineSpec(
        name=found.name,
        sources=tuple(_source(view, source or _SourceDocument()) for view, source in found.sources.items()),
        sql=found.sql.strip().rstrip(";").strip(),
        target=found.target.chosen(),
        output_mode=found.output_mode,
        trigger_ms=trigger_ms,
        available_now=available_now,
        isolated=found.isolated,
    )


def _source(view: str, found: _SourceDocument) -> SourceSpec:
    return SourceSpec(
        view=view,
        topic=found.topic or view,
        format=found.chosen_format(),
        schema=found.schema,
        watermark=found.watermark,
        starting=found.starting,
        bad_records=found.bad_records,
        options=found.options,
    )


# How the metadata store keeps pipelines.

StoredPipeline = Stored[PipelineSpec]

PROGRESS_KIND: Final = "pipeline-progress"
"""Documents that target_topic.py keeps, one for each pipeline that writes to a topic."""


def _write(spec: PipelineSpec, generation: int) -> Mapping[str, Any]:
    return {"spec": spec.to_document(), "generation": generation}


def _read(name: str, document: Mapping[str, Any]) -> tuple[PipelineSpec, int]:
    return load_pipeline(document["spec"]), int(document["generation"])


PIPELINES: Final = DefinitionKind(name="pipeline", checkpoints="", write=_write, read=_read)
