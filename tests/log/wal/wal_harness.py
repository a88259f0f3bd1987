"""Opening WALs in tests, small enough that files change over all the time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from wal_fake_disk import FakeDisk

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import KIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, Frame
from streamhouse.log.wal import Disk, NativePump, Pump, Recovered, TaskPump, ThreadPump, Wal, WalOptions, open_wal
from streamhouse.log.wal.files import WalFiles
from streamhouse.log.wal.names import log_name
from streamhouse.log.wal.pump import Reports, RoomReport, SyncReport
from streamhouse.log.wal.state import NewFile

TOPIC = TopicId(UUID("0fe1d2c3-b4a5-4687-8978-6a5b4c3d2e1f"))
SMALL = WalOptions(file_bytes=16 * KIB, max_bytes=512 * KIB, max_spare_files=3)
PUMPS: dict[str, Callable[[], Pump]] = {"thread": ThreadPump, "task": TaskPump}
Place = Callable[[], tuple[Disk | Path, Pump]]
"""A disk that stays the same, and a new pump for each opening."""
ON_REAL_FILES: dict[str, Callable[[], Pump]] = {**PUMPS, "native": NativePump}


async def opened(
    disk: Disk | Path, *, pump: Pump | None = None, options: WalOptions = SMALL, seed: int = 1
) -> tuple[Wal, Recovered]:
    return await open_wal(
        disk, clock=ManualClock(), randomness=SeededRandomness(seed), options=options, pump=pump or ThreadPump()
    )


@asynccontextmanager
async def a_wal(
    disk: Disk | Path, *, pump: Pump | None = None, options: WalOptions = SMALL
) -> AsyncIterator[tuple[Wal, Recovered]]:
    wal, recovered = await opened(disk, pump=pump, options=options)
    try:
        yield wal, recovered
    finally:
        await wal.close()


def add(
    wal: Wal, batch: bytes | memoryview = b"batch", *, offset: int = 0, partition: int = 0, lazy: bool = False
) -> int:
    return wal.append(
        topic_id=TOPIC,
        partition=partition,
        epoch=3,
        base_offset=offset,
        timestamp_ms=1_700_000_000_000 + offset,
        acks=1,
        batch=batch,
        lazy=lazy,
    )


def add_many(wal: Wal, count: int, size_bytes: int = 1000) -> list[int]:
    return [add(wal, b"%06d" % number + bytes(size_bytes - 6), offset=number) for number in range(count)]


def contents(recovered: Recovered) -> dict[int, bytes]:
    return {frame.lsn: bytes(frame.payload) for frame in recovered.frames()}


def frames_of(recovered: Recovered) -> list[Frame]:
    return list(recovered.frames())


class Gate:
    """Holds every sync until opened, and tells when one has arrived."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def block(self) -> None:
        self.reached.set()
        assert self.opened.wait(30)

    async def pause(self) -> None:
        await asyncio.to_thread(self.block)

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 30)


async def hang() -> None:
    """The pause of a TaskPump whose sync never returns."""
    await asyncio.Event().wait()


class PumpBench:
    """A pump without a WAL: what it is told to write, and what it reports."""

    FILE_BYTES = 16 * KIB

    def __init__(self, pump: Pump, *, max_batch_age_ms: int = 0) -> None:
        self.disk = FakeDisk()
        self.pump = pump
        self.synced: list[int] = []
        self.room: list[tuple[int | None, bool]] = []
        """(spare, whether there was room for it)"""
        self.failures: list[BaseException] = []
        self.threads: set[str] = set()
        """The threads on which reports came."""
        self._changed = asyncio.Event()
        self._position = FILE_HEADER_BYTES
        self._lsn = self._generation = 0
        self.files = WalFiles(self.disk, wal_id=UUID(int=1), clock=ManualClock(), ready_spares=())
        self.files.open_new(self._next_file(None))
        reports = Reports(on_synced=self._on_synced, on_failed=self._on_failed, on_room=self._on_room)
        pump.start(self.files, reports, max_batch_age_ms=max_batch_age_ms, room_pause_ms=1)

    def add(self, data: bytes = b"frame", *, lazy: bool = False) -> int:
        self._lsn += 1
        self.pump.add_frame((data,), position=self._position, lsn=self._lsn, lazy=lazy)
        self._position += len(data)
        return self._lsn

    def add_file(self, *, spare: int | None = None) -> None:
        self._position = FILE_HEADER_BYTES
        self.pump.add_file(self._next_file(spare))

    def written(self, generation: int = 1) -> bytes:
        """What the next process would find after a power cut."""
        return bytes(self.disk.names[log_name(generation)].durable[FILE_HEADER_BYTES:]).rstrip(bytes(1))

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not reached():
                self._changed.clear()
                await self._changed.wait()

    async def until_synced(self, lsn: int) -> None:
        await self.until(lambda: lsn in self.synced)

    def _next_file(self, spare: int | None) -> NewFile:
        self._generation += 1
        return NewFile(generation=self._generation, first_lsn=self._lsn + 1, size_bytes=self.FILE_BYTES, spare=spare)

    def _told(self) -> None:
        self.threads.add(threading.current_thread().name)
        self._changed.set()

    def _on_synced(self, report: SyncReport) -> None:
        self.synced.append(report.lsn)
        self._told()

    def _on_failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self._told()

    def _on_room(self, report: RoomReport) -> None:
        self.room.append((report.spare, report.problem is None))
        self._told()
