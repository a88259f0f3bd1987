"""Read amplification on S3: GETs and bytes for each MB that a consumer takes, before and after compaction.

The S3 server of the tests. Before: shared blobs of 256 KiB with the batches of eight partitions. Each consumer has a
reader of its own with cold caches, and reads from the start to the end by 1 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maintenance_logs import CLOCK, MB, RANDOMNESS, LedLog, Place, batches_of, load, place
from report import heading, row
from streamhouse.core.limits import KIB, MIB
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.objectstore.metering import Meter, MeteredStore
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.opening import StoreOptions, open_store
from streamhouse.testing.services.s3 import start_s3

_PARTITIONS = 8
_BLOB_BYTES = 256 * KIB
_BATCH_BYTES = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    records_mb: float
    """Batches as the consumer gets them."""
    gets: int
    fetched_mb: float

    @property
    def gets_per_mb(self) -> float:
        return self.gets / self.records_mb

    @property
    def bytes_per_byte(self) -> float:
        return self.fetched_mb / self.records_mb


async def read_amplification(*, log_mb: int) -> None:
    heading(f"Read amplification on S3, {log_mb} MB in shared blobs of {_PARTITIONS} partitions; {load()}")
    with start_s3() as s3:
        options = StoreOptions(
            endpoint_url=s3.endpoint_url,
            region=s3.region,
            access_key_id=s3.access_key,
            secret_access_key=s3.secret_key,
        )
        url = f"s3://{s3.create_bucket()}/bench"
        async with await open_store(url, clock=CLOCK, randomness=RANDOMNESS, options=options) as store:
            metered = MeteredStore(store, meter=Meter(), clock=CLOCK)
            async with place(metered) as ground:
                logs = await _write(ground, log_mb * MB)
                consumers = {"one partition": logs[:1], "all partitions": logs}
                before = {name: await _consume(ground, metered, of) for name, of in consumers.items()}
                done = await ground.compactor().compact_once([log.key for log in logs])
                assert not done.failures, done.failures
                assert done.stats.runs == _PARTITIONS, done
                for name, of in consumers.items():
                    _show(name, before[name], await _consume(ground, metered, of))


def _show(name: str, before: Consumed, after: Consumed) -> None:
    assert before.records_mb == after.records_mb, "a consumer sees the same log before and after"
    row(
        f"{name}: GETs for a MB, before / after",
        f"{before.gets_per_mb:.2f} / {after.gets_per_mb:.2f}",
        ratio=f"{after.gets_per_mb / before.gets_per_mb:.3f} ×",
    )
    row(
        f"{name}: bytes fetched for a byte, before / after",
        f"{before.bytes_per_byte:.2f} / {after.bytes_per_byte:.2f}",
        ratio=f"{after.bytes_per_byte / before.bytes_per_byte:.2f} × ({before.records_mb:.0f} MB consumed)",
    )


async def _write(ground: Place, log_bytes: int) -> list[LedLog]:
    logs = await ground.logs("bench", _PARTITIONS)
    batches = batches_of(_BATCH_BYTES, 256)
    per_partition = max(1, _BLOB_BYTES // _PARTITIONS // len(batches[0]))
    written = at = 0
    while written < log_bytes:
        pieces = []
        for log in logs:
            pieces.append((log, [batches[(at + number) % len(batches)] for number in range(per_partition)]))
            at += per_partition
        await ground.write_blob(pieces)
        written += sum(len(batch) for _, part in pieces for batch in part)
    return logs


async def _consume(ground: Place, store: MeteredStore, logs: Sequence[LedLog]) -> Consumed:
    """One consumer of these partitions, one after the other."""
    reader = LogReader(
        metadata=ground.metadata,
        store=store,
        tail=TailCache(0),
        leading=None,
        clock=CLOCK,
        options=ReaderOptions(),
        offload=ground.offload,
    )
    gets, fetched = _counted(store)
    size_bytes = 0
    for log in logs:
        offset = 0
        while (result := await reader.read(log.key, offset, max_bytes=MIB)).batches:
            offset = result.next_offset
            size_bytes += result.size_bytes
        assert offset == log.next_offset, f"{log.key} was read to {offset} of {log.next_offset}"
    await reader.close()
    gets_then, fetched_then = _counted(store)
    return Consumed(records_mb=size_bytes / MB, gets=gets_then - gets, fetched_mb=(fetched_then - fetched) / MB)


def _counted(store: MeteredStore) -> tuple[int, int]:
    """GETs of both kinds so far, and their bytes."""
    totals = store.meter.read().totals
    kinds = [totals[Operation.GET], totals[Operation.RANGE_GET]]
    return sum(each.requests for each in kinds), sum(each.bytes for each in kinds)
