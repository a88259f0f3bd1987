"""The identity of the WAL in a directory: made once, kept in a small file, never changed (R2, R12).

    streamhouse wal 1\\n
    5f0c7a52-6a55-4c0e-9a57-8a4f2d1b7c11\\n

wal.cluster beside it has the same form. It holds the id of the cluster whose records are in the frames.

A first start writes it as wal.id.new, makes the first log file, and renames it last. So wal.id without a log file
means that files were removed, and is refused; a first start that crashed in between is finished.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from streamhouse.core.errors import CorruptFrame, DurabilityMismatch, UnsupportedVersion
from streamhouse.core.limits import MAX_WAL_ID_FILE_BYTES
from streamhouse.core.randomness import Randomness
from streamhouse.log.wal.disk import Disk, Listed
from streamhouse.log.wal.names import CLUSTER_FILE, ID_FILE, UNCONFIRMED_ID_FILE, WalDirectory, unfinished_name

_TITLE: Final = "streamhouse wal "
_VERSION: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    wal_id: UUID
    confirmed: bool


def load_or_make_identity(disk: Disk, directory: WalDirectory, randomness: Randomness) -> Identity:
    """Raises CorruptFrame where the id and the files do not belong together."""
    has_files = bool(directory.log_files or directory.spares)
    if directory.id_file is not None:
        wal_id = _read(disk, directory.id_file)
        if not directory.log_files:
            raise CorruptFrame(
                f"{disk.place}: {ID_FILE} says that WAL {wal_id} lives here, but its files are gone",
                hint="restore them; to give up what they held, remove the directory as a whole",
            )
        return Identity(wal_id=wal_id, confirmed=True)
    if directory.unconfirmed_id_file is not None:
        try:
            return Identity(wal_id=_read(disk, directory.unconfirmed_id_file), confirmed=False)
        except CorruptFrame:
            if has_files:
                raise
            disk.remove(UNCONFIRMED_ID_FILE)  # written in part when the first start crashed
    elif has_files:
        raise CorruptFrame(
            f"{disk.place} holds WAL files, but no {ID_FILE} that says whose they are",
            hint=f"restore {ID_FILE}; to give up what the files hold, remove the directory as a whole",
        )
    wal_id = randomness.uuid()
    _write(disk, UNCONFIRMED_ID_FILE, wal_id)
    return Identity(wal_id=wal_id, confirmed=False)


def bind_to_cluster(disk: Disk, listing: Iterable[Listed], cluster_id: UUID, *, has_frames: bool) -> None:
    """Raises DurabilityMismatch for frames of another cluster's records: a store that does not know their topics would
    take them for frames of deleted topics.
    """
    by_name = {listed.name: listed for listed in listing}
    owner = _read(disk, by_name[CLUSTER_FILE]) if CLUSTER_FILE in by_name else None
    if owner == cluster_id:
        return
    if owner is not None and has_frames:
        raise DurabilityMismatch(
            f"the write-ahead log in {disk.place} holds records of cluster {owner}, and the metadata store is that of"
            f" cluster {cluster_id}",
            hint="check metadata.url and wal.dir; to give up what the log holds, remove its directory as a whole",
        )
    name = unfinished_name(CLUSTER_FILE)
    for leftover in {name, CLUSTER_FILE} & by_name.keys():  # a start that crashed; an empty log's former cluster
        disk.remove(leftover)
    _write(disk, name, cluster_id)
    disk.rename(name, CLUSTER_FILE)
    disk.sync_directory()


def confirm_identity(disk: Disk) -> None:
    """The first log file is durable: from now on its absence means loss."""
    disk.rename(UNCONFIRMED_ID_FILE, ID_FILE)
    disk.sync_directory()


def _write(disk: Disk, name: str, wal_id: UUID) -> None:
    text = f"{_TITLE}{_VERSION}\n{wal_id}\n".encode("ascii")
    disk.create(name, len(text))
    file = disk.open(name)
    try:
        file.pwritev([text], 0)
        file.fdatasync()
    finally:
        file.close()
    disk.sync_directory()


def _read(disk: Disk, listed: Listed) -> UUID:
    where = f"{disk.place}: {listed.name}"
    if listed.size_bytes > MAX_WAL_ID_FILE_BYTES:
        raise CorruptFrame(f"{where} has {listed.size_bytes} bytes; a WAL's id takes less than 100")
    lines = bytes(disk.read(listed.name)).decode("ascii", "replace").split("\n")
    if len(lines) != 3 or lines[2] or not lines[0].startswith(_TITLE):
        raise CorruptFrame(f"{where} does not hold a WAL's id", hint="restore it from a copy")
    if lines[0] != _TITLE + _VERSION:
        raise UnsupportedVersion(f"{where} is of version {lines[0].removeprefix(_TITLE)!r}; this build reads 1")
    try:
        return UUID(lines[1])
    except ValueError:
        raise CorruptFrame(f"{where} does not hold a WAL's id", hint="restore it from a copy") from None
