"""The metadata store on an SQLite file: commits by size, commits at the same time, ceiling lookups by depth, renewals.

Absolute figures depend on the disk's fsync, so commits are also given as a multiple of the smallest one there is on the
same disk: one row updated and committed with the same settings.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from report import Timing, heading, measure, row
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    BatchRun,
    EntryKind,
    HeldLease,
    Holder,
    LeaderlessSlice,
    LeasedSlice,
    NewTopic,
    ObjectRef,
    SliceOutcome,
    Verdict,
    WriteMode,
)
from streamhouse.metadata.sqlite.connections import connect
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.metadata.sqlite.transactions import Tx

COMMIT_SIZES = (1, 10, 100, 1000)
TOGETHER = 100
DEPTHS = (1_000, 10_000, 100_000, 1_000_000)
RENEWALS = (1_000, 10_000)
LOOKUPS = 200

RANDOMNESS = SystemRandomness()
HOLDER = Holder(agent_id="bench", incarnation=RANDOMNESS.uuid(), wal_id=RANDOMNESS.uuid())

Run = Callable[[Awaitable[object]], object]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        path = Path(directory) / "metadata.db"
        store = SqliteMetadata(path, clock=SystemClock(), randomness=RANDOMNESS)
        run: Run = runner.run  # type: ignore[assignment]
        run(store.open())
        info = runner.run(store.cluster_info())
        heading(f"metadata: {info.backend}")
        floor = one_row_commit(Path(directory) / "floor.db")
        bench_commits(run, store, floor)
        bench_lookups(run, store)
        bench_renewals(run, store)
        run(store.close())


def one_row_commit(path: Path) -> Timing:
    connection = connect(str(path), busy_timeout_ms=0)
    connection.execute("CREATE TABLE schema_migrations (n)")
    connection.execute("INSERT INTO schema_migrations VALUES (0)")
    timing = measure(lambda: connection.execute("UPDATE schema_migrations SET n = n + 1"), rounds=101)
    connection.close()
    row("floor: one row updated and committed", f"{timing.wall_s * 1e3:.2f} ms")
    return timing


async def topic(store: SqliteMetadata, name: str, partitions: int, mode: WriteMode) -> list[PartitionKey]:
    new = NewTopic(
        topic_id=TopicId(RANDOMNESS.uuid()), name=name, partition_count=partitions, configs={}, write_mode=mode
    )
    return (await store.create_topic(new)).partition_keys()


def uploaded() -> ObjectRef:
    return ObjectRef(key=f"objects/{RANDOMNESS.uuid()}", size_bytes=1_000_000, created_at_ms=1_700_000_000_000)


def batch(**producer: int) -> BatchRun:
    return BatchRun(record_count=10, byte_length=1000, min_timestamp_ms=1, max_timestamp_ms=2, **producer)


def leased_slices(keys: Sequence[PartitionKey], base_offset: int) -> list[LeasedSlice]:
    reference = uploaded()
    return [
        LeasedSlice(
            key=key,
            epoch=1,
            base_offset=base_offset,
            kind=EntryKind.WAL,
            object=reference,
            byte_offset=1000 * number,
            byte_length=1000,
            encoding=KAFKA_BATCHES,
            batches=(batch(),),
        )
        for number, key in enumerate(keys)
    ]


def leaderless_slices(keys: Sequence[PartitionKey], sequence: int) -> list[LeaderlessSlice]:
    listed = (batch(producer_id=7, producer_epoch=0, base_sequence=sequence),)
    return [
        LeaderlessSlice(key=key, byte_offset=1000 * number, byte_length=1000, encoding=KAFKA_BATCHES, batches=listed)
        for number, key in enumerate(keys)
    ]


async def committed(call: Awaitable[list[SliceOutcome]]) -> None:
    assert all(outcome.verdict is Verdict.COMMITTED for outcome in await call)


def bench_commits(run: Run, store: SqliteMetadata, floor: Timing) -> None:
    for size in COMMIT_SIZES:
        keys = run(topic(store, f"leased-{size}", size, WriteMode.LEASED))
        assert isinstance(keys, list)
        run(store.acquire_leases(HOLDER, keys, ttl_ms=3_600_000))
        flushes = [leased_slices(keys, 10 * turn) for turn in range(rounds_of(size) + 1)]
        timing = time_each(run, size, [partial(store.commit_leased, new_append(), flush) for flush in flushes])
        show_commit("leased commit", size, timing, floor, target="1-3 ms" if size == 100 else "")
    for size in COMMIT_SIZES:
        keys = run(topic(store, f"leaderless-{size}", size, WriteMode.LEADERLESS))
        assert isinstance(keys, list)
        blobs = [leaderless_slices(keys, 10 * turn) for turn in range(rounds_of(size) + 1)]
        commit = store.commit_leaderless
        timing = time_each(run, size, [partial(commit, new_append(), uploaded(), blob) for blob in blobs])
        show_commit("blob commit, idempotent", size, timing, floor)
    bench_together(run, store, floor)


def new_append() -> AppendId:
    return AppendId(RANDOMNESS.uuid())


def rounds_of(size: int) -> int:
    return max(11, 200 // size)


def time_each(run: Run, size: int, calls: Iterable[Callable[[], Awaitable[list[SliceOutcome]]]]) -> Timing:
    """The calls were made ready before, so that only the store is measured."""
    waiting = iter(calls)
    return measure(lambda: run(committed(next(waiting)())), rounds=rounds_of(size))


def bench_together(run: Run, store: SqliteMetadata, floor: Timing) -> None:
    """Callers that wait at the same time share an fsync."""
    keys = run(topic(store, "together", TOGETHER, WriteMode.LEASED))
    assert isinstance(keys, list)
    run(store.acquire_leases(HOLDER, keys, ttl_ms=3_600_000))
    turns = itertools.count()

    async def all_at_once() -> None:
        base = 10 * next(turns)
        await asyncio.gather(
            *(committed(store.commit_leased(new_append(), leased_slices([key], base))) for key in keys)
        )

    timing = measure(lambda: run(all_at_once()), rounds=21)
    row(
        f"{TOGETHER} callers, one partition each",
        f"{TOGETHER / timing.wall_s:,.0f} commits/s",
        ratio=f"{floor.wall_s * TOGETHER / timing.wall_s:.1f} × one after another on the bare floor",
    )


def show_commit(name: str, size: int, timing: Timing, floor: Timing, *, target: str = "") -> None:
    figure = f"{timing.wall_s * 1e3:.2f} ms {timing.wall_s * 1e6 / size:7.1f} µs/p"
    ratio = f"{1 / timing.wall_s:,.0f} commits/s, {timing.wall_s / floor.wall_s:.1f} × the floor"
    row(f"{name}, {size} partitions", figure, target=target, ratio=ratio)


def bench_lookups(run: Run, store: SqliteMetadata) -> None:
    first = 0.0
    for depth in DEPTHS:
        keys = run(topic(store, f"deep-{depth}", 1, WriteMode.LEADERLESS))
        assert isinstance(keys, list)
        key: PartitionKey = keys[0]
        run(store._write(fill, key, depth))
        offsets = [int(RANDOMNESS.uniform(0, depth * 10)) for _ in range(LOOKUPS)]

        async def look(key: PartitionKey = key, offsets: Sequence[int] = offsets) -> None:
            for offset in offsets:
                found = await store.find_entry(key, offset)
                assert found.entry is not None
                assert found.entry.base_offset <= offset <= found.entry.end_offset

        timing = measure(lambda look=look: run(look()))  # type: ignore[misc]
        each_us = timing.wall_s / LOOKUPS * 1e6
        first = first or each_us
        row(
            f"ceiling lookup among {depth:,} entries",
            f"{each_us:.0f} µs",
            target="flat",
            ratio=f"{each_us / first:.2f} ×",
        )


def fill(tx: Tx, key: PartitionKey, depth: int) -> None:
    """Straight into the table: a million commits would take the evening."""
    tx.run(
        """
        WITH RECURSIVE numbered (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbered WHERE n + 1 < :depth)
        INSERT INTO entries (topic_id, partition_id, base_offset, end_offset, kind, object_key, byte_offset,
            byte_length, record_count, encoding, min_timestamp, max_timestamp, running_max_timestamp, epoch, created_at)
        SELECT :topic_id, :partition, n * 10, n * 10 + 9, 'WAL', 'objects/' || hex(randomblob(16)), n, 1000, 10,
            'kafka-batch-v2', n, n, n, 0, 0
        FROM numbered""",
        {"depth": depth, "topic_id": key.topic_id.bytes, "partition": key.partition},
    )
    tx.run(
        "UPDATE partitions SET high_watermark = ? WHERE topic_id = ? AND partition_id = ?",
        (depth * 10, key.topic_id.bytes, key.partition),
    )


def bench_renewals(run: Run, store: SqliteMetadata) -> None:
    for count in RENEWALS:
        keys = run(topic(store, f"held-{count}", count, WriteMode.LEASED))
        assert isinstance(keys, list)
        run(store.acquire_leases(HOLDER, keys, ttl_ms=3_600_000))
        held = [HeldLease(key=key, epoch=1) for key in keys]

        async def renew(held: Sequence[HeldLease] = held) -> None:
            assert all(outcome.renewed for outcome in await store.renew_leases(HOLDER, held, ttl_ms=3_600_000))

        timing = measure(lambda renew=renew: run(renew()))  # type: ignore[misc]
        figure = f"{timing.wall_s * 1e3:.0f} ms {timing.wall_s * 1e6 / count:.1f} µs/lease"
        row(f"renew {count:,} leases in one call", figure)
