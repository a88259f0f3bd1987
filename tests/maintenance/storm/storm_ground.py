"""A log that gives every machine of maintenance something to do, its machines, and what must be true of it at any time.

    orders    two partitions, their slices in blobs that all topics share, and a segment: to be compacted. The second
              has a pending compaction that a process left behind
    trimmed   a partition with retention.bytes: most of its entries are due
    earlier   was compacted and trimmed before: its old objects are dereferenced
    dropped   is deleted; its entries are still there

Beside them lie orphans of every kind. The functions here run in child processes (storm_processes.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from compaction_faults import Died, MeddledMetadata, SteppedStore, killed
from storm_place import Stores, StormPlace

from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.randomness import SeededRandomness, SystemRandomness
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.formats.shared_blob_v1_writer import BlobWriter
from streamhouse.log.leased.pending import run_of
from streamhouse.log.offload import InlineOffload
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.vacuum import deletion, vacuum
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.maintenance.verify import Finding, Verifier
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    EntryKind,
    Holder,
    LeasedSlice,
    NewTopic,
    ObjectRef,
    ScanRange,
    Topic,
    Verdict,
)
from streamhouse.metadata.rows import compactions
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import CompactedKey, ProbeKey, SegmentKey, SharedBlobKey, StagingKey
from streamhouse.wire.batch import iter_batches, read_header
from streamhouse.wire.records import Record, build_batch

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
TTL_MS: Final = 30_000
AT_ONCE: Final = CompactionRules(
    target_object_bytes=1 << 20, max_object_bytes=2 << 20, large_entry_bytes=1 << 20, min_entries=2, max_age_ms=0
)
"""Whatever can be compacted is worth it."""
VACUUM: Final = VacuumOptions(writer_grace_ms=30 * MINUTE_MS, reader_grace_ms=5 * MINUTE_MS, purge_rows=3, pause_ms=0)
"""The shortest graces that are allowed."""


# Writing.


class Leader:
    """Leads partitions under one name and commits objects by hand, as an agent does it."""

    def __init__(self, stores: Stores, agent_id: str) -> None:
        self.stores = stores
        self.randomness = SystemRandomness()
        self.holder = Holder(agent_id=agent_id, incarnation=self.randomness.uuid(), wal_id=self.randomness.uuid())
        self.epochs: dict[PartitionKey, int] = {}
        self.next_offsets: dict[PartitionKey, int] = {}

    async def topic(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        new = NewTopic(
            topic_id=self.randomness.uuid(),  # type: ignore[arg-type]
            name=name,
            partition_count=partitions,
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        topic = await self.stores.metadata.create_topic(new)
        await self.lead(topic)
        return topic

    async def lead(self, topic: Topic) -> None:
        for key in topic.partition_keys():
            lease = await self.stores.metadata.acquire_partition_lease(key, self.holder, ttl_ms=TTL_MS)
            self.epochs[key], self.next_offsets[key] = lease.epoch, lease.high_watermark

    async def upload_blob(self, parts: dict[PartitionKey, list[str]]) -> list[LeasedSlice]:
        """One object with a batch of these values for each partition. Returns what is to be committed."""
        now_ms = await self.stores.metadata.now_ms()
        writer = BlobWriter(created_at_ms=now_ms)
        for key, values in parts.items():
            made = build_batch([Record(value=value.encode(), timestamp_ms=now_ms) for value in values])
            writer.add("storm", key).append(made, read_header(made))
        blob = writer.finish()
        name = SharedBlobKey(created_ms=now_ms, object_id=self.randomness.uuid())
        ref = ObjectRef(key=str(name), size_bytes=blob.size, created_at_ms=now_ms)
        await self.stores.objects.put(ref.key, blob.buffers)
        return [
            LeasedSlice(
                key=piece.key,
                epoch=self.epochs[piece.key],
                base_offset=self.next_offsets[piece.key],
                kind=EntryKind.WAL,
                object=ref,
                byte_offset=piece.byte_offset,
                byte_length=piece.byte_length,
                encoding=KAFKA_BATCHES,
                batches=tuple(run_of(header) for header in piece.batches),
            )
            for piece in blob.slices
        ]

    async def upload_segment(self, key: PartitionKey, values: Sequence[str]) -> list[LeasedSlice]:
        now_ms, base, epoch = await self.stores.metadata.now_ms(), self.next_offsets[key], self.epochs[key]
        records = [Record(value=value.encode(), timestamp_ms=now_ms) for value in values]
        made = build_batch(records, base_offset=base, leader_epoch=epoch)
        segment = write_segment([(made, read_header(made))], key=key)
        name = SegmentKey(log=key, base_offset=base, epoch=epoch, created_ms=now_ms, object_id=self.randomness.uuid())
        ref = ObjectRef(key=str(name), size_bytes=segment.size, created_at_ms=now_ms)
        await self.stores.objects.put(ref.key, segment.buffers)
        return [
            LeasedSlice(
                key=key,
                epoch=epoch,
                base_offset=base,
                kind=EntryKind.SEGMENT,
                object=ref,
                byte_offset=0,
                byte_length=segment.size,
                encoding=SEGMENT_V1,
                batches=(run_of(read_header(made)),),
            )
        ]

    async def write(self, slices: Sequence[LeasedSlice]) -> None:
        """Commit, which must succeed."""
        verdicts = await self.commit(slices)
        assert set(verdicts) == {Verdict.COMMITTED}, verdicts

    async def commit(self, slices: Sequence[LeasedSlice]) -> list[Verdict]:
        append_id = AppendId(self.randomness.uuid())
        outcomes = await self.stores.metadata.commit_leased(append_id, list(slices))
        for piece, outcome in zip(slices, outcomes, strict=True):
            if outcome.verdict is Verdict.COMMITTED:
                self.next_offsets[piece.key] = outcome.end_offset + 1
        return [outcome.verdict for outcome in outcomes]


# The log of the kills after every step.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was written, and how to come back to it."""

    batches: dict[PartitionKey, list[bytes]]
    """Every batch of each partition at its place, in order."""
    starts: dict[PartitionKey, tuple[int, int]]
    """The log start that stands, and the one that retention moves it to."""
    objects: dict[str, bytes]
    shift_ms: int


