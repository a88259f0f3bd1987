"""The names in a WAL's directory, built and parsed here only.

    wal.id                         the id of this WAL (identity.py); .new while the first start is not finished
    00000000000000000007.wal       a file of the log, by generation; its header was durable before it got this name
    00000000000000000003.spare     an emptied or a new file; its content does not count
    ….wal.new, ….spare.new         being filled with zeros
    wal.cluster                    the cluster of its records (identity.py)
    wal.lock                       held by the process that uses the directory

An emptied file gets the header of its next generation first and its name afterwards. So a log file without an intact
header is damage, and never the result of a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import CorruptFrame
from streamhouse.log.wal.disk import Listed

ID_FILE: Final = "wal.id"
UNCONFIRMED_ID_FILE: Final = "wal.id.new"
CLUSTER_FILE: Final = "wal.cluster"

_NUMBERED: Final = re.compile(r"([0-9]{20})\.(wal|spare)(\.new)?")


def log_name(generation: int) -> str:
    return f"{generation:020d}.wal"


def spare_name(number: int) -> str:
    return f"{number:020d}.spare"


def unfinished_name(name: str) -> str:
    return f"{name}.new"


@dataclass(frozen=True, slots=True, kw_only=True)
class WalDirectory:
    """The files of a directory by kind."""

    log_files: dict[int, Listed]
    """The files by generation, ascending."""
    spares: dict[int, Listed]
    unfinished: tuple[str, ...]
    id_file: Listed | None
    unconfirmed_id_file: Listed | None

    @property
    def is_empty(self) -> bool:
        """True when the directory has no file of a WAL."""
        return not (self.log_files or self.spares or self.id_file or self.unconfirmed_id_file)


def sort_listing(listing: Iterable[Listed], place: str) -> WalDirectory:
    """Raises CorruptFrame for a name that looks like a log file and is not one. Other names are ignored."""
    by_suffix: dict[str, dict[int, Listed]] = {"wal": {}, "spare": {}}
    unfinished: list[str] = []
    id_files: dict[str, Listed] = {}
    for listed in sorted(listing, key=lambda listed: listed.name):
        match = _NUMBERED.fullmatch(listed.name)
        if match and match[3]:
            unfinished.append(listed.name)
        elif match:
            by_suffix[match[2]][int(match[1])] = listed
        elif listed.name in (ID_FILE, UNCONFIRMED_ID_FILE):
            id_files[listed.name] = listed
        elif listed.name.endswith(".wal"):
            raise CorruptFrame(
                f"{place} holds {listed.name}, which is no name of a WAL file",
                hint="move it out of the directory if it does not belong there",
            )
    return WalDirectory(
        log_files=by_suffix["wal"],
        spares=by_suffix["spare"],
        unfinished=tuple(unfinished),
        id_file=id_files.get(ID_FILE),
        unconfirmed_id_file=id_files.get(UNCONFIRMED_ID_FILE),
    )
