"""The write-ahead log on this machine's disk, each figure beside what the bare disk does in the same run.

The bare disk is the same preallocated file, written and fdatasynced without any code of ours in between. Rounds of both
alternate, because a shared disk drifts.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from uuid import UUID

from report import heading, row
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import GIB, KIB, MIB
from streamhouse.core.randomness import SystemRandomness
from streamhouse.log.wal import LocalDisk, Wal, WalOptions, open_wal

TOPIC = TopicId(UUID(int=1))
OPTIONS = WalOptions(file_bytes=64 * MIB, max_bytes=4 * GIB)
ROUNDS = 5


def append(wal: Wal, batch: bytes, number: int) -> int:
    return wal.append(topic_id=TOPIC, partition=0, epoch=1, base_offset=number, timestamp_ms=0, acks=1, batch=batch)


async def push(wal: Wal, batch: bytes, *, count: int, in_flight: int) -> tuple[float, float]:
    """Append as fast as the window allows; wall and CPU seconds until all is synced and settled."""
    wall, cpu = time.perf_counter(), time.process_time()
    unsynced: deque[int] = deque()
    for number in range(count):
        if len(unsynced) >= in_flight:
            # Half of the window, so that one sync works while the next one's frames arrive.
            await wal.wait_synced(unsynced[in_flight // 2])
            settled = []
            while unsynced and unsynced[0] <= wal.synced_lsn:
                settled.append(unsynced.popleft())
            wal.settle(settled)
        unsynced.append(append(wal, batch, number))
    await wal.wait_synced(unsynced[-1])
    wal.settle(unsynced)
    return time.perf_counter() - wall, time.process_time() - cpu


class BareDisk:
    def __init__(self, directory: Path) -> None:
        disk = LocalDisk(directory)
        disk.lock()
        disk.create("bare", OPTIONS.file_bytes)
        disk.unlock()
        self._fd = os.open(directory / "bare", os.O_WRONLY)

    def write(self, batch: bytes, *, count: int, per_sync: int) -> float:
        """Seconds for ``count`` batches with one sync for every ``per_sync``."""
        began = time.perf_counter()
        position = 0
        for first in range(0, count, per_sync):
            buffers = [batch] * min(per_sync, count - first)
            if position + len(batch) * len(buffers) > OPTIONS.file_bytes:
                position = 0
            for start in range(0, len(buffers), 1024):
                position += os.pwritev(self._fd, buffers[start : start + 1024], position)
            os.fdatasync(self._fd)
        return time.perf_counter() - began

    def sync_latencies(self, batch: bytes, count: int) -> list[float]:
        latencies = []
        for number in range(count):
            began = time.perf_counter()
            os.pwrite(self._fd, batch, number * len(batch))
            os.fdatasync(self._fd)
            latencies.append(time.perf_counter() - began)
        return latencies

    def close(self) -> None:
        os.close(self._fd)


async def throughput(wal: Wal, bare: BareDisk) -> None:
    batch = os.urandom(256 * KIB)
    count, in_flight = 1024, 64
    megabytes = count * len(batch) / 1e6
    await push(wal, batch, count=count, in_flight=in_flight)
    ours, cpu, disk = [], [], []
    for _ in range(ROUNDS):
        syncs = wal.metrics.syncs
        seconds, cpu_seconds = await push(wal, batch, count=count, in_flight=in_flight)
        per_sync = max(1, round(count / (wal.metrics.syncs - syncs)))
        ours.append(seconds)
        cpu.append(cpu_seconds)
        disk.append(bare.write(batch, count=count, per_sync=per_sync))
    seconds, disk_seconds = statistics.median(ours), statistics.median(disk)
    ratio = f"{disk_seconds / seconds:.0%} of the bare disk's {megabytes / disk_seconds:.0f} MB/s"
    row("256 KB batches", f"{megabytes / seconds:.0f} MB/s", target="500 MB/s", ratio=ratio)
    core = megabytes / statistics.median(cpu)
    row("  the same, by CPU time of loop and threads", f"{core:.0f} MB/s/core", target="500 MB/s/core")


async def small_batches(wal: Wal) -> None:
    batch = os.urandom(200)
    count, in_flight = 60_000, 4096
    await push(wal, batch, count=count, in_flight=in_flight)
    ours, cpu = [], []
    syncs = wal.metrics.syncs
    for _ in range(ROUNDS):
        seconds, cpu_seconds = await push(wal, batch, count=count, in_flight=in_flight)
        ours.append(seconds)
        cpu.append(cpu_seconds)
    rate = count / statistics.median(ours)
    per_sync = ROUNDS * count / (wal.metrics.syncs - syncs)
    row("200 B batches, appended and synced", f"{rate:,.0f}/s", target="30,000/s", ratio=f"{per_sync:.0f} a sync")
    row("  CPU for each, loop and threads", f"{statistics.median(cpu) / count * 1e6:.1f} µs")


async def latency(wal: Wal, bare: BareDisk) -> None:
    batch = os.urandom(200)
    ours: list[float] = []
    disk: list[float] = []
    for _ in range(ROUNDS):
        ours += await paced(wal, batch, per_second=5_000, seconds=2)
        disk += bare.sync_latencies(batch, 300)
    theirs = percentile(disk, 0.99)
    figure = f"{percentile(ours, 0.99) * 1e3:.1f} ms"
    row(
        "append → synced at 5,000 batches/s, p99",
        figure,
        target="3 × the disk's own",
        ratio=f"{percentile(ours, 0.99) / theirs:.1f} × write + fdatasync, p99 {theirs * 1e3:.1f} ms",
    )
    medians = percentile(ours, 0.5), percentile(disk, 0.5)
    row("  p50", f"{medians[0] * 1e3:.1f} ms", ratio=f"{medians[0] / medians[1]:.1f} × {medians[1] * 1e3:.1f} ms")


async def paced(wal: Wal, batch: bytes, *, per_second: int, seconds: int) -> list[float]:
    """One append at a time at its due moment; from that moment to the report of its sync."""
    pending: deque[tuple[int, float]] = deque()
    latencies: list[float] = []

    def synced(lsn: int) -> None:
        now = time.perf_counter()
        settled = []
        while pending and pending[0][0] <= lsn:
            found, due = pending.popleft()
            settled.append(found)
            latencies.append(now - due)
        wal.settle(settled)

    wal.on_synced(synced)
    began = time.perf_counter()
    for number in range(per_second * seconds):
        due = began + number / per_second
        if (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        pending.append((append(wal, batch, number), due))
    if pending:
        await wal.wait_synced(pending[-1][0])
    return latencies


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure(directory: Path) -> None:
    bare = BareDisk(directory / "bare")
    wal, _ = await open_wal(directory / "wal", clock=SystemClock(), randomness=SystemRandomness(), options=OPTIONS)
    await throughput(wal, bare)
    await small_batches(wal)
    await latency(wal, bare)
    metrics = wal.metrics
    row(
        "  files over the whole run",
        f"{metrics.files_created} made",
        ratio=f"{metrics.files_recycled} recycled, longest sync {metrics.sync_seconds_max * 1e3:.0f} ms",
    )
    await wal.close()
    bare.close()


def main() -> None:
    heading("write-ahead log (real disk, real fdatasync)")
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-wal-") as directory:
            asyncio.run(measure(Path(directory)))
    finally:
        sys.setswitchinterval(before)


if __name__ == "__main__":
    main()
