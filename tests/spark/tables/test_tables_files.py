"""A task's rows into files: one time bucket and one set of columns to a file, within a bound, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from table_ground import DAY_US, FIRST_US

from streamhouse.core.errors import InvalidRecord
from streamhouse.spark.tables.files import (
    GATHERED_BYTES,
    TaskFiles,
    bucket_column,
    bucket_directory,
    read_parquet,
    with_columns,
    write_parquet,
)
from streamhouse.spark.tables.spec import PartitionBy

LOCAL = pafs.LocalFileSystem()


def rows(*days: float, **more: pa.Array) -> pa.Table:
    """One row for each of these days after a midnight."""
    times = pa.array([FIRST_US + int(day * DAY_US) for day in days], pa.timestamp("us", "UTC"))
    return pa.table({"at": times, "n": pa.array(range(len(days)), pa.int64()), **more})


def files_in(root: Path, by: PartitionBy = PartitionBy.NONE, gathered_bytes: int = GATHERED_BYTES) -> TaskFiles:
    count = iter(range(1_000))

    def place(bucket: str | None) -> str:
        return f"{bucket_directory(by, bucket)}{next(count)}.parquet"

    return TaskFiles(LOCAL, str(root), by=by, time_column="at", place=place, gathered_bytes=gathered_bytes)


def test_rows_are_gathered_into_one_file(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.add(rows(0, 1))
    files.add(rows())
    files.add(rows(2))
    assert list(tmp_path.iterdir()) == []
    (written,) = files.finish()
    assert (written.path, written.bucket, written.rows) == ("0.parquet", None, 3)
    assert written.size_bytes == (tmp_path / "0.parquet").stat().st_size
    assert read_parquet(LOCAL, str(tmp_path / written.path)).column("n").to_pylist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("by", "buckets"),
    [
        (PartitionBy.DAY, {"2023-11-15": 2, "2023-11-16": 1}),
        (PartitionBy.HOUR, {"2023-11-15-00": 1, "2023-11-15-12": 1, "2023-11-16-00": 1}),
    ],
)
def test_each_time_bucket_has_a_file_of_its_own(tmp_path: Path, by: PartitionBy, buckets: dict[str, int]) -> None:
    files = files_in(tmp_path, by)
    files.add(rows(0, 0.5, 1))
    written = files.finish()
    assert {file.bucket: file.rows for file in written} == buckets
    assert all(file.path.startswith(f"_{by.value}={file.bucket}/") for file in written)


def test_rows_with_more_columns_begin_another_file(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.add(rows(0))
    files.add(rows(1, more=pa.array(["x"])))
    files.add(rows(2, more=pa.array(["y"])))
    assert [(file.rows, len(file.schema)) for file in files.finish()] == [(1, 2), (2, 3)]


def test_what_is_held_in_memory_is_bounded(tmp_path: Path) -> None:
    files = files_in(tmp_path, gathered_bytes=40)
    for day in range(6):
        files.add(rows(day))
    assert len(list(tmp_path.iterdir())) == 2, "16 bytes a row: three rows fill a file"
    assert sum(file.rows for file in files.finish()) == 6


def test_a_row_without_a_time_is_refused_where_the_table_lies_by_time(tmp_path: Path) -> None:
    timeless = pa.table({"at": pa.array([None], pa.timestamp("us", "UTC")), "n": pa.array([1], pa.int64())})
    with pytest.raises(InvalidRecord, match="a row has no at, by which the table is partitioned"):
        files_in(tmp_path, PartitionBy.DAY).add(timeless)
    files = files_in(tmp_path)
    files.add(timeless)
    assert len(files.finish()) == 1


def test_a_file_that_could_not_be_written_whole_never_has_its_name(tmp_path: Path) -> None:
    target = tmp_path / "a" / "x.parquet"
    (tmp_path / "a" / "x.parquet.unfinished").mkdir(parents=True)
    with pytest.raises(OSError, match="unfinished"):
        write_parquet(LOCAL, str(target), rows(0))
    assert not target.exists()
    (tmp_path / "a" / "x.parquet.unfinished").rmdir()
    size_bytes = write_parquet(LOCAL, str(target), rows(0))
    assert [path.name for path in target.parent.iterdir()] == ["x.parquet"]
    assert target.stat().st_size == size_bytes


def test_rows_get_the_columns_of_the_table() -> None:
    wanted = pa.schema([("n", pa.float64()), ("new", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    shaped = with_columns(rows(0, 1), wanted)
    assert shaped.schema == wanted
    assert shaped.column("n").to_pylist() == [0.0, 1.0]
    assert shaped.column("new").to_pylist() == [None, None]


def test_a_table_without_buckets_has_no_directories() -> None:
    assert bucket_column(PartitionBy.NONE) is None
    assert bucket_directory(PartitionBy.NONE, None) == ""
    assert bucket_directory(PartitionBy.DAY, "2024-01-02") == "_day=2024-01-02/"
