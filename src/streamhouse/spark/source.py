"""What the format does, as plain functions: the shim calls them wherever Spark has sent it.

Each turns options and bytes into the objects of batch.py and stream.py and back. An error of ours becomes one line
(``connection.one_line``): two screens of Spark's frames do not help a user who has mistyped a topic's name.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from streamhouse.core.errors import InvalidSetting, StreamHouseError
from streamhouse.spark.address import resolve_address
from streamhouse.spark.batch import BatchRead, Task, TaskReader
from streamhouse.spark.connection import one_line
from streamhouse.spark.offsets import INITIAL
from streamhouse.spark.options import check_names, chosen_columns, names_source, parse_read_options
from streamhouse.spark.rows import DEFAULT_COLUMNS, ddl
from streamhouse.spark.stream import StreamRead

LOG: Final = logging.getLogger("streamhouse.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Payload:
    """The bytes that the shim carries to planners and executors."""

    read: BatchRead
    tasks: TaskReader


@one_line
def schema(options: Mapping[str, str]) -> str:
    if not names_source(options):  # of a write; or of a read that is yet to be told what it lacks
        return ddl(DEFAULT_COLUMNS)
    check_names(options)
    return ddl(chosen_columns(options))


@one_line
def batch_payload(options: Mapping[str, str], schema: StructType) -> bytes:
    return _payload(options, schema, streaming=False)


@one_line
def stream_payload(options: Mapping[str, str], schema: StructType) -> bytes:
    return _payload(options, schema, streaming=True)


@one_line
def plan(payload: bytes) -> list[bytes]:
    """One pickled task for each of Spark's."""
    return [pickle.dumps(task) for task in _loaded(payload).read.plan()]


def read(payload: bytes, task: bytes | None) -> Iterator[pa.RecordBatch]:
    """Spark reads a plan without tasks once, with none."""
    if task is None:
        return
    reader, loaded = _loaded(payload).tasks, pickle.loads(task)
    assert isinstance(loaded, Task)
    try:
        yield from reader.read(loaded)
    except StreamHouseError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def initial_offset() -> dict[str, Any]:
    return dict(INITIAL)


@one_line
def open_stream(payload: bytes) -> StreamRead:
    read = _loaded(payload).read
    return StreamRead(read.address, read.options)


@one_line
def latest_offset(stream: StreamRead, start: Mapping[str, Any], is_unlimited: bool) -> dict[str, Any]:
    return stream.latest(start, is_unlimited=is_unlimited)


@one_line
def prepare_available_now(stream: StreamRead) -> None:
    stream.prepare_available_now()


@one_line
def plan_stream(stream: StreamRead, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[bytes]:
    return [pickle.dumps(task) for task in stream.plan(start, end)]


def read_limit(payload: bytes) -> ReadLimit:
    """Spark hands it back to ``latestOffset``, where all limits are applied: it knows no two at a time. Only a query
    without any may say "everything", which is also what Spark says itself when limits are not to count.
    """
    limits = _loaded(payload).read.options.limits
    if limits.max_rows is not None:
        return ReadMaxRows(limits.max_rows)
    if limits.max_bytes is not None:
        return ReadMaxBytes(limits.max_bytes)
    return ReadAllAvailable() if limits.min_rows is None else ReadMinRows(limits.min_rows)


def _payload(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> bytes:
    parsed = parse_read_options(options, streaming=streaming)
    if tuple(schema.names) != parsed.columns:
        raise InvalidSetting(
            f"the source's columns are {', '.join(parsed.columns)}, not {', '.join(schema.names)}",
            hint="leave .schema(…) out; the option columns chooses columns",
        )
    if parsed.ignored:
        LOG.warning("options without effect here, there is no broker in between: %s", ", ".join(parsed.ignored))
    address = resolve_address(options)
    return pickle.dumps(
        _Payload(
            read=BatchRead(address=address, options=parsed),
            tasks=TaskReader(address=address, columns=parsed.columns, fail_on_data_loss=parsed.fail_on_data_loss),
        )
    )


def _loaded(payload: bytes) -> _Payload:
    loaded = pickle.loads(payload)
    assert isinstance(loaded, _Payload)
    return loaded
