"""A leader in a test: a leased log on a real WAL, SQLite and objects in memory, with time in the test's hands."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

from streamhouse.core import topic_config
from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.formats.shared_blob_v1 import place_slice
from streamhouse.log.flush_policy import FlushPace
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.options import LeasedOptions
from streamhouse.log.leased.partition import PartitionLog, Phase
from streamhouse.log.leased.pending import PendingBatch
from streamhouse.log.leased.plan import FlushRules
from streamhouse.log.leased.recovery import held_by_partition
from streamhouse.log.leased.writing import Append
from streamhouse.log.tail import TailCache
from streamhouse.log.wal.opening import open_wal
from streamhouse.log.wal.options import WalOptions
from streamhouse.log.wal.task_pump import TaskPump
from streamhouse.log.wal.wal import Wal
from streamhouse.metadata.contract import (
    Durability,
    Entry,
    EntryKind,
    Holder,
    Lease,
    MetadataStore,
    NewTopic,
    ScanRange,
    Topic,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.wire.batch import iter_batches, patch, read_header
from streamhouse.wire.records import Record, build_batch, decode_records

TTL_MS = 30_000


class Guard:
    def __init__(self) -> None:
        self.held = True

    def valid(self) -> bool:
        return self.held


def batch(*values: str, producer: tuple[int, int, int] | None = None) -> bytes:
    records = [Record(value=value.encode(), timestamp_ms=1_000 + number) for number, value in enumerate(values)]
    if producer is None:
        return build_batch(records)
    producer_id, epoch, sequence = producer
    return build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def values_in(*runs: bytes | bytearray | memoryview) -> list[tuple[int, str]]:
    return [
        (record.offset, (record.value or b"").decode())
        for run in runs
        for position, _ in iter_batches(run)
        for record in decode_records(run, position)
    ]


class Cluster:
    """What agents share: metadata, objects and time."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.clock = ManualClock()
        self.randomness = SeededRandomness(7)
        self.metadata: MetadataStore = SqliteMetadata(
            ":memory:", clock=self.clock, randomness=self.randomness, threads=False
        )
        self.store = store or MemoryStore(clock=self.clock)

    async def topic(self, name: str = "orders", partitions: int = 1, **configs: str) -> Topic:
        new = NewTopic(
            topic_id=TopicId(self.randomness.uuid()),
            name=name,
            partition_count=partitions,
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        return await self.metadata.create_topic(new)

    async def entries(self, key: PartitionKey) -> list[Entry]:
        (page,) = await self.metadata.scan_entries([ScanRange(key=key, from_offset=0)], limit=1000)
        return list(page.entries)

    async def high_watermark(self, key: PartitionKey) -> int:
        (state,) = await self.metadata.get_partitions([key])
        return state.high_watermark


AT_ONCE = FlushPace(puts_per_second=10_000, longest_wait_ms=0, quiet_ms=0)
"""A batch that a client waits for does not wait for others."""


class Node:
    """One agent process, from opening its WAL to its end."""

    def __init__(self, cluster: Cluster, directory: Path, name: str, wal: Wal, log: LeasedLog) -> None:
        self.cluster = cluster
        self.directory = directory
        self.name = name
        self.wal = wal
        self.log = log
        self.holder = Holder(agent_id=name, incarnation=cluster.randomness.uuid(), wal_id=wal.wal_id)
        self.dropped: list[tuple[PartitionKey, str]] = []
        self.alarms: list[str] = []
        self.guards: defaultdict[PartitionKey, Guard] = defaultdict(Guard)

    @classmethod
    async def start(
        cls,
        cluster: Cluster,
        directory: Path,
        *,
        name: str = "agent-1",
        durability: Durability = Durability.OBJECT,
        metadata: MetadataStore | None = None,
        store: ObjectStore | None = None,
        segment_max_bytes: int = 4096,
        max_buffer_bytes: int = 1 << 20,
        producer_expiration_ms: int | None = None,
        resume_after_ms: int = 30_000,
        pace: FlushPace = AT_ONCE,
        wal_bytes: int = 1 << 20,
    ) -> Node:
        wal, recovered = await open_wal(
            directory,
            clock=cluster.clock,
            randomness=cluster.randomness,
            options=WalOptions(file_bytes=1 << 16, max_bytes=wal_bytes),
            pump=TaskPump(),
        )
        node: Node
        log = LeasedLog(
            metadata=metadata or cluster.metadata,
            store=store or cluster.store,
            wal=wal,
            tail=TailCache(1 << 20),
            clock=cluster.clock,
            randomness=cluster.randomness,
            options=LeasedOptions(
                durability=durability,
                rules=FlushRules(
                    segment_max_bytes=segment_max_bytes,
                    segment_max_age_ms=60_000,
                    flush_interval_ms=0,
                    pace=None if durability is Durability.WAL else pace,
                ),
                max_buffer_bytes=max_buffer_bytes,
                producer_expiration_ms=producer_expiration_ms,
                resume_after_ms=resume_after_ms,
            ),
            on_dropped=lambda key, reason: node.dropped.append((key, reason)),
            on_alarm=lambda words: node.alarms.append(words),
        )
        node = cls(cluster, directory, name, wal, log)
        for key, frames in held_by_partition(recovered.frames()).items():
            log.hold_frames(key, frames)
        log.start()
        return node

    async def lead(self, topic: Topic, partition: int = 0, *, ttl_ms: int = TTL_MS) -> Lease:
        key = PartitionKey(topic.topic_id, partition)
        lease = await self.cluster.metadata.acquire_partition_lease(key, self.holder, ttl_ms=ttl_ms)
        self.guards[key] = Guard()
        await self.log.open_partition(lease, topic, guard=self.guards[key])
        return lease

    async def stop(self) -> None:
        await self.log.close()
        await self.wal.close()

    async def crash(self) -> None:
        """Die as kill -9 does: what the WAL had not been told to sync may be there or not; nothing else is written."""
        await self.log._flusher.close()
        pump = self.wal._pump
        assert isinstance(pump, TaskPump)
        pump.kill()
        if pump.task is not None:
            await asyncio.gather(pump.task, return_exceptions=True)
        self.wal._release()


class Stage(AsyncExitStack):
    """Opens the cluster's metadata and stops every node that was not stopped."""

    def __init__(self, tmp_path: Path, store: ObjectStore | None = None) -> None:
        super().__init__()
        self.cluster = Cluster(store)
        self._tmp_path = tmp_path

    async def __aenter__(self) -> Stage:
        await super().__aenter__()
        await self.enter_async_context(self.cluster.metadata)
        return self

    async def node(self, name: str = "agent-1", **options: object) -> Node:
        node = await Node.start(self.cluster, self._tmp_path / name, name=name, **options)  # type: ignore[arg-type]
        self.push_async_callback(node.log.close)
        return node


async def settle(turns: int = 50) -> None:
    """Let every task that can run, run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def acked(*appends: Append) -> None:
    async with asyncio.timeout(5):
        await asyncio.gather(*(append.done for append in appends))


async def stored(cluster: Cluster, key: PartitionKey) -> list[tuple[int, str]]:
    """Every record of the log, read from the objects that its entries name."""
    found: list[tuple[int, str]] = []
    for entry in await cluster.entries(key):
        data = await cluster.store.get_range(entry.object_key, entry.byte_offset, entry.byte_length)
        if entry.kind is EntryKind.SEGMENT:
            found += values_in(*read_segment(data).runs())
        else:
            buffer = bytearray(data)
            place_slice(
                buffer,
                byte_length=entry.byte_length,
                record_count=entry.record_count,
                base_offset=entry.base_offset,
                leader_epoch=entry.epoch,
            )
            found += values_in(buffer)
    return found


class Wrapper:
    """Passes everything on; a test's own class changes what it needs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def values_of(stage: Stage, key: PartitionKey) -> list[str]:
    return [value for _, value in await stored(stage.cluster, key)]


async def left_behind(stage: Stage, topic: Topic, values: Sequence[str]) -> None:
    """agent-1 acknowledges these on every partition from its WAL alone and dies; agent-2 leads for a while."""
    down = FaultyStore(
        stage.cluster.store, plan=ScriptedFaults([StoreFault.UNAVAILABLE] * 10_000), randomness=SeededRandomness(1)
    )
    node, other = await stage.node("agent-1", store=down), await stage.node("agent-2")
    for key in topic.partition_keys():
        await node.lead(topic, key.partition)
        await acked(*(node.log.append(key, batch(value), acks=1) for value in values))
    await node.crash()
    stage.cluster.clock.advance(40_000)
    for key in topic.partition_keys():
        await other.lead(topic, key.partition)
        await acked(other.log.append(key, batch("theirs"), acks=-1))
    stage.cluster.clock.advance(40_000)


class Gate(Wrapper):
    """A store whose puts wait until it is opened; counts them, and how full the write buffer was."""

    def __init__(self, inner: ObjectStore, *, is_open: bool = True) -> None:
        super().__init__(inner)
        self.puts = 0
        self.buffered: list[int] = []
        self.node: Node | None = None
        self.open = asyncio.Event()
        if is_open:
            self.open.set()

    async def put(self, *arguments: Any, **options: Any) -> Any:
        self.puts += 1
        if self.node is not None:
            self.buffered.append(self.node.log.buffer_bytes)
        await self.open.wait()
        return await self.inner.put(*arguments, **options)


async def set_horizon(cluster: Cluster, horizon_ms: int) -> None:
    """As if it had been raised before the store's clock was set back."""
    assert isinstance(cluster.metadata, SqliteMetadata)
    await cluster.metadata._write(lambda tx: tx.run("UPDATE partitions SET gc_horizon_ms = ?", (horizon_ms,)))


# The parts of a leader without a leader.


TOPIC = TopicId(UUID("0fe1d2c3-b4a5-4687-8978-6a5b4c3d2e1f"))


def a_partition(
    number: int = 0, *, high_watermark: int = 0, visible_when_synced: bool = False, epoch: int = 3
) -> PartitionLog:
    """A partition that is open."""
    partition = PartitionLog(
        key=PartitionKey(TOPIC, number),
        topic="orders",
        config=topic_config.effective({}),
        epoch=epoch,
        high_watermark=high_watermark,
        guard=Guard(),
        visible_when_synced=visible_when_synced,
    )
    partition.phase = Phase.OPEN
    return partition


def pending(
    data: bytes, *, at: int = 0, lsn: int = 1, waits_for_commit: bool = False, done: asyncio.Future[None] | None = None
) -> PendingBatch:
    """A batch that has its offsets, from ``at`` on."""
    placed = bytearray(data)
    patch(placed, 0, base_offset=at, leader_epoch=3)
    header = read_header(placed)
    return PendingBatch(
        base_offset=at,
        next_offset=at + header.record_count,
        data=placed,
        header=header,
        lsn=lsn,
        acks=-1 if waits_for_commit else 1,
        appended_ms=0,
        timestamp_ms=0,
        waits_for_commit=waits_for_commit,
        done=done,
    )


def take(partition: PartitionLog, *values: str, waits_for_commit: bool = False) -> PendingBatch:
    """Append one batch, for which a client waits."""
    taken = pending(
        batch(*values),
        at=partition.next_offset,
        waits_for_commit=waits_for_commit,
        done=asyncio.get_running_loop().create_future(),
    )
    partition.take(taken)
    return taken