async def prepare(place: StormPlace) -> Prepared:
    async with place.opened() as stores:
        await place.install_clock()
        leader = Leader(stores, "agent-1")
        orders = await leader.topic("orders", 2)
        trimmed = await leader.topic("trimmed", retention_bytes="300", retention_ms="-1")
        earlier = await leader.topic("earlier", retention_bytes="900", retention_ms="-1")
        dropped = await leader.topic("dropped")
        keys = [key for topic in (orders, trimmed, earlier, dropped) for key in topic.partition_keys()]
        for number in range(6):
            blob = {key: [f"{key.partition} {number} {each} " + "x" * 80 for each in range(3)] for key in keys}
            await leader.write(await leader.upload_blob(blob))
        await place.let_pass(MINUTE_MS)
        await _leave_pending(stores, orders.partition_keys()[1])
        for key in keys:
            for number in range(2):
                await leader.write(await leader.upload_segment(key, [f"segment {number}"] * 2))
        await place.let_pass(MINUTE_MS)
        batches = {key: await _batches(stores, key) for key in keys if key.topic_id != dropped.topic_id}
        (old,) = earlier.partition_keys()
        await _compactor(stores, "before").compact_once([old])
        await stores.metadata.advance_log_start(old, 7)  # in the middle of what is one entry now
        await stores.metadata.delete_topic(dropped.topic_id)
        await _leave_orphans(stores, leader, orders.partition_keys()[0])
        starts = {key: await _retention_moves(stores, key) for key in batches}
        await place.let_pass(HOUR_MS)
        objects = {info.key: bytes(await stores.objects.get(info.key)) async for info in stores.objects.list()}
    await place.keep_rows()
    return Prepared(batches=batches, starts=starts, objects=objects, shift_ms=place.clock.shift_ms)


async def _batches(stores: Stores, key: PartitionKey) -> list[bytes]:
    """As a reader sees them before any maintenance."""
    found = await read_log(stores, key, 0)
    return [bytes(found[at : at + header.size]) for at, header in iter_batches(found)]


async def _leave_pending(stores: Stores, key: PartitionKey) -> None:
    """A compaction that was begun and not applied, by a process that is gone."""

    async def die() -> None:
        raise Died

    dying = MeddledMetadata(stores.metadata, "apply_compaction", die)
    with killed():
        await _compactor(replace(stores, metadata=dying), "gone").compact_once([key])  # type: ignore[arg-type]
    pending = await stores.metadata.list_compactions()
    assert [compaction.key for compaction in pending] == [key]


