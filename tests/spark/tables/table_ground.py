"""What tests of tables stand on: each format in its directory, batches made by hand, DuckDB as a second engine."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import duckdb
import pyarrow as pa

from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import TopicId
from streamhouse.objectstore.opening import StoreOptions
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.definitions.progress import Batch, Position, SourcePosition
from streamhouse.spark.offsets import TopicPartition
from streamhouse.spark.tables.columns import OWN_COLUMNS, TIMESTAMP
from streamhouse.spark.tables.files import TaskFiles, WrittenFile, bucket_directory
from streamhouse.spark.tables.leftovers import new_name
from streamhouse.spark.tables.opening import open_table
from streamhouse.spark.tables.spec import PartitionBy, StorageSpec, TableFormat
from streamhouse.spark.tables.store import TableStore

TOPIC_ID = TopicId(UUID(int=7))
DAY_US = 86_400_000_000
FIRST_US = 1_700_006_400_000_000
"""A midnight."""
FORMATS = tuple(TableFormat)


def position(offset: int) -> Position:
    return (SourcePosition(offsets={TopicPartition("t", 0): offset}, topic_ids={"t": TOPIC_ID}),)


def batch(number: int, begin: int, end: int, *, query: str = "q1", generation: int = 1) -> Batch:
    return Batch(
        owner="table t",
        generation=generation,
        query_id=query,
        batch_id=number,
        start=position(begin),
        end=position(end),
    )


def rows(begin: int, end: int, **columns: pa.Array) -> pa.Table:
    """Return the rows of offsets ``begin`` to ``end``, one for each minute."""
    offsets = range(begin, end)
    own = pa.table(
        {
            "_partition": pa.array([0 for _ in offsets], pa.int32()),
            "_offset": pa.array(offsets, pa.int64()),
            "_timestamp": pa.array([FIRST_US + each * 60_000_000 for each in offsets], pa.timestamp("us", "UTC")),
            "_key": pa.array([b"k%d" % each for each in offsets], pa.binary()),
        },
        schema=OWN_COLUMNS,
    )
    for name, values in columns.items():
        own = own.append_column(name, values)
    return own


@dataclass(kw_only=True)
class TableGround:
    directory: Path
    storage: StorageSpec
    address: StoreAddress
    written: int = 0

    @property
    def store(self) -> TableStore:
        """Open the store as another process would do."""
        return open_table(self.storage, self.address)

    def files(self, table: pa.Table, *, tag: str = "q1-000000000000", made_ms: int | None = None) -> list[WrittenFile]:
        """Write files as a task does; ``made_ms`` is what its clock says."""
        store, clock = self.store, SystemClock()

        def place(bucket: str | None) -> str:
            self.written += 1
            now_ms = clock.wall_ms() if made_ms is None else made_ms
            name = new_name(f"{tag}-{self.written:05d}", now_ms=now_ms, unique=UUID(int=self.written))
            return f"{store.data_prefix}{bucket_directory(store.by, bucket)}{name}"

        files = TaskFiles(
            store.location.filesystem(), store.location.path, by=store.by, time_column=TIMESTAMP, place=place
        )
        files.add(table)
        return files.finish()

    def offsets(self) -> list[int]:
        """Return the offsets that DuckDB reads."""
        return [row[0] for row in self.query("SELECT _offset FROM rows ORDER BY _offset")]

    def query(self, sql: str) -> Sequence[tuple[Any, ...]]:
        return query_table(sql, self.storage, self.address)


@cache
def second_engine() -> duckdb.DuckDBPyConnection:
    """Loading its extensions takes a while."""
    connection = duckdb.connect()
    for name in ("avro", "iceberg", "delta"):
        package = importlib.import_module(f"duckdb_extension_{name}")
        (extension,) = Path(package.__path__[0]).glob("extensions/*/*.duckdb_extension")
        connection.execute(f"LOAD '{extension}'")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def query_table(sql: str, storage: StorageSpec, address: StoreAddress) -> Sequence[tuple[Any, ...]]:
    """``rows`` in the SQL is the table, as DuckDB reads it."""
    store = open_table(storage, address)
    below = "" if store.by is PartitionBy.NONE else "*/"
    source = {
        TableFormat.DELTA: f"delta_scan('{store.location.url}')",
        TableFormat.ICEBERG: f"iceberg_scan('{store.state().version}')",
        TableFormat.PARQUET: f"read_parquet('{store.location.path}/{below}*.parquet', union_by_name = true)",
    }[storage.format]
    connection = second_engine()
    connection.execute(f"CREATE OR REPLACE VIEW rows AS SELECT * FROM {source}")
    return connection.execute(sql).fetchall()


def make_ground(directory: Path, kind: TableFormat, by: PartitionBy = PartitionBy.NONE) -> TableGround:
    storage = StorageSpec(format=kind, location=str(directory / "table"), partition_by=by)
    (directory / "objects").mkdir()
    address = StoreAddress(
        metadata_url=f"sqlite://{quote(str(directory))}/metadata.db",
        store_url=f"file://{quote(str(directory))}/objects",
        store=StoreOptions(),
        request_timeout_ms=10_000,
        retry_deadline_ms=10_000,
    )
    return TableGround(directory=directory, storage=storage, address=address)


def three_small_files(directory: Path, kind: TableFormat) -> TableGround:
    """Offsets 0, 1 and 2, by three batches."""
    ground = make_ground(directory, kind)
    ground.store.create(OWN_COLUMNS)
    for number in range(3):
        files = ground.files(rows(number, number + 1), tag=f"q1-{number:012d}")
        assert ground.store.commit(batch(number, number, number + 1), files)
    return ground
