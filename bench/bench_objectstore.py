"""The local store against the bare system calls, and what the wrappers cost a call.

The disk decides the absolute figures; the ratios say what our code adds. "bare" is write, fsync and close of a new
file: less than a durable put needs, which also publishes the name (link, fsync of the directory, unlink).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from report import heading, measure, row
from streamhouse.core.clock import SystemClock
from streamhouse.core.limits import KIB, MIB
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.retries import RetryingStore

CLOCK, RANDOMNESS = SystemClock(), SystemRandomness()
SIZES = {"64 KiB": 64 * KIB, "1 MiB": 1 * MIB, "4 MiB": 4 * MIB}
IN_FLIGHT = 8
_numbers = itertools.count()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        root = Path(directory)
        (root / "bare").mkdir()
        store = runner.run(LocalStore.open(root / "objects", clock=CLOCK, randomness=RANDOMNESS))
        heading("Object store: a local directory, durable")
        for name, size in SIZES.items():
            _puts(runner, store, root / "bare", name, bytes(size))
        for name, size in SIZES.items():
            _gets(runner, store, root / "bare", name, bytes(size))
        runner.run(store.close())
        heading("Object store: what a wrapper adds to a call")
        _wrappers(runner)


def _puts(runner: asyncio.Runner, store: ObjectStore, bare: Path, name: str, body: bytes) -> None:
    count = 16 * IN_FLIGHT if len(body) < MIB else 4 * IN_FLIGHT

    async def one() -> None:
        await store.put(f"bench/{next(_numbers):09d}", body)

    def written_bare() -> None:
        for _ in range(count):
            _write_and_sync(bare / f"{next(_numbers)}", body)

    bare_s = measure(written_bare, rounds=5).wall_s
    alone_s = measure(lambda: runner.run(_one_by_one(one, count)), rounds=5).wall_s
    together_s = measure(lambda: runner.run(_together(one, count)), rounds=5).wall_s
    _throughput(f"PUT {name}, bare write + fsync", len(body), count, bare_s)
    _throughput(f"PUT {name}, one by one", len(body), count, alone_s, bare_s)
    _throughput(f"PUT {name}, {IN_FLIGHT} in flight", len(body), count, together_s, bare_s)


def _gets(runner: asyncio.Runner, store: ObjectStore, bare: Path, name: str, body: bytes) -> None:
    count, key = 32, f"read/{len(body)}"
    runner.run(store.put(key, body))
    (bare / name).write_bytes(body)

    def read_bare() -> None:
        for _ in range(count):
            (bare / name).read_bytes()

    async def one() -> None:
        await store.get(key)

    bare_s = measure(read_bare).wall_s
    alone_s = measure(lambda: runner.run(_one_by_one(one, count))).wall_s
    _throughput(f"GET {name}, bare read (cached)", len(body), count, bare_s)
    _throughput(f"GET {name}, one by one (cached)", len(body), count, alone_s, bare_s)


def _wrappers(runner: asyncio.Runner) -> None:
    memory = MemoryStore(clock=CLOCK)
    runner.run(memory.put("a", bytes(KIB)))
    count = 5_000
    metered = MeteredStore(memory, meter=Meter(), clock=CLOCK)
    stacks: dict[str, ObjectStore] = {
        "memory alone": memory,
        "metered": metered,
        "metered and retried": RetryingStore(metered, clock=CLOCK, randomness=RANDOMNESS),
    }
    alone_us = 0.0
    for name, store in stacks.items():

        async def one(store: ObjectStore = store) -> None:
            await store.get_range("a", 0, KIB)

        cost_us = measure(lambda one=one: runner.run(_one_by_one(one, count))).cpu_s / count * 1e6  # type: ignore[misc]
        alone_us = alone_us or cost_us
        row(f"get_range, {name}", f"{cost_us:.1f} µs", ratio=f"+{cost_us - alone_us:.1f} µs")


async def _one_by_one(call: Callable[[], Awaitable[None]], count: int) -> None:
    for _ in range(count):
        await call()


async def _together(call: Callable[[], Awaitable[None]], count: int) -> None:
    for _ in range(count // IN_FLIGHT):
        await asyncio.gather(*(call() for _ in range(IN_FLIGHT)))


def _write_and_sync(path: Path, body: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, body)
    os.fsync(fd)
    os.close(fd)


def _throughput(name: str, size: int, count: int, wall_s: float, bare_s: float | None = None) -> None:
    ratio = f"{bare_s / wall_s:.2f} × bare" if bare_s else ""
    row(name, f"{size * count / wall_s / 1e6:,.0f} MB/s, {count / wall_s:,.0f}/s", ratio=ratio)