async def _leave_orphans(stores: Stores, leader: Leader, key: PartitionKey) -> None:
    await leader.upload_blob({key: ["never committed"]})
    await leader.upload_segment(key, ["never committed"])
    now_ms, object_id = await stores.metadata.now_ms(), leader.randomness.uuid()
    target = CompactedKey(log=key, base_offset=0, end_offset=1, created_ms=now_ms, object_id=object_id)
    for name in (
        target,
        StagingKey(created_ms=now_ms, object_id=object_id),
        ProbeKey(created_ms=now_ms, object_id=object_id),
    ):
        await stores.objects.put(str(name), b"never named")


async def _retention_moves(stores: Stores, key: PartitionKey) -> tuple[int, int]:
    (state,) = await stores.metadata.get_partitions([key])
    retention = Retention(metadata=stores.metadata)
    async for step in retention.steps(plan_only=True, wanted=lambda topic, at: PartitionKey(topic.topic_id, at) == key):
        if step.item is not None and step.item.moves:
            return state.log_start_offset, step.item.new_log_start_offset
    return state.log_start_offset, state.log_start_offset


# The machines.


async def compaction_machine(stores: Stores, owner: str) -> None:
    """Of all but the topic whose entries are due: in one large entry with others, they would not be."""
    topics = [topic for topic in await stores.metadata.list_topics() if topic.name != "trimmed"]
    keys = [key for topic in topics for key in topic.partition_keys()]
    result = await _compactor(stores, owner).compact_once(keys)
    assert not result.failures, result.failures


async def retention_machine(stores: Stores, owner: str) -> None:
    summary = await Retention(metadata=stores.metadata).run()
    assert not summary.failed, summary.failures


async def vacuum_machine(stores: Stores, owner: str) -> None:
    summary = await Vacuum(metadata=stores.metadata, objects=stores.objects, options=VACUUM).run()
    assert not summary.failed, summary


Machine = Callable[[Stores, str], Awaitable[None]]
MACHINES: Final[dict[str, Machine]] = {
    "compaction": compaction_machine,
    "retention": retention_machine,
    "vacuum": vacuum_machine,
}


def _compactor(stores: Stores, owner: str) -> Compactor:
    return Compactor(
        metadata=stores.metadata,
        store=stores.objects,
        offload=InlineOffload(),
        clock=stores.clock,
        randomness=SeededRandomness(hash_of(owner)),
        owner=owner,
        options=CompactorOptions(rules=AT_ONCE),
    )


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "big")


def work_in_small_steps() -> None:
    """Pages and chunks of a few rows, so that a small log takes every loop of the machines several times."""
    for module, name, rows in (
        (compactions, "DROP_CHUNK_ENTRIES", 2),
        (vacuum, "OBJECTS_PER_PAGE", 4),
        (vacuum, "RECORDS_PER_BATCH", 3),
        (deletion, "KEYS_PER_REQUEST", 2),
    ):
        assert hasattr(module, name)
        setattr(module, name, rows)


# The victim, which is killed after a step.


class Steps:
    """Counts the calls to both stores that have returned. After the last one, the process is killed with signal 9."""

    def __init__(self, last: int | None) -> None:
        self.names: list[str] = []
        self._last = last

    def returned(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


class CountedMetadata:
    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps
        drop_chunk = inner._drop_chunk

        async def counted(*arguments: Any) -> Any:
            answer = await drop_chunk(*arguments)
            steps.returned("drop a chunk")
            return answer

        inner._drop_chunk = counted  # each is a transaction of its own within advance_log_start

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*arguments: Any, **named: Any) -> Any:
            answer = await method(*arguments, **named)
            self._steps.returned(name)
            return answer

        return call


class CountedStore(SteppedStore):
    def __init__(self, inner: ObjectStore, steps: Steps) -> None:
        super().__init__(inner)
        self._steps = steps

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        self._steps.returned(name)
        return answer


