"""A table as the target of a streaming query: tasks write files, the driver commits them with the batch's progress.

For each batch, the driver compares the table's progress with the batch. Then it runs one Spark job, whose tasks return
the files they have written. Then it commits the dead letters, and then the table. In this order a bad record may come
to the dead-letter topic twice (if the checkpoint is lost between the two commits), but it is never lost.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark import sink
from streamhouse.spark.address import StoreAddress, resolve_address
from streamhouse.spark.definitions.progress import Batch, BatchCheck, Progress, decide
from streamhouse.spark.definitions.targets import BatchPlan, LastFailure, batch_by_batch, by_value, compute_only
from streamhouse.spark.tables.columns import check_types, ddl_of, name_fault, plain_schema
from streamhouse.spark.tables.opening import open_table
from streamhouse.spark.tables.spec import PartitionBy, StorageSpec, TableFormat, ValueSpec
from streamhouse.spark.tables.store import TableStore
from streamhouse.spark.tables.tasks import RESULT, TaskPlan, TaskResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_OPTIONS: Final = ("time_column", "catalog", "namespace", "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """How a topic's records become rows. Only for tables; a pipeline's query already produces rows."""

    topic: str
    values: ValueSpec
    dead_letters: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriter:
    """A ``Writer`` (definitions/targets.py)."""

    address: StoreAddress = field(repr=False)
    address_options: Mapping[str, str] = field(repr=False)
    storage: StorageSpec
    records: Records | None

    def write(self, rows: DataFrame, batch: Batch) -> None:
        store = open_table(self.storage, self.address)
        standing = store.look()
        if decide(standing.progress, batch) is BatchCheck.SKIP:
            compute_only(rows)
            return
        dead_letters = self._dead_letters(batch)
        plan = TaskPlan(
            location=store.location,
            data_prefix=store.data_prefix,
            by=store.by,
            time_column=store.time_column,
            batch=f"{batch.query_id.replace('-', '')[:16]}-{batch.batch_id:012d}",
            values=None if self.records is None else self.records.values,
            known_ddl=ddl_of(standing.schema),
            topic="" if self.records is None else self.records.topic,
            dead_letters=dead_letters,
        )
        write = by_value("streamhouse.spark.tables.tasks", "write_rows", pickle.dumps(plan))
        answers = rows.mapInArrow(write, RESULT).collect()
        wrote: list[TaskResult] = [pickle.loads(answer.message) for answer in answers]
        if dead_letters is not None:
            sink.commit(dead_letters, [each.dead for each in wrote if each.dead is not None])
        store.commit(batch, [file for each in wrote for file in each.files])

    def _dead_letters(self, batch: Batch) -> bytes | None:
        if self.records is None or not self.records.dead_letters:
            return None
        schema = StructType.fromJson(_DEAD_LETTER_SCHEMA)
        options = {
            **self.address_options,
            "topic": self.records.dead_letters,
            "txnAppId": f"{batch.query_id}-dead-letters",
            "txnVersion": str(batch.batch_id),
        }
        return sink.batch_payload(options, schema, False)


class StoreTarget:
    """A ``Target`` (definitions/targets.py), for append mode."""

    def __init__(
        self,
        storage: StorageSpec,
        address_options: Mapping[str, str],
        *,
        owner: str,
        records: Records | None = None,
    ) -> None:
        self.failure = LastFailure()
        self._storage = storage
        self._options = dict(address_options)
        self._address = resolve_address(address_options)
        self._owner = owner
        self._records = records

    @property
    def name(self) -> str:
        return f"{self._storage.format} table {self._storage.location}"

    @property
    def store(self) -> TableStore:
        return open_table(self._storage, self._address)

    def check(self, schema: StructType) -> None:
        """Raises StreamHouseError for rows that the table could not take; changes nothing."""
        columns, store = self._columns(schema), self.store
        if store.exists():
            check_types(store.look().schema, columns, store.location.url)

    def prepare(self, schema: StructType) -> None:
        self.prepare_columns(self._columns(schema))

    def prepare_columns(self, columns: pa.Schema) -> None:
        store = self.store
        store.create(columns)
        store.add_columns(columns)
        store.clear_leftovers()

    def writer(self, frame: DataFrame, *, checkpoint: str, generation: int) -> DataStreamWriter:
        writer = TableWriter(
            address=self._address, address_options=self._options, storage=self._storage, records=self._records
        )
        plan = BatchPlan(owner=self._owner, generation=generation, checkpoint=checkpoint, writer=writer)
        return batch_by_batch(frame, plan, self.failure)

    def progress(self) -> Progress | None:
        store = self.store
        return store.look().progress if store.exists() else None

    def reset(self) -> None:
        """The rows go with the progress."""
        self.store.drop()

    def _columns(self, schema: StructType) -> pa.Schema:
        for field_ in schema.fields:
            fault = name_fault(field_.name)
            if fault is not None:
                raise InvalidSetting(fault, hint="give it another name with AS")
        columns = plain_schema(to_arrow_schema(schema, timezone="UTC"))
        if self._storage.partition_by is not PartitionBy.NONE:
            place = columns.get_field_index(self._storage.time_column)
            if place < 0 or not pa.types.is_timestamp(columns.field(place).type):
                raise InvalidSetting(
                    f"the rows have no timestamp {self._storage.time_column} to partition by",
                    hint="select one under that name, name another as time_column, or partition by none",
                )
        return columns


def table_target(
    *,
    format: str,
    path: str,
    partition_by: str,
    options: Mapping[str, str],
    owner: str,
    address_options: Mapping[str, str],
) -> StoreTarget:
    """The table target of a pipeline. ``options``: time_column, and catalog, namespace and table for Iceberg. Raises
    InvalidSetting.
    """
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise InvalidSetting(f"a table has no option {unknown[0]!r}", hint=f"the options are {', '.join(_OPTIONS)}")
    try:
        storage = StorageSpec(
            format=TableFormat(format), location=path, partition_by=PartitionBy(partition_by), **options
        )
    except ValueError as error:
        raise InvalidSetting(str(error)) from error
    return StoreTarget(storage, address_options, owner=owner)


_DEAD_LETTER_SCHEMA: Final = {
    "type": "struct",
    "fields": [
        {"name": "key", "type": "binary", "nullable": True, "metadata": {}},
        {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
        {"name": "timestamp", "type": "timestamp", "nullable": True, "metadata": {}},
        {
            "name": "headers",
            "nullable": True,
            "metadata": {},
            "type": {
                "type": "array",
                "containsNull": True,
                "elementType": {
                    "type": "struct",
                    "fields": [
                        {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                        {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
                    ],
                },
            },
        },
    ],
}
