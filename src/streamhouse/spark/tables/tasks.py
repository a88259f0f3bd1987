"""A task's work: records become rows, rows become Parquet files, records that cannot become rows become dead letters.

Runs in the executors, where it needs only Arrow, and fastavro for Avro. Returns one row with what the commit needs. No
commit names the files of an attempt that Spark does not count.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import InvalidRecord
from streamhouse.core.randomness import SystemRandomness
from streamhouse.spark import sink
from streamhouse.spark.tables.columns import OWN_COLUMNS, TIME_TYPE, parse_schema
from streamhouse.spark.tables.files import TaskFiles, WrittenFile, bucket_directory
from streamhouse.spark.tables.leftovers import new_name
from streamhouse.spark.tables.location import Location
from streamhouse.spark.tables.spec import PartitionBy, ValueFormat, ValueSpec
from streamhouse.spark.tables.values import Avro, GivenJson, InferredJson, ValueDecoder

RESULT: Final = "message BINARY"
RECORD_COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp", "headers")
"""The columns that a table's query reads, in this order."""
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
DEAD_LETTERS: Final = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("timestamp", TIME_TYPE), ("headers", _HEADERS)]
)
REASON_HEADER: Final = "streamhouse.error"
_ROWS_AT_ONCE: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    location: Location = field(repr=False)
    data_prefix: str
    by: PartitionBy
    time_column: str
    batch: str
    """The prefix of every file name: the query and the batch."""
    values: ValueSpec | None
    """How values become rows; None if the rows have the table's own columns."""
    known_ddl: str
    """The columns that the table has, when they are inferred."""
    topic: str
    dead_letters: bytes | None = field(repr=False)
    """The payload of the sink; None: a bad record fails the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    files: tuple[WrittenFile, ...]
    dead: bytes | None
    """The values that the sink's commit needs."""
    bad_count: int


def write_rows(payload: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one task; Spark calls it with mapInArrow."""
    plan = pickle.loads(payload)
    assert isinstance(plan, TaskPlan)
    task = _Task(plan)
    dead = None
    if plan.values is None:
        for batch in batches:
            task.files.add(pa.Table.from_batches([batch]))
    elif plan.dead_letters is None:
        for _ in task.take(batches):
            raise InvalidRecord(task.first_fault, hint="a dead-letter topic would take such records")
    else:
        dead = sink.write(plan.dead_letters, task.take(batches))
    wrote = TaskResult(files=tuple(task.files.finish()), dead=dead, bad_count=task.bad_count)
    yield pa.record_batch([pa.array([pickle.dumps(wrote)], pa.binary())], names=["message"])


class _Task:
    def __init__(self, plan: TaskPlan) -> None:
        context = TaskContext.get()
        number, clock, randomness = 0 if context is None else context.partitionId(), SystemClock(), SystemRandomness()

        def place(bucket: str | None) -> str:
            name = new_name(f"{plan.batch}-{number:05d}", now_ms=clock.wall_ms(), unique=randomness.uuid())
            return f"{plan.data_prefix}{bucket_directory(plan.by, bucket)}{name}"

        self.files = TaskFiles(
            plan.location.filesystem(), plan.location.path, by=plan.by, time_column=plan.time_column, place=place
        )
        self.bad_count = 0
        self.first_fault = ""
        self._plan = plan
        self._decoder = None if plan.values is None else _decoder(plan.values, plan.known_ddl)

    def take(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of ``batches`` to the files; yields the dead letters."""
        for whole in batches:
            for at in range(0, whole.num_rows, _ROWS_AT_ONCE):
                batch = whole.slice(at, _ROWS_AT_ONCE)
                dead = self._decode(batch)
                if dead is not None:
                    yield dead

    def _decode(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        assert self._decoder is not None
        decoded = self._decoder.decode(batch.column("value").to_pylist())
        kept = batch if not decoded.bad else batch.take(pa.array(decoded.rows, pa.int64()))
        own = [kept.column(name) for name in ("partition", "offset", "timestamp", "key")]
        own = [column.cast(field.type) for column, field in zip(own, OWN_COLUMNS, strict=True)]
        names = [*OWN_COLUMNS.names, *decoded.columns]
        self.files.add(pa.table([*own, *decoded.columns.values()], names=names))
        if not decoded.bad:
            return None
        self.bad_count += len(decoded.bad)
        return self._dead_letters(batch, sorted(decoded.bad))

    def _dead_letters(self, batch: pa.RecordBatch, bad: list[tuple[int, str]]) -> pa.RecordBatch:
        """The unchanged records, with added headers that say where each comes from and what is wrong."""
        records = batch.take(pa.array([row for row, _ in bad], pa.int64())).to_pylist()
        headers: list[list[dict[str, Any]]] = []
        for record, (_, reason) in zip(records, bad, strict=True):
            where = {
                REASON_HEADER: reason,
                "streamhouse.topic": self._plan.topic,
                "streamhouse.partition": str(record["partition"]),
                "streamhouse.offset": str(record["offset"]),
            }
            ours = [{"key": name, "value": text.encode(errors="replace")} for name, text in where.items()]
            headers.append([*(record["headers"] or ()), *ours])
            if not self.first_fault:
                place = f"{self._plan.topic}/{record['partition']} at offset {record['offset']}"
                self.first_fault = f"the record of {place} cannot become a row: {reason}"
        columns = [
            pa.array([record["key"] for record in records], pa.binary()),
            pa.array([record["value"] for record in records], pa.binary()),
            pa.array([record["timestamp"] for record in records], TIME_TYPE),
            pa.array(headers, _HEADERS),
        ]
        return pa.record_batch(columns, schema=DEAD_LETTERS)


def _decoder(values: ValueSpec, known_ddl: str) -> ValueDecoder:
    if values.format is ValueFormat.AVRO:
        return Avro(json.loads(values.schema), confluent=values.confluent)
    if values.schema:
        return GivenJson(parse_schema(values.schema))
    return InferredJson(parse_schema(known_ddl))
