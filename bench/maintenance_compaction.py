"""Compaction of small objects beside a plain copy of the same bytes: read from the same store, written to it.

The copy makes the same requests: one range of each small object, one upload in pieces of 1 MiB. What compaction takes
beyond it is its own: checks of all batches, offsets, LZ4, index, metadata (SQLite). Both alternate, and so does
which of them begins. Figures are medians. Sizes of batches are those before compression; objects have 256 KiB, or one
batch if that is larger.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from maintenance_logs import CLOCK, MB, RANDOMNESS, LedLog, Place, batches_of, load, place
from report import heading, row
from streamhouse.core.limits import KIB, MIB
from streamhouse.metadata.contract import Entry, ScanRange
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.wire.codecs import Codec

_BATCH_BYTES = 16_000
_OTHER_BATCH_BYTES = (1_000, 4_000, 64_000, 1_000_000)
_BLOB_BYTES = 256 * KIB
_PIECE_BYTES = MIB
_DIFFERENT_BYTES = 8_000_000
_TARGET_MB_S = 500


async def compaction(*, log_mb: int, rounds: int) -> None:
    heading(f"Compaction of {log_mb} MB in objects of 256 KiB, CPU; {load()}")
    with tempfile.TemporaryDirectory(prefix="bench-maintenance-") as directory:
        local = await LocalStore.open(Path(directory) / "objects", clock=CLOCK, randomness=RANDOMNESS)
        stores: dict[str, ObjectStore] = {"memory": MemoryStore(clock=CLOCK), "local disk": local}
        for batches_name, codec in (("uncompressed", Codec.NONE), ("LZ4", Codec.LZ4)):
            for batch_bytes in (_BATCH_BYTES, *_OTHER_BATCH_BYTES):
                batches = batches_of(batch_bytes, max(8, _DIFFERENT_BYTES // batch_bytes), codec=codec)
                for store_name, store in stores.items():
                    if batch_bytes == _BATCH_BYTES or store is local:
                        name = f"{store_name}, {batches_name} batches of {batch_bytes // 1000} KB"
                        await _beside_a_copy(name, store, batches, log_mb=log_mb, rounds=rounds)
        await local.close()


async def _beside_a_copy(name: str, store: ObjectStore, batches: Sequence[bytes], *, log_mb: int, rounds: int) -> None:
    compacting: list[float] = []
    copying: list[float] = []
    shrunk = 1.0
    async with place(store) as ground:
        for number in range(rounds + 1):  # the first warms up
            log = await _write_log(ground, f"log-{number}", batches, log_mb * MB)
            entries = await _entries(ground, log)
            size_mb = sum(entry.byte_length for entry in entries) / MB
            works = [
                (copying, partial(_copy, store, entries)),
                (compacting, partial(_compact, ground, log)),
            ]
            for taken, work in works if number % 2 else reversed(works):
                taken.append(await _cpu_s(work) / size_mb)
            (compacted,) = await _entries(ground, log)
            shrunk = compacted.byte_length / MB / size_mb
            await store.delete([info.key async for info in store.list()])
    ours, plain = statistics.median(compacting[1:]), statistics.median(copying[1:])
    row(
        f"{name}: compaction",
        f"{1 / ours:,.0f} MB/s/core",
        target=f"≥ {_TARGET_MB_S} MB/s/core",
        ratio=f"{ours / plain:.2f} × the copy's CPU; {shrunk:.0%} of the bytes stay",
    )
    row(f"{name}: plain copy", f"{1 / plain:,.0f} MB/s/core")


async def _write_log(ground: Place, topic: str, batches: Sequence[bytes], log_bytes: int) -> LedLog:
    (log,) = await ground.logs(topic, 1)
    per_blob = max(1, _BLOB_BYTES // len(batches[0]))
    written = at = 0
    while written < log_bytes:
        part = [batches[(at + number) % len(batches)] for number in range(per_blob)]
        await ground.write_blob([(log, part)])
        written += sum(map(len, part))
        at += per_blob
    return log


async def _entries(ground: Place, log: LedLog) -> list[Entry]:
    whole = ScanRange(key=log.key, from_offset=0)
    (page,) = await ground.metadata.scan_entries([whole], limit=10_000)
    assert not page.more, "a log of one run has fewer entries"
    return list(page.entries)


async def _compact(ground: Place, log: LedLog) -> None:
    done = await ground.compactor().compact_once([log.key])
    assert not done.failures, done.failures
    assert done.stats.runs == 1, done


async def _copy(store: ObjectStore, entries: Sequence[Entry]) -> None:
    async with await store.open_upload("copy") as upload:
        piece: list[memoryview] = []
        for entry in entries:
            piece.append(await store.get_range(entry.object_key, entry.byte_offset, entry.byte_length))
            if sum(map(len, piece)) >= _PIECE_BYTES:
                await upload.write(piece)
                piece = []
        if piece:
            await upload.write(piece)
        await upload.complete()


async def _cpu_s(work: Callable[[], Awaitable[None]]) -> float:
    began = time.process_time()
    await work()
    return time.process_time() - began
