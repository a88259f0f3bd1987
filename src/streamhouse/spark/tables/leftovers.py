"""Which files of a table are unreferenced, and which of them a vacuum may remove. Pure.

A file's name contains its creation time: ``…-t1700000000000-<uuid>.parquet``. A vacuum first writes its horizon into
the table, then reads what the table refers to, and removes only files older than the horizon. A commit of a file older
than the horizon is refused (R6). So a writer that stalls, however long, has to write its batch again, and never commits
a file that was removed. Files of other programs have other names; for them only the store's time counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from streamhouse.core.errors import CorruptDocument, TableBusy

UNFINISHED: Final = ".unfinished"
"""Ends the name of a file that is being written, on a local disk."""
DATA: Final = (".parquet", f".parquet{UNFINISHED}")

_MADE: Final = re.compile(r"-t(\d{13})-[0-9a-f-]{32,36}\.parquet")
_SHOWN_PATHS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    path: str
    """The path below the table's location."""
    size_bytes: int
    modified_ms: int

    @property
    def made_ms(self) -> int:
        """The later of the name's time and the store's time."""
        return max(made_ms(self.path) or 0, self.modified_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    files: tuple[FoundFile, ...]
    """The files and versions that were removed, or would be."""
    snapshots: int = 0
    """Iceberg only: versions that can no longer be read."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def new_name(prefix: str, *, now_ms: int, unique: UUID) -> str:
    return f"{prefix}-t{now_ms:013d}-{unique}.parquet"


def made_ms(path: str) -> int | None:
    """The time in the name; None for a name that is not ours."""
    found = _MADE.search(path.rpartition("/")[2])
    return None if found is None else int(found[1])


def unreferred(found: Iterable[FoundFile], referred: Set[str], *, before_ms: int) -> tuple[FoundFile, ...]:
    return tuple(file for file in found if file.path not in referred and file.made_ms < before_ms)


def check_all_there(expected: Set[str], found: Iterable[FoundFile], where: str) -> None:
    """Raises CorruptDocument if the listing lacks files of the table: then it cannot be trusted for a vacuum."""
    missing = sorted(expected - {file.path for file in found})
    if missing:
        shown = ", ".join(missing[:_SHOWN_PATHS])
        raise CorruptDocument(
            f"{where} refers to {len(missing)} files that are not there: {shown}",
            hint="nothing was removed; check whether the table is complete",
        )


def check_not_vacuumed(paths: Iterable[str], horizon_ms: int, where: str) -> None:
    """Called before files are committed. Raises TableBusy: the batch has to be written again."""
    for path in paths:
        made = made_ms(path)
        if made is not None and made < horizon_ms:
            raise TableBusy(
                f"{path} is older than the last vacuum's horizon in {where}, and may be gone",
                hint="the batch is written again; if that goes on, this machine's clock is behind",
            )


def files_gone(where: str) -> TableBusy:
    return TableBusy(
        f"files of this batch are gone from {where}", hint="a vacuum has removed them; the batch is written again"
    )
