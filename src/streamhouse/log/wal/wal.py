"""The write-ahead log for the event loop: append, wait for the sync, settle.

Everything except waiting and closing is synchronous and never blocks. state.py decides, formats/wal_frame_v1.py has the
bytes, and a pump writes them. Does not know what a batch holds, and knows no commits.

A failed write or sync is final for this process (R11): the kernel may have dropped the pages that it could not write,
and would report success if asked again. Nothing is acknowledged from then on. A disk without room for another file is
no such failure: the data in the existing files is safe, so writes are refused until a file could be made (state.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Final
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    BackPressureRejected,
    InvalidRequest,
    LimitExceeded,
    WalFailed,
    WalOutcomeUnknown,
)
from streamhouse.core.ids import TopicId
from streamhouse.core.units import format_size
from streamhouse.formats.wal_frame_v1 import FRAME_HEADER_BYTES, FrameKind, encode_frame_header
from streamhouse.log.wal.disk import Disk
from streamhouse.log.wal.files import NoRoomError, WalFiles
from streamhouse.log.wal.options import WalOptions
from streamhouse.log.wal.pump import Pump, Reports, RoomReport, SyncReport
from streamhouse.log.wal.recovery import Recovered, read_batches
from streamhouse.log.wal.state import Retire, WalState
from streamhouse.wire.buffers import BytesLike, byte_view

# Below this size, copying a batch behind its header costs less than one more buffer for the kernel.
_COPY_BELOW_BYTES: Final = 4096
_NO_TOPIC: Final = TopicId(UUID(int=0))
LAZY_SYNC_MS: Final = 10
"""The longest time that a frame waits for its write if no client waits for it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalHealth:
    ok: bool
    reason: str | None = None
    no_room: str | None = None
    """Why the disk has no room for another file. Writes are refused now, or when the present file is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalMetrics:
    """Counters since this process opened the WAL, and what it holds now."""

    frames: int
    bytes: int
    syncs: int
    sync_seconds_total: float
    sync_seconds_max: float
    files_created: int
    files_recycled: int
    files_removed: int
    files_not_made: int
    """Attempts that failed because the disk had no room."""
    log_files: int
    spare_files: int
    disk_bytes: int
    unsettled_bytes: int


class Wal:
    """An open WAL. ``open_wal`` makes it, and it belongs to one event loop."""

    def __init__(
        self,
        *,
        disk: Disk,
        wal_id: UUID,
        clock: Clock,
        options: WalOptions,
        state: WalState,
        files: WalFiles,
        recovered: Recovered,
        pump: Pump,
    ) -> None:
        self.wal_id = wal_id
        self._disk = disk
        self._clock = clock
        self._state = state
        self._files = files
        self._recovered = recovered
        self._pump = pump
        self._refusal: str | None = None
        self._health = WalHealth(ok=True)
        self._closing: asyncio.Task[None] | None = None
        self._on_synced: list[Callable[[int], None]] = []
        self._on_failed: list[Callable[[WalFailed], None]] = []
        self._on_room: list[Callable[[BackPressureRejected | None], None]] = []
        self._room_pause_s = options.room_pause_ms / 1000
        self._room_timer: asyncio.TimerHandle | None = None
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._had_no_room = False
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap by LSN
        self._waiter_number = 0
        self._frames = self._bytes = self._syncs = 0
        self._sync_seconds_total = self._sync_seconds_max = 0.0
        pump.start(
            files,
            Reports(on_synced=self._synced, on_failed=self._failed, on_room=self._told_of_room),
            max_batch_age_ms=options.max_batch_age_ms,
            room_pause_ms=options.room_pause_ms,
        )
        if recovered.file_count:
            # What was recovered is durable now. With this recorded, later damage to it is no torn end (R12).
            self._append_synced_mark()
        self._tidy_up()

    # Appending.

    def is_full(self, size_bytes: int) -> bool:
        """Whether a batch of this size is refused now, but taken later when other frames are settled."""
        if self._refusal is not None:
            return False
        try:
            self._state.plan_file(FRAME_HEADER_BYTES + size_bytes)
        except BackPressureRejected:
            return True
        except LimitExceeded:
            return False
        return False

    def append(
        self,
        *,
        topic_id: TopicId,
        partition: int,
        epoch: int,
        base_offset: int,
        timestamp_ms: int,
        acks: int,
        batch: BytesLike,
        lazy: bool = False,
    ) -> int:
        """Queue one batch. Returns its LSN. The buffer is not copied: it must not change until that LSN is synced.

        ``lazy``: no client waits for the sync, so it may come up to LAZY_SYNC_MS later.

        Raises BackPressureRejected, LimitExceeded, WalFailed; nothing is assigned then.
        """
        if self._refusal is not None:
            raise WalFailed(self._refusal)
        if isinstance(batch, memoryview):
            batch = byte_view(batch)
        state = self._state
        frame_bytes = FRAME_HEADER_BYTES + len(batch)
        new_file = state.plan_file(frame_bytes)
        lsn = state.next_lsn
        header = encode_frame_header(
            batch,
            wal_id=self.wal_id,
            generation=state.generation if new_file is None else new_file.generation,
            lsn=lsn,
            last_synced_lsn=state.synced_lsn,
            topic_id=topic_id,
            partition=partition,
            epoch=epoch,
            base_offset=base_offset,
            timestamp_ms=timestamp_ms,
            acks=acks,
        )
        if new_file is not None:
            state.open_file(new_file)
            self._pump.add_file(new_file)
        position = state.assign(frame_bytes)
        parts = (header, batch) if frame_bytes >= _COPY_BELOW_BYTES else (b"".join((header, batch)),)
        self._pump.add_frame(parts, position=position, lsn=lsn, lazy=lazy)
        if lazy and self._lazy_timer is None:
            self._lazy_timer = asyncio.get_running_loop().call_later(LAZY_SYNC_MS / 1000, self._sync_lazy)
        self._frames += 1
        self._bytes += frame_bytes
        return lsn

    def _sync_lazy(self) -> None:
        self._lazy_timer = None
        self._pump.hurry()

    def _append_synced_mark(self) -> None:
        """Every file has room for one."""
        state = self._state
        lsn = state.next_lsn
        header = encode_frame_header(
            wal_id=self.wal_id,
            generation=state.generation,
            lsn=lsn,
            last_synced_lsn=state.synced_lsn,
            topic_id=_NO_TOPIC,
            partition=0,
            epoch=0,
            base_offset=0,
            timestamp_ms=self._clock.wall_ms(),
            acks=0,
            kind=FrameKind.SYNCED,
        )
        position = state.assign(len(header), needed=False)
        self._pump.add_frame((header,), position=position, lsn=lsn)

    # Knowing what is on the disk.

    @property
    def synced_lsn(self) -> int:
        """Every frame up to this LSN is on the disk."""
        return self._state.synced_lsn

    def on_synced(self, callback: Callable[[int], None]) -> None:
        """``callback`` is called on the event loop with the new synced LSN, once for each sync, before waiters wake."""
        self._on_synced.append(callback)

    def on_failed(self, callback: Callable[[WalFailed], None]) -> None:
        """``callback`` is called once, when the disk fails. The process should end: it cannot write any more."""
        self._on_failed.append(callback)

    def on_room(self, callback: Callable[[BackPressureRejected | None], None]) -> None:
        """Called when the disk has no room for another file, with what writers are told, after every attempt; and once
        with None when there is room again."""
        self._on_room.append(callback)

    async def wait_synced(self, lsn: int) -> None:
        """Raises WalOutcomeUnknown if the disk fails first: the frame may be on it or not."""
        if lsn <= self._state.synced_lsn:
            return
        if not self._health.ok:
            raise WalOutcomeUnknown(self._refusal or "")
        if lsn >= self._state.next_lsn:
            raise InvalidRequest(f"WAL: LSN {lsn} was never assigned; the next one is {self._state.next_lsn}")
        self._pump.hurry()
        future = asyncio.get_running_loop().create_future()
        self._waiter_number += 1
        heappush(self._waiters, (lsn, self._waiter_number, future))
        await future

    @property
    def health(self) -> WalHealth:
        return replace(self._health, no_room=self._state.no_room or None)

    @property
    def metrics(self) -> WalMetrics:
        state = self._state
        return WalMetrics(
            frames=self._frames,
            bytes=self._bytes,
            syncs=self._syncs,
            sync_seconds_total=self._sync_seconds_total,
            sync_seconds_max=self._sync_seconds_max,
            files_created=state.files_created,
            files_recycled=state.files_recycled,
            files_removed=state.files_removed,
            files_not_made=state.files_not_made,
            log_files=state.file_count,
            spare_files=state.spare_count,
            disk_bytes=state.size_bytes,
            unsettled_bytes=state.unsettled_bytes,
        )

    # Letting go.

    def settle(self, lsns: Iterable[int]) -> None:
        """These frames are committed or dropped; recovery may forget them. A file is removed when all its frames, and
        those of every older file, are settled. Settling twice is harmless. Raises InvalidRequest for an LSN of the
        future.
        """
        self._state.settle(lsns)
        self._tidy_up()

    async def read_batches(self, lsns: Collection[int]) -> dict[int, bytes]:
        """Read batches back that are synced and not settled, by LSN. Raises CorruptFrame, WalFailed."""
        if not lsns:
            return {}
        groups = self._state.places(lsns)
        try:
            return await self._pump.call(partial(read_batches, self._disk, groups, self.wal_id))
        except OSError as error:
            raise WalFailed(f"the write-ahead log in {self._disk.place} cannot be read: {error}") from error

    @property
    def unsettled_bytes(self) -> int:
        return self._state.unsettled_bytes

    @property
    def oldest_unsettled_lsn(self) -> int | None:
        """What to commit first when the WAL is nearly full: no later file can be freed before it."""
        return self._state.oldest_unsettled_lsn

    def _tidy_up(self) -> None:
        if self._refusal is not None:
            return
        for chore in self._state.chores():
            if isinstance(chore, Retire):
                self._recovered.release(chore.generation)
            self._pump.add_chore(chore)

    # What the pump reports.

    def _synced(self, report: SyncReport) -> None:
        if not self._health.ok:
            return
        self._state.synced(report.lsn, generation=report.generation)
        self._syncs += report.syncs
        self._sync_seconds_total += report.sync_seconds
        self._sync_seconds_max = max(self._sync_seconds_max, report.longest_sync_seconds)
        for callback in self._on_synced:
            self._call(callback, report.lsn)
        while self._waiters and self._waiters[0][0] <= report.lsn:
            future = heappop(self._waiters)[2]
            if not future.done():
                future.set_result(None)
        self._tidy_up()

    def _told_of_room(self, report: RoomReport) -> None:
        state, spare = self._state, report.spare
        if report.problem is None:
            state.file_made() if spare is None else state.spare_made(spare)
        elif spare is None:
            state.file_not_made(self._words(report.problem))
        elif not state.spare_not_made(spare, self._words(report.problem)):
            self._files.forget_missing(spare)
        if self._closing is not None and state.file_missing and report.problem is not None:
            self._failed(report.problem)  # a stop does not wait for room
            return
        self._tidy_up()
        self._tell_room()

    def _words(self, problem: NoRoomError) -> str:
        return (
            f"the disk has no room for the next file of the write-ahead log in {self._disk.place}, which needs"
            f" {problem.size_bytes} bytes ({format_size(problem.size_bytes)}): {problem}"
        )

    def _tell_room(self) -> None:
        problem = self._state.no_room_problem()
        if problem is not None or self._had_no_room:
            for callback in self._on_room:
                self._call(callback, problem)
        self._had_no_room = problem is not None
        if problem is not None and self._room_timer is None and self._refusal is None:
            self._room_timer = asyncio.get_running_loop().call_later(self._room_pause_s, self._try_for_room)

    def _try_for_room(self) -> None:
        self._room_timer = None
        if self._refusal is not None:
            return
        if (order := self._state.try_for_room()) is not None:
            self._pump.add_chore(order)
        else:
            self._tell_room()

    def _failed(self, error: BaseException) -> None:
        if not self._health.ok:
            return
        reason = f"the write-ahead log in {self._disk.place} failed: {error}"
        self._refusal = reason
        self._health = WalHealth(ok=False, reason=reason)
        _log.error("%s; nothing is acknowledged any more", reason, extra={"wal_dir": str(self._disk.place)})
        for _, _, future in self._waiters:
            if not future.done():
                future.set_exception(WalOutcomeUnknown(reason))
        self._waiters.clear()
        failure = WalFailed(reason)
        failure.__cause__ = error
        for callback in self._on_failed:
            self._call(callback, failure)

    def _call(self, callback: Callable[..., None], argument: object) -> None:
        """An error in one callback must not keep the others from being called."""
        try:
            callback(argument)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a WAL callback failed", "exception": error, "callback": callback}
            )

    # Closing.

    async def close(self) -> None:
        """Sync what is queued, mark the clean end, unlock the directory. A second call waits for the first.

        Raises WalFailed if that fails; a WAL that had failed before is only unlocked.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(
                self._close(failed_before=not self._health.ok), name="wal-close"
            )
        await asyncio.shield(self._closing)

    async def _close(self, *, failed_before: bool) -> None:
        try:
            if self._health.ok:
                self._refusal = f"the write-ahead log in {self._disk.place} is closed"
                await self._drain()
        finally:
            for timer in (self._room_timer, self._lazy_timer):
                if timer is not None:
                    timer.cancel()
            await self._pump.stop()
            await self._pump.call(self._release)
        if not failed_before and not self._health.ok:
            raise WalFailed(self._health.reason or "")

    async def _drain(self) -> None:
        await self.wait_synced(self._state.next_lsn - 1)
        self._append_synced_mark()
        await self.wait_synced(self._state.next_lsn - 1)

    def _release(self) -> None:
        try:
            self._files.close()
        finally:
            self._disk.unlock()
