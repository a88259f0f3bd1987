"""The metadata store on a private, durable PostgreSQL: commits by size, ceiling lookups by depth, renewals.

Absolute figures depend on the disk's fsync, so each commit is also given as a multiple of the smallest one there is on
the same server: one row updated and committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import asyncpg

from report import Timing, heading, measure, row
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
    Verdict,
    WriteMode,
)
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.testing.services import start_postgres

COMMIT_SIZES = (1, 10, 100, 1000)
DEPTHS = (1_000, 10_000, 100_000, 1_000_000)
RENEWALS = (1_000, 10_000)
LOOKUPS = 200

RANDOMNESS = SystemRandomness()
HOLDER = Holder(agent_id="bench", incarnation=RANDOMNESS.uuid(), wal_id=RANDOMNESS.uuid())

Run = Callable[[Awaitable[object]], object]


def uploaded() -> ObjectRef:
    return ObjectRef(key=f"objects/{RANDOMNESS.uuid()}", size_bytes=1_000_000, created_at_ms=1_700_000_000_000)


def batch(**producer: int) -> BatchRun:
    return BatchRun(record_count=10, byte_length=1000, min_timestamp_ms=1, max_timestamp_ms=2, **producer)


async def topic(store: PostgresMetadata, name: str, partitions: int, mode: WriteMode) -> list[PartitionKey]:
    new = NewTopic(
        topic_id=TopicId(RANDOMNESS.uuid()), name=name, partition_count=partitions, configs={}, write_mode=mode
    )
    return (await store.create_topic(new)).partition_keys()


def leaderless_slices(keys: list[PartitionKey], *, producer_id: int = -1, sequence: int = -1) -> list[LeaderlessSlice]:
    epoch = -1 if producer_id < 0 else 0
    run = batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return [
        LeaderlessSlice(key=key, byte_offset=1000 * n, byte_length=1000, encoding=KAFKA_BATCHES, batches=(run,))
        for n, key in enumerate(keys)
    ]


def show_commit(name: str, size: int, commit: Callable[[], object], floor: Callable[[], Timing]) -> None:
    peer = floor()
    timing = measure(commit, rounds=21, warm_up=3)
    figure = f"{timing.wall_s * 1e3:8.2f} ms {timing.wall_s * 1e6 / size:8.1f} µs/p"
    row(f"{name}, {size} partitions", figure, ratio=f"{timing.wall_s / peer.wall_s:.1f} × a one-row commit")


def one_row(run: Run, dsn: str) -> Callable[[], Timing]:
    """The smallest commit there is, to be measured beside each of ours: a busy machine slows both."""

    async def prepare() -> asyncpg.Connection:
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE floor (n bigint); INSERT INTO floor VALUES (0)")
        return connection

    connection = run(prepare())
    assert isinstance(connection, asyncpg.Connection)
    update = "UPDATE floor SET n = n + $1"
    return lambda: measure(lambda: run(connection.execute(update, 1)), rounds=21)


def commits(run: Run, store: PostgresMetadata, floor: Callable[[], Timing]) -> None:
    keys = run(topic(store, "blobs", max(COMMIT_SIZES), WriteMode.LEADERLESS))
    assert isinstance(keys, list)
    for size in COMMIT_SIZES:

        async def commit(size: int = size) -> None:
            outcomes = await store.commit_leaderless(
                AppendId(RANDOMNESS.uuid()), uploaded(), leaderless_slices(keys[:size])
            )
            assert all(outcome.verdict is Verdict.COMMITTED for outcome in outcomes)

        show_commit("blob commit", size, lambda: run(commit()), floor)
    for size in COMMIT_SIZES:
        sequences = iter(range(0, 10_000, 10))

        async def commit_idempotent(size: int = size, sequences: Iterator[int] = sequences) -> None:
            slices = leaderless_slices(keys[:size], producer_id=size, sequence=next(sequences))
            outcomes = await store.commit_leaderless(AppendId(RANDOMNESS.uuid()), uploaded(), slices)
            assert all(outcome.end_offset >= 0 for outcome in outcomes)

        show_commit("blob commit, idempotent producers", size, lambda: run(commit_idempotent()), floor)


def leased_commits(run: Run, store: PostgresMetadata, floor: Callable[[], Timing]) -> None:
    keys = run(topic(store, "leased", max(COMMIT_SIZES), WriteMode.LEASED))
    assert isinstance(keys, list)
    run(store.acquire_leases(HOLDER, keys, ttl_ms=3_600_000))
    ends = dict.fromkeys(keys, 0)

    async def commit(size: int) -> None:
        blob = uploaded()
        slices = [
            LeasedSlice(
                key=key,
                epoch=1,
                base_offset=ends[key],
                kind=EntryKind.WAL,
                object=blob,
                byte_offset=1000 * n,
                byte_length=1000,
                encoding=KAFKA_BATCHES,
                batches=(batch(),),
            )
            for n, key in enumerate(keys[:size])
        ]
        for outcome in await store.commit_leased(AppendId(RANDOMNESS.uuid()), slices):
            assert outcome.verdict is Verdict.COMMITTED
            ends[outcome.key] = outcome.end_offset + 1

    for size in COMMIT_SIZES:
        show_commit("leased commit", size, lambda size=size: run(commit(size)), floor)  # type: ignore[misc]


def lookups(run: Run, store: PostgresMetadata, dsn: str) -> None:
    async def fill(key: PartitionKey, depth: int) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(
            """INSERT INTO entries SELECT $1, $2, n * 10 + 9, n * 10, 'WAL', 'objects/' || n, 0, 1000, 10,
                                          'kafka-batch-v2', n, n, n, 1, n
               FROM generate_series(0, $3::bigint - 1) AS n""",
            key.topic_id,
            key.partition,
            depth,
        )
        await connection.execute(
            "UPDATE partitions SET high_watermark = $3 WHERE topic_id = $1 AND partition_id = $2",
            key.topic_id,
            key.partition,
            depth * 10,
        )
        await connection.close()

    keys = run(topic(store, "deep", len(DEPTHS), WriteMode.LEASED))
    assert isinstance(keys, list)
    for key, depth in zip(keys, DEPTHS, strict=True):
        run(fill(key, depth))

    async def look(place: int) -> None:
        step = DEPTHS[place] * 10 // LOOKUPS
        for n in range(LOOKUPS):
            assert (await store.find_entry(keys[place], n * step)).entry is not None

    async def look_by_time(place: int) -> None:
        for n in range(LOOKUPS):
            assert (await store.find_entry_by_timestamp(keys[place], n * DEPTHS[place] // LOOKUPS)).entry is not None

    for name, call in (("ceiling lookup", look), ("lookup by time", look_by_time)):
        for place, depth in enumerate(DEPTHS):
            shallow = measure(lambda call=call: run(call(0)), rounds=5)  # type: ignore[misc]
            timing = measure(lambda call=call, place=place: run(call(place)), rounds=5)  # type: ignore[misc]
            row(
                f"{name} among {depth:,} entries",
                f"{timing.wall_s / LOOKUPS * 1e6:8.0f} µs",
                target="flat",
                ratio=f"{timing.wall_s / shallow.wall_s:.2f} × that among {DEPTHS[0]:,}",
            )


def renewals(run: Run, store: PostgresMetadata) -> None:
    keys = run(topic(store, "renewed", max(RENEWALS), WriteMode.LEASED))
    assert isinstance(keys, list)
    taken = measure(lambda: run(store.acquire_leases(HOLDER, keys, ttl_ms=30_000)), rounds=1, warm_up=0)
    row(f"acquire {len(keys):,} leases", f"{taken.wall_s * 1e3:8.1f} ms")
    for count in RENEWALS:
        held = [HeldLease(key=key, epoch=1) for key in keys[:count]]

        async def renew(held: list[HeldLease] = held) -> None:
            assert all(outcome.renewed for outcome in await store.renew_leases(HOLDER, held, ttl_ms=3_600_000))

        timing = measure(lambda: run(renew()), rounds=5)
        row(f"renew {count:,} leases", f"{timing.wall_s * 1e3:8.1f} ms {timing.wall_s * 1e6 / count:8.1f} µs/p")


def main() -> None:
    with start_postgres(durable=True) as service, asyncio.Runner() as runner:
        dsn = service.create_database()
        store = PostgresMetadata(dsn, randomness=RANDOMNESS)

        def run(work: Awaitable[object]) -> object:
            async def wait() -> object:
                return await work

            return runner.run(wait())

        run(store.open())
        heading(f"Metadata on PostgreSQL {service.version}, fsync on")
        floor = one_row(run, dsn)
        commits(run, store, floor)
        leased_commits(run, store, floor)
        renewals(run, store)
        lookups(run, store, dsn)
        run(store.close())


if __name__ == "__main__":
    main()
