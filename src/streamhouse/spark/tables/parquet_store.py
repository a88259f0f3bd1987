"""Plain Parquet: a directory of files that any engine reads, with a small log of ours beside them.

A directory has no commit, so files are staged out of sight and moved in when the batch is decided on:

    _streamhouse/staging/<batch>-….parquet   what tasks write
    <bucket>/<batch>-<nnnnn>.parquet         what readers see; named after the batch, so that a replay finds them
    _streamhouse/log/<n>.json                columns and progress, create-only: the highest number counts

If a writer is killed in between, readers see part of a batch. The replay of the batch repairs that: it first removes
the files with the batch's names. If the checkpoint is lost too, ``clear_leftovers`` at the next start removes files of
batches that the log does not have. A writer that is still running then is refused when it writes its log entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import CorruptDocument, NotFound, ObjectExists, TableBusy
from streamhouse.core.randomness import SystemRandomness
from streamhouse.spark.connection import Connection
from streamhouse.spark.definitions.progress import Batch, BatchCheck, Progress, decide, read_progress
from streamhouse.spark.tables.columns import check_types, ddl_of, merged_schema, parse_schema
from streamhouse.spark.tables.files import WrittenFile, bucket_directory, read_parquet, with_columns, write_parquet
from streamhouse.spark.tables.leftovers import DATA, UNFINISHED, check_not_vacuumed, files_gone, new_name
from streamhouse.spark.tables.location import Location
from streamhouse.spark.tables.spec import PartitionBy
from streamhouse.spark.tables.store import (
    Compacted,
    LostRace,
    Standing,
    TableState,
    TableStore,
    added_columns,
    bins,
)

_OURS: Final = "_streamhouse"
_LOG: Final = f"{_OURS}/log/"
_STAGING: Final = f"{_OURS}/staging"
_LOG_STORES_OWN: Final = ".tmp"
_NAME: Final = re.compile(r"(?P<query>[0-9a-z]+)-(?P<batch>\d{12})-\d{5}\.parquet")
_KEPT_ENTRIES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogEntry:
    number: int
    ddl: str
    progress: str | None = None
    queries: dict[str, int]
    """Tags of the queries that have written here, each with its last batch."""
    merging: list[dict[str, Any]]
    """Decided compactions: the files to remove, and the staged file that replaces them."""
    starts: int = 0
    """How often leftovers were removed. Files that a writer had moved in before may be gone."""
    horizon_ms: int = 0
    """Files made before this time can no longer be committed: a vacuum may have removed them."""

    @property
    def schema(self) -> pa.Schema:
        return parse_schema(self.ddl)


class ParquetStore(TableStore):
    format = "parquet"
    data_prefix = f"{_STAGING}/"

    def __init__(self, location: Location, *, by: PartitionBy, time_column: str, log: Connection) -> None:
        """``log``: a connection whose object store is the table's location."""
        super().__init__(location, by=by, time_column=time_column)
        self._log = log

    def exists(self) -> bool:
        return self._last() is not None

    def create(self, schema: pa.Schema) -> None:
        if self._last() is None:
            self.check_free(_OURS, _LOG_STORES_OWN)
            try:
                self._put(_LogEntry(number=1, ddl=ddl_of(schema), queries={}, merging=[]))
            except LostRace:
                return

    def look(self) -> Standing:
        entry = self._need()
        return Standing(schema=entry.schema, progress=_progress(entry))

    def state(self) -> TableState:
        number = self._need().number
        found = self._files()
        filesystem = self.location.filesystem()
        rows = 0
        for path in found:
            with filesystem.open_input_file(f"{self.location.path}/{path}") as source:
                rows += pq.read_metadata(source).num_rows
        return TableState(
            files=len(found),
            rows=rows,
            size_bytes=sum(found.values()),
            version=f"log entry {number}",
        )

    def add_columns(self, schema: pa.Schema) -> None:
        def attempt() -> None:
            entry = self._need()
            check_types(entry.schema, schema, self.location.url)
            merged = merged_schema(entry.schema, schema)
            if len(merged) > len(entry.schema):
                self._put(replace(entry, number=entry.number + 1, ddl=ddl_of(merged)))

        self.until_alone(attempt)

    def commit(self, batch: Batch, files: Sequence[WrittenFile]) -> bool:
        moved_at: int | None = None

        def attempt() -> bool:
            nonlocal moved_at
            entry = self._need()
            if decide(_progress(entry), batch) is BatchCheck.SKIP:
                return False
            check_not_vacuumed((file.path for file in files), entry.horizon_ms, self.location.url)
            schema = merged_schema(entry.schema, added_columns(entry.schema, files))
            tag = query_tag(batch.query_id)
            if moved_at is None:
                self._move_in(self.reconciled(files, schema), f"{tag}-{batch.batch_id:012d}")
                moved_at = entry.starts
            elif moved_at != entry.starts:
                raise TableBusy(f"another runner has begun with {self.location.url}", hint="run it in one place")
            self._put(
                replace(
                    entry,
                    number=entry.number + 1,
                    ddl=ddl_of(schema),
                    progress=batch.done.to_json(),
                    queries={**entry.queries, tag: batch.batch_id},
                )
            )
            return True

        return self.until_alone(attempt)

    def compact(self, *, small_bytes: int, target_bytes: int) -> Compacted:
        self._finish_merging()
        before = self._files()
        known = self._need()
        buckets: dict[str, list[tuple[str, int]]] = {}
        for path, size_bytes in sorted(before.items()):
            if self._is_committed(path, known):
                buckets.setdefault(path.rpartition("/")[0], []).append((path, size_bytes))
        filesystem, merging = self.location.filesystem(), list[dict[str, Any]]()
        for directory, files in buckets.items():
            for group in bins(files, small_bytes=small_bytes, target_bytes=target_bytes):
                name = new_name("compacted", now_ms=SystemClock().wall_ms(), unique=SystemRandomness().uuid())
                rows = [read_parquet(filesystem, f"{self.location.path}/{path}") for path in group]
                merged = pa.concat_tables([with_columns(each, known.schema) for each in rows])
                write_parquet(filesystem, f"{self.location.path}/{_STAGING}/{name}", merged)
                target = f"{directory}/{name}" if directory else name
                merging.append({"gone": group, "staged": f"{_STAGING}/{name}", "target": target})
        if merging:

            def decide_on() -> None:
                self._finish_merging()
                entry, there = self._need(), self._files()
                # What another compaction has put together meanwhile would be there twice.
                mine = [piece for piece in merging if there.keys() >= set(piece["gone"])]
                if entry.merging:
                    raise LostRace
                self._put(replace(entry, number=entry.number + 1, merging=mine))

            self.until_alone(decide_on)
            self._finish_merging()
        return Compacted(files_before=len(before), files_after=len(self._files()))

    def clear_leftovers(self) -> None:
        """Staged files stay until a vacuum: readers do not see them, and another process may still need them."""
        self._finish_merging()

        def attempt() -> list[str]:
            entry = self._need()
            found = [path for path in self._files() if not self._is_committed(path, entry)]
            if found:  # after this entry, the writer that moved them in cannot commit them
                self._put(replace(entry, number=entry.number + 1, starts=entry.starts + 1))
            return found

        self._delete(self.until_alone(attempt))

    def raise_horizon(self, before_ms: int) -> int:
        def attempt() -> int:
            entry = self._need()
            self._put(replace(entry, number=entry.number + 1, horizon_ms=max(before_ms, entry.horizon_ms)))
            return 0

        return self.until_alone(attempt)

    def forgettable(self, before_ms: int) -> int:
        """Return 0, because a directory has one version."""
        return 0

    def current_files(self) -> set[str]:
        return set(self._files())

    def referred_files(self, before_ms: int, *, as_if_forgotten: bool) -> set[str]:
        """Return all visible files, and the staged files of decided compactions."""
        entry = self._need()
        return set(self._files()) | {piece["staged"] for piece in entry.merging}

    def is_vacuums(self, path: str) -> bool:
        return (path.startswith(f"{_STAGING}/") and path.endswith(DATA)) or path.endswith(UNFINISHED)

    def drop(self) -> None:
        """Removes the log last, with the object store that wrote it."""
        self.delete_files(lambda path: path.endswith(DATA))

        async def forget() -> None:
            objects = await self._log.objects()
            await objects.delete([info.key async for info in objects.list(_LOG)])

        self._log.run(forget())
        self.remove_empty_directories(but=_LOG_STORES_OWN)

    def _move_in(self, files: Sequence[WrittenFile], tag: str) -> None:
        filesystem = self.location.filesystem()
        self._delete([path for path in self._files() if path.rpartition("/")[2].startswith(f"{tag}-")])
        for number, file in enumerate(files):
            directory = f"{self.location.path}/{bucket_directory(self.by, file.bucket)}".rstrip("/")
            filesystem.create_dir(directory, recursive=True)
            try:
                filesystem.move(f"{self.location.path}/{file.path}", f"{directory}/{tag}-{number:05d}.parquet")
            except FileNotFoundError as error:
                raise files_gone(self.location.url) from error

    def _finish_merging(self) -> None:
        """Any process may do this: each step may be repeated. A file is removed only when its replacement is there. So
        rows are in the table twice for a moment, and never missing.
        """
        filesystem = self.location.filesystem()

        def attempt() -> None:
            entry = self._need()
            if not entry.merging:
                return
            for piece in entry.merging:
                staged, target = (f"{self.location.path}/{piece[name]}" for name in ("staged", "target"))
                with suppress(FileNotFoundError):
                    if _is_there(filesystem, staged):
                        filesystem.move(staged, target)
                if _is_there(filesystem, target):
                    self._delete(piece["gone"])
            self._put(replace(entry, number=entry.number + 1, merging=[]))

        self.until_alone(attempt)

    def _delete(self, paths: Sequence[str]) -> None:
        filesystem = self.location.filesystem()
        for path in paths:
            with suppress(FileNotFoundError):
                filesystem.delete_file(f"{self.location.path}/{path}")

    def _is_committed(self, path: str, entry: _LogEntry) -> bool:
        match = _NAME.fullmatch(path.rpartition("/")[2])
        return match is None or int(match["batch"]) <= entry.queries.get(match["query"], -1)

    def _files(self) -> dict[str, int]:
        """Return the files that readers see, each with its size."""
        return {path: size for path, size in self._list("").items() if not path.startswith(f"{_OURS}/")}

    def _list(self, below: str) -> dict[str, int]:
        root = self.location.path
        selector = pafs.FileSelector(f"{root}/{below}".rstrip("/"), recursive=True, allow_not_found=True)
        found = self.location.filesystem().get_file_info(selector)
        return {
            info.path[len(root) + 1 :]: info.size
            for info in found
            if info.type is pafs.FileType.File and info.path.endswith(".parquet")
        }

    # The log.

    def _need(self) -> _LogEntry:
        entry = self._last()
        if entry is None:
            raise NotFound(f"there is no Parquet table of ours in {self.location.url}")
        return entry

    def _last(self) -> _LogEntry | None:
        async def look() -> tuple[list[str], bytes]:
            objects = await self._log.objects()
            keys = sorted([info.key async for info in objects.list(_LOG)])
            return keys, bytes(await objects.get(keys[-1])) if keys else b""

        keys, text = self._log.run(look())
        if not keys:
            return None
        try:
            return _LogEntry(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise CorruptDocument(f"{self.location.url}/{keys[-1]} cannot be read") from error

    def _put(self, entry: _LogEntry) -> None:
        """Raises LostRace when another writer was first."""

        async def put() -> None:
            objects = await self._log.objects()
            await objects.put(_log_key(entry.number), json.dumps(asdict(entry)).encode(), accept_equal=False)
            if entry.number > _KEPT_ENTRIES:
                await objects.delete([_log_key(entry.number - _KEPT_ENTRIES)])

        try:
            self._log.run(put())
        except ObjectExists as error:
            raise LostRace from error


def query_tag(query_id: str) -> str:
    """The part of a query's id that is in file names."""
    return query_id.replace("-", "")[:16].lower()


def _log_key(number: int) -> str:
    return f"{_LOG}{number:020d}.json"


def _progress(entry: _LogEntry) -> Progress | None:
    return None if entry.progress is None else read_progress(entry.progress)


def _is_there(filesystem: pafs.FileSystem, path: str) -> bool:
    return filesystem.get_file_info(path).type is pafs.FileType.File
