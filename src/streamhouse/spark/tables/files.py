"""Writes a task's rows into Parquet files, one time bucket to a file.

Rows are collected in memory up to a limit and then written. So a file has one set of columns, and a later file of the
same task may have more. The commit reconciles them. A file that no commit names is not part of the table.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from streamhouse.core.errors import InvalidRecord
from streamhouse.core.limits import MIB
from streamhouse.spark.tables.leftovers import UNFINISHED
from streamhouse.spark.tables.spec import PartitionBy

GATHERED_BYTES: Final = 64 * MIB
"""How much a task holds in memory, as Arrow; also the upper bound of a file."""
_CODEC: Final = "zstd"
_FORMS: Final = {PartitionBy.DAY: "%Y-%m-%d", PartitionBy.HOUR: "%Y-%m-%d-%H"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    path: str
    """The path below the table's location."""
    bucket: str | None
    """2024-01-02, or 2024-01-02-03 by hours; None without partitioning."""
    rows: int
    size_bytes: int
    schema: pa.Schema


def bucket_column(by: PartitionBy) -> str | None:
    """The partition column of Delta and plain Parquet tables."""
    return None if by is PartitionBy.NONE else f"_{by.value}"


def bucket_directory(by: PartitionBy, bucket: str | None) -> str:
    return "" if bucket is None else f"{bucket_column(by)}={bucket}/"


class TaskFiles:
    """``add`` tables, then ``finish``. ``place`` gives a new file's path for a bucket."""

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        root: str,
        *,
        by: PartitionBy,
        time_column: str,
        place: Callable[[str | None], str],
        gathered_bytes: int = GATHERED_BYTES,
    ) -> None:
        self._filesystem = filesystem
        self._root = root
        self._by = by
        self._time_column = time_column
        self._place = place
        self._most_bytes = gathered_bytes
        self._gathered: dict[str | None, list[pa.Table]] = {}
        self._size_bytes = 0
        self._written: list[WrittenFile] = []

    def add(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        for bucket, piece in self._buckets(rows):
            gathered = self._gathered.setdefault(bucket, [])
            if gathered and gathered[0].schema != piece.schema:
                self._flush(bucket)
                gathered = self._gathered.setdefault(bucket, [])
            gathered.append(piece)
        self._size_bytes += rows.nbytes
        if self._size_bytes >= self._most_bytes:
            self._flush_all()

    def finish(self) -> list[WrittenFile]:
        self._flush_all()
        return self._written

    def _flush_all(self) -> None:
        for bucket in list(self._gathered):
            self._flush(bucket)
        self._size_bytes = 0

    def _flush(self, bucket: str | None) -> None:
        rows = pa.concat_tables(self._gathered.pop(bucket))
        path = self._place(bucket)
        size_bytes = write_parquet(self._filesystem, f"{self._root}/{path}", rows)
        self._written.append(
            WrittenFile(path=path, bucket=bucket, rows=rows.num_rows, size_bytes=size_bytes, schema=rows.schema)
        )

    def _buckets(self, rows: pa.Table) -> list[tuple[str | None, pa.Table]]:
        if self._by is PartitionBy.NONE:
            return [(None, rows)]
        times = rows.column(self._time_column)
        if times.null_count:
            raise InvalidRecord(f"a row has no {self._time_column}, by which the table is partitioned")
        names = pc.strftime(times, format=_FORMS[self._by])
        found = pc.unique(names).to_pylist()
        if len(found) == 1:
            return [(found[0], rows)]
        return [(bucket, rows.filter(pc.equal(names, bucket))) for bucket in found]


def write_parquet(filesystem: pafs.FileSystem, path: str, rows: pa.Table) -> int:
    """Writes the file completely or not at all: it is made in memory and then stored in one step. Returns its size."""
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression=_CODEC, store_schema=False, coerce_timestamps="us")
    data = sink.getbuffer()
    if isinstance(filesystem, pafs.LocalFileSystem):
        filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
        unfinished = f"{path}{UNFINISHED}"
        with filesystem.open_output_stream(unfinished) as out:
            out.write(data)
        filesystem.move(unfinished, path)
    else:
        with filesystem.open_output_stream(path) as out:
            out.write(data)
    return len(data)


def read_parquet(filesystem: pafs.FileSystem, path: str) -> pa.Table:
    with filesystem.open_input_file(path) as source:
        return pq.ParquetFile(source).read()


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with the columns and types of ``schema``. Missing columns are null."""
    columns = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        columns.append(pa.nulls(rows.num_rows, field.type) if place < 0 else pc.cast(rows.column(place), field.type))
    return pa.table(columns, schema=schema)
