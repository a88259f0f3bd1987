"""What every table format must do: hold rows, columns and progress, and change all three in one commit.

``commit`` is the heart: load the table, ask ``decide`` whether the batch counts, bring the columns that its files have
beyond the table's, and put files and progress in one step that fails if anybody else was faster; then all over again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from streamhouse.core.errors import TableBusy
from streamhouse.spark.pipelines.progress import Batch, Progress
from streamhouse.spark.tables.columns import new_columns
from streamhouse.spark.tables.files import PartitionBy, WrittenFile, read_parquet, with_columns, write_parquet
from streamhouse.spark.tables.location import Location

T = TypeVar("T")

_ATTEMPTS: Final = 30
_PAUSE_S: Final = 0.1


class LostRace(Exception):
    """Somebody else has committed to the table meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a batch needs to know of its table."""

    schema: pa.Schema
    """Without the column that directories stand for."""
    progress: Progress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What people want to know of it."""

    files: int
    rows: int
    size_bytes: int
    version: str
    """For people: the format's own name of this state."""


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
        """If it is not there yet."""

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
        """False when the batch was there already. Raises BatchRegressed, TableBusy."""

    @abstractmethod
    def compact(self, *, small_bytes: int, target_bytes: int) -> Compacted:
        """Put small files together, bucket by bucket; rows and progress stay what they are."""

    @abstractmethod
    def clear_leftovers(self) -> None:
        """What a killed writer left and readers could take for rows."""

    @abstractmethod
    def drop(self) -> None:
        """The table and everything in it. Nothing happens when there is none."""

    # What the formats share.

    def reconciled(self, files: Sequence[WrittenFile], schema: pa.Schema) -> list[WrittenFile]:
        """Files whose columns have the types of ``schema``: one that inferred another type is written anew, in place.

        Nobody knows the file yet, so nobody sees that.
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

    def drop_directory(self) -> None:
        filesystem = self.location.filesystem()
        if filesystem.get_file_info(self.location.path).type is pafs.FileType.Directory:
            filesystem.delete_dir(self.location.path)

    def until_alone(self, attempt: Callable[[], T]) -> T:
        for number in range(_ATTEMPTS):
            try:
                return attempt()
            except LostRace:
                threading.Event().wait(_PAUSE_S * min(number, 10))
        raise TableBusy(f"the table {self.location.url} was changed by others {_ATTEMPTS} times in a row")


def added_columns(known: pa.Schema, files: Sequence[WrittenFile]) -> pa.Schema:
    """What files bring beyond the table's columns."""
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
