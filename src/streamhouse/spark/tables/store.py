"""What every table format must do: hold rows, columns and progress, and change all three in one commit.

``commit`` loads the table, asks ``decide`` whether the batch is to be written, adds the columns that the files have and
the table has not, and commits files and progress in one step. The step fails if another writer has committed meanwhile;
then it starts over.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from streamhouse.core.errors import InvalidSetting, TableBusy
from streamhouse.spark.definitions.progress import Batch, Progress
from streamhouse.spark.tables.columns import new_columns
from streamhouse.spark.tables.files import WrittenFile, read_parquet, with_columns, write_parquet
from streamhouse.spark.tables.leftovers import FoundFile, Vacuumed, check_all_there, unreferred
from streamhouse.spark.tables.location import Location
from streamhouse.spark.tables.spec import PartitionBy

T = TypeVar("T")

_ATTEMPTS: Final = 30
_PAUSE_S: Final = 0.1
_NEVER_OLD: Final = 2**63 - 1


class LostRace(Exception):
    """Another writer has committed to the table meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a table that a batch needs to know."""

    schema: pa.Schema
    """The schema, without the column that directories stand for."""
    progress: Progress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state of a table that is shown to people."""

    files: int
    rows: int
    size_bytes: int
    version: str
    """The format's own name of this state; people read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    files_before: int
    files_after: int


class TableStore(ABC):
    """One table. Every call looks at it afresh: nothing is kept between them."""

    format: ClassVar[str]
    data_prefix: ClassVar[str] = ""
    """Where tasks put new files, below the location."""

    def __init__(self, location: Location, *, by: PartitionBy, time_column: str) -> None:
        self.location = location
        self.by = by
        self.time_column = time_column

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def create(self, schema: pa.Schema) -> None:
        """Create the table if it does not exist."""

    @abstractmethod
    def look(self) -> Standing:
        """Raises NotFound."""

    @abstractmethod
    def state(self) -> TableState:
        """Raises NotFound."""

    @abstractmethod
    def add_columns(self, schema: pa.Schema) -> None:
        """Those that the table does not have yet. Raises InvalidSetting where one has another type."""

    @abstractmethod
    def commit(self, batch: Batch, files: Sequence[WrittenFile]) -> bool:
        """Commit a batch. Returns False when the table had it already. Raises BatchRegressed, TableBusy."""

    @abstractmethod
    def compact(self, *, small_bytes: int, target_bytes: int) -> Compacted:
        """Merge small files, bucket by bucket. Rows and progress do not change."""

    @abstractmethod
    def clear_leftovers(self) -> None:
        """Remove what a killed writer left and readers could take for rows."""

    @abstractmethod
    def drop(self) -> None:
        """Remove the table and everything in it, and no other files. Does nothing if there is no table."""

    # What a vacuum asks.

    @abstractmethod
    def raise_horizon(self, before_ms: int) -> int:
        """Forbids commits of files made before ``before_ms``, and removes the versions that were replaced before it.
        Returns how many it removed.
        """

    @abstractmethod
    def forgettable(self, before_ms: int) -> int:
        """How many versions ``raise_horizon`` would remove."""

    @abstractmethod
    def current_files(self) -> set[str]:
        """The files of the current version, as paths below the location."""

    @abstractmethod
    def referred_files(self, before_ms: int, *, as_if_forgotten: bool) -> set[str]:
        """The files of all versions that can still be read, and those replaced since ``before_ms``."""

    @abstractmethod
    def is_vacuums(self, path: str) -> bool:
        """True if a vacuum may remove such a file when no version refers to it."""

    # What the formats share.

    def vacuum(self, *, before_ms: int, dry_run: bool) -> Vacuumed:
        """Remove older files that no version refers to. Safe by its order: horizon, listing, references (R6, R7)."""
        expected = self.current_files()
        snapshots = self.forgettable(before_ms) if dry_run else self.raise_horizon(before_ms)
        found = [file for file in self._found() if self.is_vacuums(file.path)]
        check_all_there({path for path in expected if self.is_vacuums(path)}, found, self.location.url)
        referred = self.referred_files(before_ms, as_if_forgotten=dry_run)
        going = unreferred(found, referred, before_ms=before_ms)
        if not dry_run:
            filesystem = self.location.filesystem()
            for file in going:
                with suppress(FileNotFoundError):  # another vacuum was faster
                    filesystem.delete_file(f"{self.location.path}/{file.path}")
        return Vacuumed(files=going, snapshots=snapshots)

    def _found(self) -> list[FoundFile]:
        root = self.location.path
        selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
        return [
            FoundFile(
                path=info.path[len(root) + 1 :],
                size_bytes=info.size,
                modified_ms=_NEVER_OLD if info.mtime_ns is None else info.mtime_ns // 1_000_000,
            )
            for info in self.location.filesystem().get_file_info(selector)
            if info.type is pafs.FileType.File
        ]

    def reconciled(self, files: Sequence[WrittenFile], schema: pa.Schema) -> list[WrittenFile]:
        """Files whose columns have the types of ``schema``. A file with other inferred types is rewritten in place: no
        commit names it yet, so no reader sees that.
        """
        filesystem = self.location.filesystem()
        done: list[WrittenFile] = []
        for file in files:
            wanted = pa.schema([schema.field(field.name) for field in file.schema])
            if wanted.types == file.schema.types:
                done.append(file)
                continue
            path = f"{self.location.path}/{file.path}"
            rows = with_columns(read_parquet(filesystem, path), wanted)
            done.append(replace(file, schema=wanted, size_bytes=write_parquet(filesystem, path, rows)))
        return done

    def check_free(self, *but: str) -> None:
        """Check that a new table's place is free: ``drop`` could not know its files. Raises InvalidSetting."""
        others = [file.path for file in self._found() if file.path.partition("/")[0] not in but]
        if others:
            raise InvalidSetting(
                f"{self.location.url} is not empty, and no {self.format} table of ours: it has {others[0]}",
                hint="give a table a place of its own",
            )

    def delete_files(self, is_ours: Callable[[str], bool]) -> None:
        """Delete files of ours. Other files stay."""
        filesystem = self.location.filesystem()
        for file in self._found():
            if is_ours(file.path):
                with suppress(FileNotFoundError):
                    filesystem.delete_file(f"{self.location.path}/{file.path}")

    def remove_empty_directories(self, *, but: str = "") -> None:
        if self.location.is_local:
            root = Path(self.location.path)
            for directory in sorted((root, *(path for path in root.rglob("*") if path.is_dir())), reverse=True):
                if directory.name != but:
                    with suppress(OSError):
                        directory.rmdir()

    def until_alone(self, attempt: Callable[[], T]) -> T:
        for number in range(_ATTEMPTS):
            try:
                return attempt()
            except LostRace:
                threading.Event().wait(_PAUSE_S * min(number, 10))
        raise TableBusy(f"the table {self.location.url} was changed by others {_ATTEMPTS} times in a row")


def added_columns(known: pa.Schema, files: Sequence[WrittenFile]) -> pa.Schema:
    """Return the columns that files have and the table has not."""
    return pa.schema(list(new_columns(known, [file.schema for file in files]).items()))


def bins(files: Sequence[tuple[str, int]], *, small_bytes: int, target_bytes: int) -> list[list[str]]:
    """Which small files to put together, in their order; a group of one is left alone. Pure."""
    groups: list[list[str]] = []
    group: list[str] = []
    size = 0
    for path, size_bytes in files:
        if size_bytes >= small_bytes:
            continue
        if group and size + size_bytes > target_bytes:
            groups.append(group)
            group, size = [], 0
        group.append(path)
        size += size_bytes
    groups.append(group)
    return [each for each in groups if len(each) > 1]
