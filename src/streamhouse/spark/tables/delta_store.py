"""Delta tables, through deltalake.

The progress stands in the commit's own info, under ``streamhouse``, and is numbered: the number is also the version of
the application transaction, which says of a handle, whatever others do meanwhile, which progress it stands on. Every
commit of ours carries the progress along, because Delta forgets the infos of old commits. A commit is tried once, at
the version after the handle's: whoever comes second starts over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import CorruptDocument, InvalidSetting, NotFound
from streamhouse.spark.pipelines.progress import Batch, Progress, Verdict, decide, read_progress
from streamhouse.spark.tables.columns import check_types, merged_schema, plain_schema
from streamhouse.spark.tables.files import WrittenFile, bucket_column
from streamhouse.spark.tables.store import Compacted, LostRace, Standing, TableState, TableStore, added_columns

_APP: Final = "streamhouse"
_LOOK_BACK: Final = 1_000
"""Commits of others that may stand above our last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handle:
    table: DeltaTable
    number: int
    progress: Progress | None
    schema: pa.Schema


class DeltaStore(TableStore):
    format = "delta"

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.location.url, self.location.delta_options())

    def create(self, schema: pa.Schema) -> None:
        if self.exists():
            return
        column = bucket_column(self.by)
        fields = [*schema, *([] if column is None else [pa.field(column, pa.string())])]
        DeltaTable.create(
            self.location.url,
            schema=Schema.from_arrow(pa.schema(fields)),
            mode="ignore",
            partition_by=[] if column is None else [column],
            storage_options=self.location.delta_options(),
        )

    def look(self) -> Standing:
        handle = self._load()
        return Standing(schema=handle.schema, progress=handle.progress)

    def state(self) -> TableState:
        handle = self._load()
        actions = pa.table(handle.table.get_add_actions(flatten=True))
        sizes, rows = actions.column("size_bytes").to_pylist(), actions.column("num_records").to_pylist()
        return TableState(
            files=len(sizes),
            rows=sum(rows),
            size_bytes=sum(sizes),
            version=f"version {handle.table.version()}",
        )

    def add_columns(self, schema: pa.Schema) -> None:
        self.until_alone(lambda: self._evolve(self._load(), schema))

    def commit(self, batch: Batch, files: Sequence[WrittenFile]) -> bool:
        def attempt() -> bool:
            handle = self._load()
            if decide(handle.progress, batch) is Verdict.SKIP:
                return False
            added = added_columns(handle.schema, files)
            if len(added):
                self._evolve(handle, added)
                raise LostRace  # against ourselves: look again at what the table is now
            self._append(handle, batch, self.reconciled(files, handle.schema))
            return True

        return self.until_alone(attempt)

    def compact(self, *, small_bytes: int, target_bytes: int) -> Compacted:
        """deltalake's own; a batch that is committed meanwhile does not disturb it, nor it the batch."""
        handle = self._load()
        done = handle.table.optimize.compact(target_size=target_bytes, commit_properties=self._carrying(handle))
        before = len(handle.table.file_uris())
        return Compacted(
            files_before=before + int(done["numFilesRemoved"]) - int(done["numFilesAdded"]), files_after=before
        )

    def clear_leftovers(self) -> None:
        """Files that no commit names are invisible; Delta's own vacuum removes them."""

    def drop(self) -> None:
        self.drop_directory()

    def _load(self) -> _Handle:
        try:
            table = DeltaTable(self.location.url, storage_options=self.location.delta_options())
        except TableNotFoundError:
            raise NotFound(f"there is no Delta table in {self.location.url}") from None
        column = bucket_column(self.by)
        schema = plain_schema(pa.schema(table.schema().to_arrow()))
        if column is not None:
            place = schema.get_field_index(column)
            if place < 0 or table.metadata().partition_columns != [column]:
                raise InvalidSetting(f"the table {self.location.url} is not partitioned by {self.by}")
            schema = schema.remove(place)
        number = table.transaction_version(_APP)
        if number is None:
            return _Handle(table=table, number=0, progress=None, schema=schema)
        return _Handle(table=table, number=number, progress=self._progress(table, number), schema=schema)

    def _progress(self, table: DeltaTable, number: int) -> Progress:
        for info in table.history(_LOOK_BACK):
            ours = info.get(_APP)
            if ours is None or int(info.get("version", 0)) > table.version():
                continue
            document = json.loads(ours)
            if document["number"] != number:
                raise LostRace  # history shows the newest, the handle is older
            return read_progress(document["progress"])
        raise CorruptDocument(
            f"the last {_LOOK_BACK} commits of {self.location.url} do not say how far it has come",
            hint="begin anew with `--reset`",
        )

    def _append(self, handle: _Handle, batch: Batch, files: Sequence[WrittenFile]) -> None:
        column = bucket_column(self.by)
        now_ms = SystemClock().wall_ms()
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.size_bytes,
                partition_values={} if column is None else {column: file.bucket},
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": file.rows}),
            )
            for file in files
        ]
        properties = CommitProperties(
            custom_metadata=_info(handle.number + 1, batch.done.to_json()),
            app_transactions=[Transaction(_APP, handle.number + 1)],
            max_commit_retries=0,
        )
        try:
            handle.table.create_write_transaction(
                actions,
                "append",
                handle.table.schema(),
                partition_by=[] if column is None else [column],
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise LostRace from error

    def _evolve(self, handle: _Handle, more: pa.Schema) -> None:
        check_types(handle.schema, more, self.location.url)
        added = merged_schema(handle.schema, more)
        fields = Schema.from_arrow(pa.schema(list(added)[len(handle.schema) :])).fields
        if not fields:
            return
        try:
            handle.table.alter.add_columns(fields, commit_properties=self._carrying(handle))
        except DeltaError as error:
            # Two that add the same column at once: one of them finds it there when it looks again.
            raise LostRace from error

    def _carrying(self, handle: _Handle) -> CommitProperties:
        if handle.progress is None:
            return CommitProperties(max_commit_retries=0)
        return CommitProperties(custom_metadata=_info(handle.number, handle.progress.to_json()), max_commit_retries=0)


def _info(number: int, progress: str) -> dict[str, Any]:
    return {_APP: json.dumps({"number": number, "progress": progress})}
