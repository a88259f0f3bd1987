"""Open a WAL's directory: lock it, read its identity, recover what it holds, begin a new file.

The order matters, and each step is durable before the next: identity, recovered data, the new file with its header, the
removal of what lay behind a torn end, and at the very first start the name of the identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.core.errors import DurabilityMismatch, WalFailed
from streamhouse.core.randomness import Randomness
from streamhouse.core.units import format_size
from streamhouse.formats.wal_frame_v1 import FIRST_LSN
from streamhouse.log.wal.disk import Disk
from streamhouse.log.wal.files import NoRoomError, WalFiles
from streamhouse.log.wal.identity import bind_to_cluster, confirm_identity, load_or_make_identity
from streamhouse.log.wal.local_disk import LocalDisk
from streamhouse.log.wal.names import WalDirectory, log_name, sort_listing
from streamhouse.log.wal.native_pump import NativePump, has_lanes
from streamhouse.log.wal.options import WalOptions
from streamhouse.log.wal.pump import Pump
from streamhouse.log.wal.recovery import Recovered, RecoveredLog, recover
from streamhouse.log.wal.state import WalState
from streamhouse.log.wal.thread_pump import ThreadPump
from streamhouse.log.wal.wal import Wal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    wal_id: UUID
    state: WalState
    files: WalFiles
    recovered: Recovered


async def open_wal(
    disk: Disk | Path,
    *,
    clock: Clock,
    randomness: Randomness,
    options: WalOptions,
    pump: Pump | None = None,
    cluster_id: UUID | None = None,
    bound_wal_id: UUID | None = None,
) -> tuple[Wal, Recovered]:
    """A path means the local disk and a real thread, compiled where possible; a simulator brings its own ``disk`` and a
    TaskPump.

    ``cluster_id``: the cluster whose records are written; records in the WAL must be of the same cluster.
    ``bound_wal_id``: the WAL that must be here; a new one is not made in its place (R2).

    Raises WalInUse, DurabilityMismatch, CorruptFrame (R12; also for missing or foreign files), UnsupportedVersion, or
    WalFailed when the disk itself does.
    """
    if isinstance(disk, Path):
        disk = LocalDisk(disk)
        pump = pump or (NativePump() if has_lanes() else ThreadPump())
    pump = pump or ThreadPump()
    open_files = partial(_open, disk, clock, randomness, options, cluster_id, bound_wal_id)
    opened = await pump.call(partial(_while_locked, disk, open_files))
    wal = Wal(
        disk=disk,
        wal_id=opened.wal_id,
        clock=clock,
        options=options,
        state=opened.state,
        files=opened.files,
        recovered=opened.recovered,
        pump=pump,
    )
    return wal, opened.recovered


def _while_locked(disk: Disk, open_files: Callable[[], _Opened]) -> _Opened:
    try:
        disk.lock()
        try:
            return open_files()
        except BaseException:
            disk.unlock()
            raise
    except NoRoomError as error:
        raise WalFailed(
            f"the write-ahead log in {disk.place} cannot be opened: a start needs room for a file of"
            f" {error.size_bytes} bytes ({format_size(error.size_bytes)}): {error}",
            hint="free space on that disk, or enlarge it, and start again; nothing that was acknowledged is lost",
        ) from error
    except OSError as error:
        raise WalFailed(f"the write-ahead log in {disk.place} cannot be opened: {error}") from error


def _open(
    disk: Disk,
    clock: Clock,
    randomness: Randomness,
    options: WalOptions,
    cluster_id: UUID | None,
    bound_wal_id: UUID | None,
) -> _Opened:
    listing = disk.listing()
    directory = sort_listing(listing, disk.place)
    if bound_wal_id is not None and directory.is_empty:
        raise DurabilityMismatch(
            f"the metadata store is bound to WAL {bound_wal_id}, and there is none in {disk.place}",
            hint="bring its directory back, or check wal.dir and data_dir: it may hold records that are nowhere else",
        )
    identity = load_or_make_identity(disk, directory, randomness)
    log = recover(disk, directory.log_files, identity.wal_id)
    if cluster_id is not None:
        has_frames = any(file.frame_count for file in log.files)
        bind_to_cluster(disk, listing, cluster_id, has_frames=has_frames)
    spares = _clean_up(disk, directory, options)
    state = _state(log, spares, directory, options)
    files = WalFiles(disk, wal_id=identity.wal_id, clock=clock, ready_spares=spares)
    first = state.plan_first_file()
    try:
        files.open_new(first)
        state.open_file(first)
        state.synced(state.synced_lsn, generation=first.generation)
        for generation in log.discarded:
            disk.remove(log_name(generation))
        disk.sync_directory()
        if not identity.confirmed:
            confirm_identity(disk)
    except BaseException:
        files.close()
        raise
    return _Opened(wal_id=identity.wal_id, state=state, files=files, recovered=_recovered(identity.wal_id, log))


def _clean_up(disk: Disk, directory: WalDirectory, options: WalOptions) -> list[int]:
    """Returns the spares that can be used. Those of another wal.file_bytes are removed."""
    for name in directory.unfinished:
        disk.remove(name)
    usable = []
    for number, listed in directory.spares.items():
        if listed.size_bytes == options.file_bytes:
            usable.append(number)
        else:
            disk.remove(listed.name)
    return usable


def _state(log: RecoveredLog, spares: list[int], directory: WalDirectory, options: WalOptions) -> WalState:
    state = WalState(
        options,
        next_lsn=log.next_lsn or FIRST_LSN,
        next_generation=log.next_generation,
        spares=spares,
        next_spare=max(directory.spares, default=0) + 1,
    )
    for file in log.files:
        state.recovered_file(
            generation=file.header.generation,
            first_lsn=file.header.first_lsn,
            size_bytes=len(file.view),
            frame_bytes=file.frame_bytes,
        )
    return state


def _recovered(wal_id: UUID, log: RecoveredLog) -> Recovered:
    return Recovered(
        wal_id=wal_id,
        frame_count=sum(file.frame_count for file in log.files),
        batch_bytes=sum(file.batch_bytes for file in log.files),
        file_count=len(log.files),
        torn_bytes=log.torn_bytes,
        discarded_file_count=len(log.discarded),
        _files={file.header.generation: file for file in log.files},
    )
