"""How long maintenance keeps the event loop of a node from other work: its longest steps, in CPU time of that thread.

A produce request waits for whatever step the loop is in. CPU time stands on a busy machine, where waiting times do not;
what it leaves out is the interpreter lock, which the threads of a pass hold for 5 ms at a time at most.

The passes are those of an agent: compaction of 4,000 small objects of one partition, first its plan alone; retention
that drops 4,000 entries of another; early deletion of what both have left, and a vacuum of the rest. Metadata is SQLite
in a file, objects are in memory. Each line says where the task waited after the step.
"""

from __future__ import annotations

import asyncio
import heapq
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from maintenance_logs import CLOCK, LedLog, Place, batches_of, load, place
from report import heading, row
from streamhouse.core.clock import ManualClock
from streamhouse.core.limits import MIB
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.upkeep.disk_space import DiskSpace
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.objectstore.memory import MemoryStore

_HOUR_MS = 3_600_000
_TARGET_MS = 5
_SHOWN = 3
_BLOBS_OF_EACH = 4_000
_BATCH_BYTES = 1_000


def loop_steps() -> None:
    heading(f"The longest steps of maintenance on the event loop, CPU; {load()}")
    asyncio.run(_passes())


async def _passes() -> None:
    clock = ManualClock(CLOCK.wall_ms())  # the batches have real times
    with tempfile.TemporaryDirectory(prefix="bench-maintenance-") as directory:
        async with place(MemoryStore(clock=clock), path=Path(directory) / "metadata.db", clock=clock) as ground:
            small = await _log(ground, "small", {"retention.ms": "-1"})
            old = await _log(ground, "old", {"retention.ms": "3600000"})
            clock.advance(2 * _HOUR_MS)
            retention = Retention(metadata=ground.metadata)
            disk = DiskSpace(
                metadata=ground.metadata, objects=ground.store, keep_bytes=MIB, oldest_stamp_ms=lambda: None
            )
            await _measured("compaction: plan", lambda: ground.compactor().plan([small.key]))
            await _measured("compaction", lambda: ground.compactor().compact_once([small.key]))
            await _measured("retention", lambda: retention.run(wanted=lambda topic, _: topic.name == old.topic))
            clock.advance(1_000)
            await _measured("early deletion on a single node", disk.free)
            options = VacuumOptions(writer_grace_ms=_HOUR_MS, reader_grace_ms=_HOUR_MS)
            await ground.metadata.delete_topic(old.key.topic_id)
            clock.advance(2 * _HOUR_MS)
            await _measured("vacuum", Vacuum(metadata=ground.metadata, objects=ground.store, options=options).run)


async def _log(ground: Place, topic: str, configs: dict[str, str]) -> LedLog:
    (log,) = await ground.logs(topic, 1, configs)
    batches = batches_of(_BATCH_BYTES, 16)
    for number in range(_BLOBS_OF_EACH):
        await ground.write_blob([(log, [batches[number % len(batches)]])])
    return log


async def _measured(name: str, work: Callable[[], Awaitable[object]]) -> None:
    with _watched_steps() as steps:
        await work()
        await asyncio.sleep(0)  # ends the last step
    longest = heapq.nlargest(_SHOWN, steps)
    row(name, f"{longest[0][0]:.1f} ms", target=f"≤ {_TARGET_MS} ms", ratio=f"{len(steps):,} steps")
    for took_ms, where in longest:
        row(f"  {took_ms:.1f} ms", "", ratio=where)


@contextmanager
def _watched_steps() -> Iterator[list[tuple[float, str]]]:
    """The CPU time of each step of the loop, and the line at which its task waits afterwards."""
    steps: list[tuple[float, str]] = []
    run = asyncio.Handle._run

    def watched(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        took_ms = 1000 * (time.thread_time() - began_s)
        steps.append((took_ms, _where(handle) if took_ms > 1 else ""))

    asyncio.Handle._run = watched  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


def _where(handle: asyncio.Handle) -> str:
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    if not isinstance(task, asyncio.Task):
        return str(handle._callback)  # type: ignore[attr-defined]
    places, coroutine = [], task.get_coro()
    while coroutine is not None:
        frame: FrameType | None = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return " ".join(places) or "a task that ended"