async def run_victim(place: StormPlace, prepared: Prepared, machine: str, last: int | None) -> list[str]:
    """Bring the prepared state back and run one pass, which is killed after its step ``last``. Returns the steps."""
    work_in_small_steps()
    await place.restore_rows(shift_ms=prepared.shift_ms)
    objects = await place.new_objects()
    there = {info.key async for info in objects.list()}
    await objects.delete(sorted(there - prepared.objects.keys()))
    for key in prepared.objects.keys() - there:
        await objects.put(key, prepared.objects[key])
    await objects.close()
    steps = Steps(last)
    async with place.opened() as stores:
        counted = Stores(
            metadata=CountedMetadata(stores.metadata, steps),  # type: ignore[arg-type]
            objects=CountedStore(stores.objects, steps),
            clock=stores.clock,
        )
        await MACHINES[machine](counted, "victim")
    return steps.names


async def run_survivor(place: StormPlace, prepared: Prepared) -> list[str]:
    """What another process finds wrong: at once, and after it has run all machines to their end."""
    work_in_small_steps()
    async with place.opened() as stores:
        problems = await _differences(stores, prepared, finished=False)
        await place.let_pass(2 * MINUTE_MS)  # the victim's claims expire
        for _ in range(2):
            await compaction_machine(stores, "survivor")
        await retention_machine(stores, "survivor")
        for _ in range(2):  # what a deleted topic had goes after a grace that begins with the purge
            await place.let_pass(HOUR_MS)
            await vacuum_machine(stores, "survivor")
        problems += await _differences(stores, prepared, finished=True)
        problems += await what_is_inexact(place, stores)
        pending = await stores.metadata.list_compactions()
        problems += [f"still pending: {compaction}" for compaction in pending]
    return problems


async def _differences(stores: Stores, prepared: Prepared, *, finished: bool) -> list[str]:
    problems = []
    for key, batches in prepared.batches.items():
        (state,) = await stores.metadata.get_partitions([key])
        start, before_and_after = state.log_start_offset, prepared.starts[key]
        if start not in (before_and_after[1:] if finished else before_and_after):
            problems.append(f"{key}: the log starts at {start}, not at {before_and_after}")
        expected = b"".join(batch for batch in batches if read_header(batch).next_offset > start)
        if await read_log(stores, key, start) != expected:
            problems.append(f"{key}: a consumer does not read what was written, from {start} on")
    return problems


# Looking.


async def read_log(stores: Stores, key: PartitionKey, offset: int) -> bytes:
    """The log from ``offset`` to its end, as a consumer gets it from a reader of its own."""
    reader = LogReader(
        metadata=stores.metadata,
        store=stores.objects,
        tail=TailCache(1 << 20),
        leading=None,
        clock=stores.clock,
        options=ReaderOptions(read_ahead_bytes=0),
    )
    found = bytearray()
    try:
        while True:
            result = await reader.read(key, offset, max_bytes=1 << 20)
            if result.next_offset == offset:
                return bytes(found)
            for batch in result.batches:
                found += batch
            offset = result.next_offset
    finally:
        await reader.close()


async def referenced(stores: Stores) -> set[str]:
    """What the entries of all topics name."""
    found: set[str] = set()
    for topic in await stores.metadata.list_topics():
        for key in topic.partition_keys():
            offset, more = 0, True
            while more:
                (page,) = await stores.metadata.scan_entries([ScanRange(key=key, from_offset=offset)], limit=1_000)
                found.update(entry.object_key for entry in page.entries)
                more = page.more
                offset = page.entries[-1].end_offset + 1 if page.entries else offset
    return found


async def what_is_inexact(place: StormPlace, stores: Stores) -> list[str]:
    """After the last vacuum: what verify finds, and where bucket, rows of objects and references differ."""
    findings: list[Finding] = []
    verifier = Verifier(
        metadata=stores.metadata,
        store=stores.objects,
        randomness=SystemRandomness(),
        tell=lambda item: findings.append(item) if isinstance(item, Finding) else None,
    )
    await verifier.run()
    wanted = await referenced(stores)
    bucket = {info.key async for info in stores.objects.list()}
    rows = await place.object_rows()
    return [
        *map(str, findings),
        *(f"lost: {key} is referenced and not in the bucket" for key in sorted(wanted - bucket)),
        *(f"left: {key} is in the bucket and not referenced" for key in sorted(bucket - wanted)),
        *(f"the row of {key} has no entry" for key in sorted(rows - wanted)),
        *(f"{key} has entries and no row" for key in sorted(wanted - rows)),
    ]
