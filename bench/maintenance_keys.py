"""Key compaction: records a second of CPU, and how much memory it takes at most.

Records of 100 bytes with a tenth as many keys, at random, in batches of 500 and segments of 10,000, uncompressed, on a
local disk. A copy of the same objects is measured beside it. Both run in one process that has not made the log.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from maintenance_logs import CLOCK, MB, RANDOMNESS, Place, Spent, Stopwatch, in_own_process, load, place
from report import heading, row
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MIB
from streamhouse.core.topic_config import effective
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.local import LocalStore
from streamhouse.wire.records import Record, build_batch

_PER_BATCH = 500
_BATCHES_PER_SEGMENT = 20
_VALUES = 1_000
_CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
_TARGET_PER_S = 1_000_000
_MAX_PASSES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    spent: Spent
    copying: Spent
    log_mb: float
    superseded: int
    passes: int


def key_compaction(*, records: int) -> None:
    heading(f"Key compaction of {records:,} records with {_keys(records):,} keys; {load()}")
    with tempfile.TemporaryDirectory(prefix="bench-maintenance-") as directory:
        key, distinct = asyncio.run(_write(Path(directory), records))
        found = in_own_process(_measure, directory, key)
    assert found.superseded == records - distinct, f"{found.superseded} of {records} dropped, {distinct} keys"
    map_mb = KeyRules().map_bytes / MB
    rate, copied = records / found.spent.cpu_s, records / found.copying.cpu_s
    row(
        "records a second of CPU",
        f"{rate:,.0f} /s/core",
        target=f"≥ {_TARGET_PER_S:,} /s/core",
        ratio=f"{found.spent.cpu_s / found.copying.cpu_s:.1f} × the copy's CPU",
    )
    row("a plain copy of the objects", f"{copied:,.0f} /s/core", ratio=f"{found.log_mb:,.0f} MB")
    row("wall time", f"{found.spent.wall_s:.1f} s", ratio=f"passes: {found.passes}")
    row(
        "memory: growth at most",
        f"{found.spent.peak_growth_mb:,.0f} MB",
        target="bounded",
        ratio=f"{found.spent.peak_growth_mb / map_mb:.1f} × the largest map of keys ({map_mb:.0f} MB)",
    )


def _keys(records: int) -> int:
    return max(1, records // 10)


async def _write(directory: Path, count: int) -> tuple[PartitionKey, int]:
    """The partition, and how many different keys its records have."""
    source = random.Random(1)
    values = [source.randbytes(50) + b"x" * 50 for _ in range(_VALUES)]
    used = bytearray(_keys(count))
    store = await _open(directory)
    async with place(store, path=directory / "metadata.db") as ground:
        (log,) = await ground.logs("keyed", 1, _CONFIGS)
        left = count
        while left:
            batches: list[bytes] = []
            while left and len(batches) < _BATCHES_PER_SEGMENT:
                numbers = [source.randrange(len(used)) for _ in range(min(left, _PER_BATCH))]
                batches.append(
                    build_batch(
                        [
                            Record(key=b"key-%08d" % number, value=values[number % _VALUES], timestamp_ms=1_000)
                            for number in numbers
                        ]
                    )
                )
                for number in numbers:
                    used[number] = 1
                left -= len(numbers)
            await ground.write_segment(log, batches)
        # The newest entry of a log is never compacted (R18).
        await ground.write_segment(log, [build_batch([Record(key=b"last", value=b"", timestamp_ms=1_000)])])
    await store.close()
    return log.key, sum(used)


def _measure(directory: str, key: PartitionKey) -> Compacted:
    return asyncio.run(_compact(Path(directory), key))


async def _compact(directory: Path, key: PartitionKey) -> Compacted:
    store = await _open(directory)
    async with place(store, path=directory / "metadata.db") as ground:
        stopwatch = Stopwatch()
        size_bytes = await _copy(store)
        copying = stopwatch.read()
        stopwatch = Stopwatch()
        superseded, passes = await _until_clean(ground, store, key)
        spent = stopwatch.read()
    await store.close()
    return Compacted(spent=spent, copying=copying, log_mb=size_bytes / MB, superseded=superseded, passes=passes)


async def _until_clean(ground: Place, store: ObjectStore, key: PartitionKey) -> tuple[int, int]:
    """How many records were dropped, and in how many passes."""
    compactor = KeyCompactor(
        metadata=ground.metadata, store=store, offload=ground.offload, clock=CLOCK, randomness=RANDOMNESS, owner="bench"
    )
    for passes in range(1, _MAX_PASSES + 1):
        done = await compactor.compact_once({key: effective(_CONFIGS)})
        assert not done.failures, done.failures
        if not done.more:
            return compactor.stats.superseded, passes
    raise AssertionError(f"key compaction has more to do after {_MAX_PASSES} passes")


async def _copy(store: ObjectStore) -> int:
    """Copy all segments into objects of 128 MiB, as compaction makes them, and delete the copies again."""
    size_bytes, infos = 0, [info async for info in store.list()]
    copies, at = [], 0
    while at < len(infos):
        copies.append(f"copy-{at}")
        async with await store.open_upload(copies[-1]) as upload:
            while at < len(infos) and upload.written.size_bytes < 128 * MIB:
                await upload.write([await store.get(infos[at].key)])
                size_bytes += infos[at].size_bytes
                at += 1
            await upload.complete()
    await store.delete(copies)
    return size_bytes


async def _open(directory: Path) -> LocalStore:
    return await LocalStore.open(directory / "objects", clock=CLOCK, randomness=RANDOMNESS)
