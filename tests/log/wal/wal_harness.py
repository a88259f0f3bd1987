"""Opening WALs in tests, small enough that files change over all the time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import KIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.wal_frame_v1 import Frame
from streamhouse.log.wal import Disk, NativePump, Pump, Recovered, TaskPump, ThreadPump, Wal, WalOptions, open_wal

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


def add(wal: Wal, batch: bytes | memoryview = b"batch", *, offset: int = 0, partition: int = 0) -> int:
    return wal.append(
        topic_id=TOPIC,
        partition=partition,
        epoch=3,
        base_offset=offset,
        timestamp_ms=1_700_000_000_000 + offset,
        acks=1,
        batch=batch,
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
