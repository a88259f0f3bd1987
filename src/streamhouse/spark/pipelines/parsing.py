"""From a document, written by a user or by ``to_document``, to a spec. Pure.

All problems are found in one pass. Each has the path of its field (``target.postgres.key``), from which yaml_file.py
finds the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from streamhouse.core.errors import ConfigError, InvalidRequest, InvalidSetting
from streamhouse.core.ids import check_topic_name
from streamhouse.core.limits import MAX_DEFINITION_BYTES
from streamhouse.core.suggest import did_you_mean
from streamhouse.core.units import parse_duration
from streamhouse.spark.address import is_address_option
from streamhouse.spark.pipelines.spec import (
    BadRecords,
    Format,
    OutputMode,
    PipelineSpec,
    PostgresTarget,
    SourceSpec,
    TableTarget,
    TargetKind,
    TargetSpec,
    TopicTarget,
    Watermark,
    WriteMode,
)

E = TypeVar("E", bound=StrEnum)
Path = tuple[str, ...]

MAX_SOURCES: Final = 64
"""Topics of one pipeline: before each batch, Spark asks every source for its latest offsets, one after the other."""
MAX_COLUMNS: Final = 1_600
"""What a row of PostgreSQL can have."""

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?", re.ASCII)
_VIEW: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_DELAY: Final = re.compile(r"[0-9]+(\.[0-9]+)? *[a-z]+( +[0-9]+ *[a-z]+)*", re.ASCII | re.IGNORECASE)
_TABLE: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_$]{0,62}\.)?[A-Za-z_][A-Za-z0-9_$]{0,62}", re.ASCII)
_RESERVED_OPTIONS: Final = frozenset(
    {"subscribe", "subscribepattern", "assign", "startingoffsets", "kafka.group.id", "columns", "topic"}
    | {"txnappid", "txnversion", "includeheaders", "startingtimestamp", "startingoffsetsbytimestamp"}
)
"""Options that the pipeline itself sets."""
_TABLE_FORMATS: Final = ("parquet", "iceberg", "delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    path: Path
    message: str
    hint: str = ""

    def __str__(self) -> str:
        where = ".".join(self.path)
        said = f"{where}: {self.message}" if where else self.message
        return f"{said} ({self.hint})" if self.hint else said


def check_pipeline_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{name[:80]!r} is not a valid name for a pipeline",
            hint="use 1 to 63 lower-case letters, digits, '-' and '_', with a letter or digit at both ends",
        )
    return name


def parse_pipeline(document: object) -> tuple[PipelineSpec | None, list[Problem]]:
    """The spec; or None and the problems."""
    problems: list[Problem] = []
    spec = _pipeline(_Fields(document, (), problems))
    return (None if problems else spec), problems


def load_pipeline(document: object) -> PipelineSpec:
    """Raises InvalidSetting with the first problem."""
    spec, problems = parse_pipeline(document)
    if spec is None:
        first = problems[0]
        raise InvalidSetting(
            f"{'.'.join(first.path)}: {first.message}" if first.path else first.message, hint=first.hint
        )
    return spec


class _Fields:
    """One mapping of the document. Fields are read one by one; ``refuse_others`` reports those that were not read."""

    def __init__(self, document: object, path: Path, problems: list[Problem]) -> None:
        self.path = path
        self.problems = problems
        self._asked: set[str] = set()
        self._fields: Mapping[str, Any] = {}
        if isinstance(document, Mapping):
            self._fields = {str(name): value for name, value in document.items()}
        else:
            self.complain("is not a mapping of names to values")

    def complain(self, message: str, *, at: str | None = None, hint: str = "") -> None:
        self.problems.append(Problem(path=self.path if at is None else (*self.path, at), message=message, hint=hint))

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def names(self) -> list[str]:
        return list(self._fields)

    def raw(self, name: str) -> Any:
        self._asked.add(name)
        return self._fields.get(name)

    def text(self, name: str, default: str | None = None, *, most: int = 4_096) -> str | None:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            self.complain("is not text", at=name)
            return default
        if not 0 < len(str(value)) <= most:
            self.complain(f"has {len(str(value))} characters, not 1 to {most}", at=name)
            return default
        return str(value)

    def needed(self, name: str, *, hint: str, most: int = 4_096) -> str:
        if not self.has(name):
            self._asked.add(name)
            self.complain(f"{name} is missing", hint=hint)
            return ""
        return self.text(name, "", most=most) or ""

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.complain(f"{value!r} is neither true nor false", at=name)
            return default
        return value

    def choice(self, name: str, choices: type[E], default: E) -> E:
        value = self.text(name)
        if value is None:
            return default
        known = [each.value for each in choices]
        if value.lower() not in known:
            hint = did_you_mean(value, known, otherwise=f"write {', '.join(known)}")
            self.complain(f"{value[:80]!r} is none of {', '.join(known)}", at=name, hint=hint)
            return default
        return choices(value.lower())

    def texts(self, name: str) -> tuple[str, ...]:
        """A list, or one name, or names with commas between them."""
        value = self.raw(name)
        if value is None:
            return ()
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, Sequence) or not all(isinstance(each, str) and each.strip() for each in value):
            self.complain("is not a list of names", at=name)
            return ()
        return tuple(each.strip() for each in value[:MAX_COLUMNS])

    def inside(self, name: str) -> _Fields:
        return _Fields(self.raw(name), (*self.path, name), self.problems)

    def options(self, name: str) -> dict[str, str]:
        if not self.has(name):
            return {}
        fields, found = self.inside(name), dict[str, str]()
        for option in fields.names():
            value = fields.raw(option)
            if option.lower() in _RESERVED_OPTIONS:
                fields.complain("is set by the pipeline itself", at=option)
            elif is_address_option(option):
                fields.complain("is the runner's own setting", at=option, hint="a pipeline runs where its topics are")
            elif isinstance(value, bool):
                found[option] = str(value).lower()
            else:
                found[option] = fields.text(option, "") or ""
        return found

    def refuse_others(self) -> None:
        for name in self._fields:
            if name not in self._asked:
                known = ", ".join(sorted(self._asked))
                hint = did_you_mean(name, self._asked, otherwise=f"known here: {known}")
                self.complain(f"there is no {name[:80]!r} here", at=name, hint=hint)


def _pipeline(fields: _Fields) -> PipelineSpec | None:
    if fields.problems:
        return None
    name = fields.needed("name", hint="name: orders-per-minute")
    if name:
        _check(fields, "name", check_pipeline_name, name)
    sql = fields.needed("sql", hint="sql: SELECT … FROM …", most=MAX_DEFINITION_BYTES // 2)
    sources = _sources(fields)
    target = _target(fields)
    output_mode = fields.choice("output_mode", OutputMode, OutputMode.APPEND)
    trigger_ms, available_now = _trigger(fields)
    isolated = fields.flag("isolated", False)
    fields.refuse_others()
    if target is None:
        return None
    if isinstance(target, PostgresTarget) and output_mode is not OutputMode.APPEND and not target.key:
        fields.complain(
            f"{output_mode.value} mode writes rows again that were written before, and an insert would double them",
            at="output_mode",
            hint="set target.postgres.mode to upsert, and its key",
        )
    if isinstance(target, TableTarget) and output_mode is not OutputMode.APPEND:
        fields.complain("a table only grows: its mode is append", at="output_mode")
    return PipelineSpec(
        name=name,
        sources=sources,
        sql=sql.strip().rstrip(";").strip(),
        target=target,
        output_mode=output_mode,
        trigger_ms=trigger_ms,
        available_now=available_now,
        isolated=isolated,
    )


def _sources(fields: _Fields) -> tuple[SourceSpec, ...]:
    hint = "sources: {orders: {topic: orders}}, or just [orders]"
    if not fields.has("sources"):
        fields.raw("sources")
        fields.complain("sources is missing", hint=hint)
        return ()
    given = fields.raw("sources")
    if isinstance(given, str):
        given = [each.strip() for each in given.split(",")]
    if isinstance(given, list):
        if not all(isinstance(each, str) for each in given):
            fields.complain("is not a list of topics", at="sources", hint=hint)
            return ()
        given = {re.sub(r"[^A-Za-z0-9_]", "_", topic): {"topic": topic} for topic in given}
    sources = _Fields(given, (*fields.path, "sources"), fields.problems)
    if not 0 < len(sources.names()) <= MAX_SOURCES:
        fields.complain(f"has {len(sources.names())} sources, not 1 to {MAX_SOURCES}", at="sources", hint=hint)
        return ()
    return tuple(_source(sources, view) for view in sources.names())


def _source(sources: _Fields, view: str) -> SourceSpec:
    if not _VIEW.fullmatch(view):
        sources.complain("is not a name that SQL can use", at=view, hint="letters, digits and '_', not a digit first")
    fields = sources.inside(view) if sources.has(view) else _Fields({}, (*sources.path, view), sources.problems)
    topic = fields.text("topic", view) or view
    _check(fields, "topic", check_topic_name, topic)
    schema = fields.text("schema", most=64 * 1024)
    format = fields.choice("format", Format, Format.TEXT if schema is None else Format.JSON)
    if (schema is not None) != (format is Format.JSON):
        said = "json needs a schema" if schema is None else f"{format.value} has no schema"
        fields.complain(said, at="format", hint='schema: "id BIGINT, amount DOUBLE, at TIMESTAMP"')
    starting = (fields.text("starting", "earliest") or "").lower()
    if starting not in ("earliest", "latest"):
        fields.complain(f"{starting[:80]!r} is neither earliest nor latest", at="starting")
    found = SourceSpec(
        view=view,
        topic=topic,
        format=format,
        schema=schema,
        watermark=_watermark(fields),
        starting=starting,
        bad_records=fields.choice("bad_records", BadRecords, BadRecords.FAIL),
        options=fields.options("options"),
    )
    fields.refuse_others()
    return found


def _watermark(fields: _Fields) -> Watermark | None:
    if not fields.has("watermark"):
        fields.raw("watermark")
        return None
    given = fields.raw("watermark")
    if isinstance(given, str):  # "at, 10 minutes"
        column, _, delay = given.partition(",")
        given = {"column": column.strip(), "delay": delay.strip()}
    inner = _Fields(given, (*fields.path, "watermark"), fields.problems)
    hint = "watermark: {column: at, delay: 10 minutes}"
    column, delay = inner.needed("column", hint=hint), inner.needed("delay", hint=hint)
    if delay and not _DELAY.fullmatch(delay):
        inner.complain(f"{delay[:80]!r} is not an interval", at="delay", hint="write it like 10 minutes")
    inner.refuse_others()
    return Watermark(column=column, delay=delay)


def _trigger(fields: _Fields) -> tuple[int | None, bool]:
    text = fields.text("trigger")
    if text is None:
        return None, False
    if text.lower().replace("_", "-") in ("available-now", "availablenow"):
        return None, True
    try:
        return parse_duration(text), False
    except ConfigError as error:
        fields.complain(error.message, at="trigger", hint="write it like 10s, or available-now")
        return None, False


def _target(fields: _Fields) -> TargetSpec | None:
    kinds = [kind.value for kind in TargetKind]
    example = "target: {topic: out}, or {postgres: {url: …, table: …}}, or {table: {format: …, path: …}}"
    if not fields.has("target"):
        fields.raw("target")
        fields.complain("target is missing", hint=example)
        return None
    target = fields.inside("target")
    named = [kind for kind in kinds if target.has(kind)]
    if len(named) != 1:
        others = [name for name in target.names() if name not in kinds]
        hint = did_you_mean(others[0], kinds, otherwise=example) if others else example
        target.complain(f"names {' and '.join(named) or 'none'} of {', '.join(kinds)}", hint=hint)
        return None
    makers = {"topic": _topic_target, "postgres": _postgres_target, "table": _table_target}
    made = makers[named[0]](target)
    target.refuse_others()
    return made


def _topic_target(target: _Fields) -> TargetSpec:
    given = target.raw("topic")
    inner = _Fields({"name": given} if isinstance(given, str) else given, (*target.path, "topic"), target.problems)
    topic = inner.needed("name", hint="target: {topic: out}")
    if topic:
        _check(inner, "name", check_topic_name, topic)
    made = TopicTarget(topic=topic, options=inner.options("options"))
    inner.raw("options")
    inner.refuse_others()
    return made


def _postgres_target(target: _Fields) -> TargetSpec:
    inner = target.inside("postgres")
    url = inner.needed("url", hint="url: postgresql://user:${PGPASSWORD}@host/database")
    if url and not re.match(r"postgres(ql)?://", url):
        inner.complain("is not a postgresql:// address", at="url")
    table = inner.needed("table", hint="table: public.orders_per_minute")
    if table and not _TABLE.fullmatch(table):
        inner.complain(f"{table[:80]!r} is not a name of a table", at="table", hint="write table or schema.table")
    key = inner.texts("key")
    mode = inner.choice("mode", WriteMode, WriteMode.UPSERT if key else WriteMode.INSERT)
    if (mode is WriteMode.UPSERT) != bool(key):
        said = "an upsert needs a key" if not key else "an insert has no key"
        inner.complain(said, at="mode", hint="key: [minute, product]")
    if len(set(key)) != len(key):
        inner.complain("names a column twice", at="key")
    order_by = inner.text("order_by")
    if order_by is not None and not key:
        inner.complain("chooses between rows of one key, and there is no key", at="order_by")
    made = PostgresTarget(
        url=url, table=table, mode=mode, key=key, order_by=order_by, create=inner.flag("create", True)
    )
    inner.refuse_others()
    return made


def _table_target(target: _Fields) -> TargetSpec:
    inner = target.inside("table")
    format = inner.needed("format", hint="format: delta")
    if format and format not in _TABLE_FORMATS:
        hint = did_you_mean(format, _TABLE_FORMATS, otherwise=f"write {', '.join(_TABLE_FORMATS)}")
        inner.complain(f"{format[:80]!r} is none of {', '.join(_TABLE_FORMATS)}", at="format", hint=hint)
    path = inner.needed("path", hint="path: /data/orders")
    if path and "://" not in path and not path.startswith("/"):
        inner.complain("is not absolute: the runner may be elsewhere", at="path", hint="path: /data/orders, or s3://…")
    made = TableTarget(
        format=format,
        path=path,
        partition_by=inner.text("partition_by", "none") or "none",
        options=inner.options("options"),
    )
    inner.raw("options")
    inner.refuse_others()
    return made


def _check(fields: _Fields, name: str, check: Any, value: str) -> None:
    try:
        check(value)
    except (ConfigError, InvalidRequest) as error:
        fields.complain(error.message, at=name, hint=error.hint)
