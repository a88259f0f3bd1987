"""Delta tables, through deltalake.

The progress is in the commit's info, under ``streamhouse``, with a number. The number is also the version of the
application transaction. So a handle knows which progress it has loaded, whatever other writers do meanwhile. Every
commit of ours repeats the progress, because Delta forgets the infos of old commits. A commit is tried once, at the
version after the handle's. The second of two writers fails and starts over.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import CorruptDocument, InvalidSetting, NotFound
from streamhouse.spark.definitions.progress import Batch, BatchCheck, Progress, decide, read_progress
from streamhouse.spark.tables.columns import check_types, merged_schema, plain_schema
from streamhouse.spark.tables.files import WrittenFile, bucket_column
from streamhouse.spark.tables.leftovers import DATA, check_not_vacuumed
from streamhouse.spark.tables.store import Compacted, LostRace, Standing, TableState, TableStore, added_columns

_APP: Final = "streamhouse"
_HORIZON: Final = "streamhouse.vacuumHorizonMs"
_LOG: Final = "_delta_log"
_LOOK_BACK: Final = (1, 20, 1_000)
"""How many commits of other writers may follow our last one. Each costs a request to the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handle:
    table: DeltaTable
    number: int
    progress: Progress | None
    schema: pa.Schema
    horizon_ms: int


class DeltaStore(TableStore):
    format = "delta"

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.location.url, self.location.delta_options())

    def create(self, schema: pa.Schema) -> None:
        if self.exists():
            return
        self.check_free()
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
        handle = self.until_alone(self._load)
        return Standing(schema=handle.schema, progress=handle.progress)

    def state(self) -> TableState:
        handle = self.until_alone(self._load)
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
            if decide(handle.progress, batch) is BatchCheck.SKIP:
                return False
            check_not_vacuumed((file.path for file in files), handle.horizon_ms, self.location.url)
            added = added_columns(handle.schema, files)
            if len(added):
                self._evolve(handle, added)
                raise LostRace  # against ourselves: look again at what the table is now
            self._append(handle, batch, self.reconciled(files, handle.schema))
            return True

        return self.until_alone(attempt)

    def compact(self, *, small_bytes: int, target_bytes: int) -> Compacted:
        """Uses deltalake's compaction. It and a batch that is committed meanwhile do not conflict; a vacuum does."""

        def attempt() -> Compacted:
            handle = self._load()
            try:
                done = handle.table.optimize.compact(target_size=target_bytes, commit_properties=self._carrying(handle))
            except CommitFailedError as error:
                raise LostRace from error
            after = len(handle.table.file_uris())
            before = after + int(done["numFilesRemoved"]) - int(done["numFilesAdded"])
            return Compacted(files_before=before, files_after=after)

        return self.until_alone(attempt)

    def clear_leftovers(self) -> None:
        """Files that no commit names are invisible; a vacuum removes them."""

    def raise_horizon(self, before_ms: int) -> int:
        """Stored as a property of the table. Delta refuses a commit, also of deltalake's own compaction, that is based
        on a state with other properties.
        """

        def attempt() -> int:
            handle = self._load()
            horizon_ms = max(before_ms, handle.horizon_ms)
            try:
                handle.table.alter.set_table_properties(
                    {_HORIZON: str(horizon_ms)}, raise_if_not_exists=False, commit_properties=self._carrying(handle)
                )
            except CommitFailedError as error:
                raise LostRace from error
            return 0

        return self.until_alone(attempt)

    def forgettable(self, before_ms: int) -> int:
        """Return 0, because Delta removes old versions with its log, after a time of its own."""
        return 0

    def current_files(self) -> set[str]:
        handle = self.until_alone(self._load)
        paths = pa.table(handle.table.get_add_actions(flatten=True)).column("path").to_pylist()
        return {unquote(path) for path in paths}

    def referred_files(self, before_ms: int, *, as_if_forgotten: bool) -> set[str]:
        """Readers of an older version still need files that were replaced recently; the commit says when (R7)."""
        lately = self._removed_since(before_ms)
        return self.current_files() | lately

    def is_vacuums(self, path: str) -> bool:
        top = path.partition("/")[0]
        hidden = "/" in path and top.startswith(("_", ".")) and "=" not in top
        return path.endswith(DATA) and not hidden

    def _removed_since(self, before_ms: int) -> set[str]:
        filesystem, root = self.location.filesystem(), f"{self.location.path}/{_LOG}"
        removed: set[str] = set()
        for info in filesystem.get_file_info(pafs.FileSelector(root)):
            if not info.path.endswith(".json") or info.mtime_ns is None or info.mtime_ns // 1_000_000 < before_ms:
                continue
            with filesystem.open_input_stream(info.path) as source:
                for line in source.read().splitlines():
                    action = json.loads(line).get("remove")
                    if action is not None and action.get("deletionTimestamp", before_ms) >= before_ms:
                        removed.add(unquote(action["path"]))
        return removed

    def drop(self) -> None:
        """Removes the log last: without it, the directory would not be recognized as a table."""
        self.delete_files(self.is_vacuums)
        self.delete_files(lambda path: path.startswith(f"{_LOG}/"))
        self.remove_empty_directories()

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
        return _Handle(
            table=table,
            number=number or 0,
            progress=None if number is None else self._progress(table, number),
            schema=schema,
            horizon_ms=int(table.metadata().configuration.get(_HORIZON, 0)),
        )

    def _progress(self, table: DeltaTable, number: int) -> Progress:
        for count in _LOOK_BACK:
            for info in table.history(count):
                ours = info.get(_APP)
                if ours is None or int(info.get("version", 0)) > table.version():
                    continue
                document = json.loads(ours)
                if document["number"] > number:
                    raise LostRace  # history shows the newest, the handle is older
                if document["number"] == number:
                    return read_progress(document["progress"])
                # Else it was carried along by a compaction that began before a batch and ended after it.
        raise CorruptDocument(
            f"the last {_LOOK_BACK[-1]} commits of {self.location.url} do not say how far it has come",
            hint="begin again with `start --reset`",
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
