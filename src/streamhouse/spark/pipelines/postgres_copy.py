"""The tasks' half of the PostgreSQL target: it sends rows to the staging table by COPY, as fast as Arrow writes CSV."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from streamhouse.spark.pipelines.postgres_sql import ATTEMPT, ROW, Column, copy_into

RESULT: Final = "attempt string, row_count bigint"
"""What a task returns: the attempt id of its rows, and their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    url: str = field(repr=False)
    stage: str
    columns: tuple[Column, ...]
    run_id: str
    batch_id: int


def copy_rows(payload: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    plan = pickle.loads(payload)
    assert isinstance(plan, CopyPlan)
    task = TaskContext.get()
    assert task is not None
    attempt = f"{plan.batch_id}/{task.partitionId():06d}/{task.taskAttemptId()}/{plan.run_id}"
    copied = _copy(plan, attempt, batches)
    yield pa.RecordBatch.from_pydict({"attempt": [attempt], "row_count": pa.array([copied], pa.int64())})


def csv_of(batch: pa.RecordBatch, columns: Sequence[Column], attempt: str, first_row: int) -> bytes:
    """CSV as PostgreSQL reads it: an empty field is NULL, a quoted empty field is an empty text."""
    arrays: list[Any] = [
        pa.array([attempt] * batch.num_rows, pa.string()),
        pa.array(range(first_row, first_row + batch.num_rows), pa.int64()),
    ]
    arrays += [_printable(batch.column(number)) for number in range(len(columns))]
    names = [ATTEMPT, ROW, *(column.name for column in columns)]
    out = io.BytesIO()
    pcsv.write_csv(pa.Table.from_arrays(arrays, names=names), out, pcsv.WriteOptions(include_header=False))
    return out.getvalue()


def _copy(plan: CopyPlan, attempt: str, batches: Iterator[pa.RecordBatch]) -> int:
    """A task without rows opens no connection and commits nothing."""
    import psycopg

    rows = 0
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return 0
    with (
        psycopg.connect(plan.url) as connection,
        connection.cursor() as cursor,
        cursor.copy(copy_into(plan.stage, plan.columns)) as copy,
    ):
        for batch in _chain(first, batches):
            copy.write(csv_of(batch, plan.columns, attempt, rows))
            rows += batch.num_rows
    return rows


def _chain(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _printable(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        hexed = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.array(hexed, pa.string())
    if pa.types.is_timestamp(column.type):
        # Explicit, so that it does not depend on how the library prints time zones.
        zone = "+00" if column.type.tz is not None else ""
        plain = column.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")) if zone else column
        return pc.binary_join_element_wise(pc.strftime(plain, "%Y-%m-%d %H:%M:%S"), zone, "")
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string())
    return column
