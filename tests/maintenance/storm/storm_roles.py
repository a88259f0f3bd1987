"""The processes of a storm: each works until it is killed, and writes down what it finds wrong.

What a role must never see goes into ``problems``; what it has done goes into a tally, by which the story knows that it
was about something. Errors that are allowed end a pass, not the process.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from node import AT_ONCE as FLUSH_AT_ONCE
from node import Node
from storm_ground import (
    MINUTE_MS,
    VACUUM,
    Leader,
    compaction_machine,
    hash_of,
    read_log,
    retention_machine,
    vacuum_machine,
    what_is_inexact,
    work_in_small_steps,
)
from storm_history import History, Promises, judge
from storm_place import Stores, StormPlace

from simulator.rawbytes import Unreadable
from streamhouse.core.errors import (
    DamagedObject,
    OffsetOutOfRange,
    PartitionNotFound,
    StreamHouseError,
    TopicNotFound,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.formats.shared_blob_v1 import place_slice
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.maintenance.verify import Finding, Verifier
from streamhouse.metadata.contract import Entry, EntryKind, ScanRange, Topic, Verdict
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.records import Record, build_batch, decode_records

KEPT: Final = "kept"
"""A topic from which nothing is ever deleted."""
TRIMMED: Final = "limited"
"""A topic with retention.bytes."""
STALLED: Final = "stalled"
"""The name of the stalled writer's topics begins with this."""
RETENTION_BYTES: Final = 4_000
COMPACTION: Final = CompactionRules(
    target_object_bytes=1 << 20,
    max_object_bytes=2 << 20,
    large_entry_bytes=1 << 20,
    min_entries=4,
    max_age_ms=MINUTE_MS,
)
_PIN_MS: Final = 100 * MINUTE_MS
"""A pinned reader's. It is released after each read; that of a killed one ends when this much time was let pass. The
horizon stays behind it for so long."""
_STALL_S: Final = 5.0
"""The longest stall: the writer goes on then even if no vacuum has come by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a role is given."""

    place: StormPlace
    seed: int

    @property
    def histories(self) -> Path:
        return self.place.directory / "histories"

    def problem(self, text: str) -> None:
        self._append("problems", text)

    def did(self, what: str, count: int = 1) -> None:
        if count:
            self._append("tally", f"{what}\t{count}")

    def problems(self) -> list[str]:
        return self._lines("problems")

    def tally(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for line in self._lines("tally"):
            what, _, count = line.partition("\t")
            found[what] += int(count or 0)
        return found

    def _append(self, name: str, line: str) -> None:
        with (self.place.directory / name).open("a") as file:
            file.write(line.replace("\n", " | ") + "\n")

    def _lines(self, name: str) -> list[str]:
        path = self.place.directory / name
        return path.read_text().splitlines() if path.exists() else []


async def live(scene: Scene, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """One life of a role. The platform's own errors may end it: it starts again, as a service does. No others may."""
    try:
        await work(scene, *arguments)
    except StreamHouseError as error:
        scene.did(f"ended by {type(error).__name__}")
        raise
    except Exception as error:
        scene.problem(f"{work.__name__}: {''.join(traceback.format_exception(error))}")
        raise


async def set_the_scene(scene: Scene) -> None:
    async with scene.place.opened() as stores:
        await scene.place.install_clock()
        leader = Leader(stores, "writer")
        await leader.topic(KEPT, 2, retention_ms="-1")
        await leader.topic(TRIMMED, 2, retention_ms="-1", retention_bytes=str(RETENTION_BYTES))


# Maintenance.


async def compact(scene: Scene, name: str, life: int) -> None:
    """In every other life under a name that all compactors share, so that no claim keeps them apart: safety must not
    depend on claims (S2.13)."""
    work_in_small_steps()
    async with scene.place.opened() as stores:
        compactor = Compactor(
            metadata=stores.metadata,
            store=stores.objects,
            offload=InlineOffload(),
            clock=stores.clock,
            randomness=SystemRandomness(),
            owner="every compactor" if life % 2 else f"{name}-{life}",
            options=CompactorOptions(rules=COMPACTION, claim_ttl_ms=1_000),
        )
        while True:
            keys = [key for topic in await stores.metadata.list_topics() for key in topic.partition_keys()]
            result = await compactor.compact_once(keys)
            scene.did("compactions", result.stats.runs)
            scene.did("recovered compactions", result.stats.recovered)
            scene.did("compactions refused", result.stats.conflicts)
            for failure in result.failures:
                if isinstance(failure.error, DamagedObject):
                    scene.problem(f"{name}: {failure.key}: {failure.error}")
                scene.did(f"compaction failed: {type(failure.error).__name__}")
            await asyncio.sleep(0.05)


async def clean(scene: Scene, life: int) -> None:
    work_in_small_steps()
    async with scene.place.opened() as stores:
        while True:
            summary = await Vacuum(metadata=stores.metadata, objects=stores.objects, options=VACUUM).run()
            scene.did("vacuums")
            scene.did("objects deleted", summary.total.objects)
            scene.did("entries purged", summary.entries_purged)
            scene.did("deletes failed", summary.failed)
            await asyncio.sleep(0.05)


async def retain(scene: Scene, life: int) -> None:
    work_in_small_steps()
    async with scene.place.opened() as stores:
        retention = Retention(metadata=stores.metadata)
        while True:
            summary = await retention.run()
            scene.did("log starts moved", summary.moved)
            for failure in summary.failures:
                scene.problem(f"retention: {failure}")
            await asyncio.sleep(0.1)


async def verify(scene: Scene, life: int) -> None:
    async with scene.place.opened() as stores:
        while True:
            verifier = Verifier(
                metadata=stores.metadata,
                store=stores.objects,
                randomness=SystemRandomness(),
                tell=lambda item: scene.problem(f"verify: {item}") if isinstance(item, Finding) else None,
            )
            await verifier.run()
            scene.did("verifications")
            await asyncio.sleep(0.1)


# Writers.


class _Cluster:
    """What ``Node`` wants to know of its cluster."""

    def __init__(self, stores: Stores) -> None:
        self.metadata = stores.metadata
        self.store = stores.objects
        self.clock = stores.clock
        self.randomness = SystemRandomness()


async def write(scene: Scene, life: int) -> None:
    """A leader with a WAL, through the real LeasedLog: each append is written down before and after its answer."""
    rng = random.Random(hash_of(f"{scene.seed} writer {life}"))
    history = History(scene.histories, f"writer.{life}")
    async with scene.place.opened() as stores:
        cluster: Any = _Cluster(stores)
        node = await Node.start(cluster, scene.place.directory / "wal", name="writer", pace=FLUSH_AT_ONCE)
        keys: list[PartitionKey] = []
        for name in (KEPT, TRIMMED):
            topic = await stores.metadata.get_topic(name)
            for key in topic.partition_keys():
                await node.lead(topic, key.partition)
                keys.append(key)
        while True:
            some = rng.sample(keys, rng.randint(1, len(keys)))  # they share an object
            await asyncio.gather(*(_append(scene, history, node, key, rng.randint(1, 5)) for key in some))
            await asyncio.sleep(rng.uniform(0, 0.06))


async def _append(scene: Scene, history: History, node: Node, key: PartitionKey, count: int) -> None:
    values = history.send(count)
    append = node.log.append(
        key, build_batch([Record(value=value.encode(), timestamp_ms=1) for value in values]), acks=-1
    )
    await append.done
    history.acknowledged(key, append.base_offset, values)
    scene.did("appends")


async def stall(scene: Scene, life: int) -> None:
    """A writer that uploads, stalls until a vacuum has raised the horizon above its object, and commits: it must be
    refused, and uploads again. Its topic is deleted now and then, and another takes its place."""
    rng = random.Random(hash_of(f"{scene.seed} staller {life}"))
    history = History(scene.histories, f"staller.{life}")
    async with scene.place.opened() as stores:
        leader = Leader(stores, "staller")
        topic = await _own_topic(scene, stores, leader, life, rng)
        while True:
            if rng.random() < 0.3:
                await _stall_with_a_pin(scene, stores, leader, topic, history)
            values = {key: history.send(rng.randint(1, 4)) for key in topic.partition_keys()}
            offsets = {key: leader.next_offsets[key] for key in values}
            slices = await leader.upload_blob(values)
            must_fail = False
            if rng.random() < 0.7:
                must_fail = await _wait_for_the_horizon(stores, topic, slices[0].object.created_at_ms)
            verdicts = await leader.commit(slices)
            if must_fail:
                scene.did("stalled commits")
                if set(verdicts) != {Verdict.STALE_OBJECT}:
                    scene.problem(f"an object below the horizon was committed: {verdicts}")
            while set(verdicts) == {Verdict.STALE_OBJECT}:
                scene.did("stale objects")
                verdicts = await leader.commit(await leader.upload_blob(values))
            if set(verdicts) != {Verdict.COMMITTED}:
                scene.did("torn commits")  # one partition was stale, the other not: a new life finds where each goes on
                return
            for key, sent in values.items():
                history.acknowledged(key, offsets[key], sent)
            if rng.random() < 0.3:
                await leader.upload_blob({topic.partition_keys()[0]: ["never committed"]})


async def _stall_with_a_pin(scene: Scene, stores: Stores, leader: Leader, topic: Topic, history: History) -> None:
    """A writer that pins before it uploads may take as long as the pin lives."""
    pin_id = leader.randomness.uuid()
    await stores.metadata.create_pin(pin_id, owner="staller", ttl_ms=_PIN_MS)
    values = {key: history.send(2) for key in topic.partition_keys()}
    offsets = {key: leader.next_offsets[key] for key in values}
    slices = await leader.upload_blob(values)
    await asyncio.sleep(2.5)
    verdicts = await leader.commit(slices)
    if Verdict.STALE_OBJECT in verdicts and pin_id in await stores.metadata.renew_pins([pin_id], ttl_ms=_PIN_MS):
        scene.problem(f"an object that was uploaded under a live pin was refused: {verdicts}")
    await stores.metadata.release_pins([pin_id])
    if set(verdicts) == {Verdict.COMMITTED}:
        scene.did("stalled commits with a pin")
        for key, sent in values.items():
            history.acknowledged(key, offsets[key], sent)


async def _own_topic(scene: Scene, stores: Stores, leader: Leader, life: int, rng: random.Random) -> Topic:
    old = [topic for topic in await stores.metadata.list_topics() if topic.name.startswith(STALLED)]
    if old and rng.random() < 0.5:
        await leader.lead(old[-1])
        return old[-1]
    for topic in old:
        await stores.metadata.delete_topic(topic.topic_id)
        scene.did("topics deleted")
    return await leader.topic(f"{STALLED}-{life}", 2, retention_ms="-1")


async def _wait_for_the_horizon(stores: Stores, topic: Topic, created_ms: int) -> bool:
    """True once every partition's horizon is above the object's stamp."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_STALL_S):
            while True:
                states = await stores.metadata.get_partitions(topic.partition_keys())
                if all(state.gc_horizon_ms > created_ms for state in states):
                    return True
                await asyncio.sleep(0.05)
    return False


# Readers.


async def consume(scene: Scene, life: int) -> None:
    """Reads logs from their start to their end, through a LogReader of its own and without a pin."""
    rng = random.Random(hash_of(f"{scene.seed} reader {life}"))
    async with scene.place.opened() as stores:
        while True:
            promises = Promises.read(scene.histories)
            for key in await _some_keys(stores, rng):
                with suppress(PartitionNotFound, TopicNotFound):  # the stalled writer's topic was deleted
                    await _consume(scene, stores, key, promises, rng)
            await asyncio.sleep(0.02)


async def _consume(scene: Scene, stores: Stores, key: PartitionKey, promises: Promises, rng: random.Random) -> None:
    states = await stores.metadata.get_partitions([key])
    if not states:
        return
    begin, watermark = states[0].log_start_offset, states[0].high_watermark
    if rng.random() < 0.5:
        begin = rng.randint(begin, watermark)
    try:
        log = await read_log(stores, key, begin)
    except OffsetOutOfRange as error:
        for state in await stores.metadata.get_partitions([key]):
            if state.log_start_offset <= begin:
                scene.problem(f"reader: {key} begins at {state.log_start_offset}, and offset {begin} gets: {error}")
        scene.did("reads overtaken by retention")
        return
    except PartitionNotFound:
        raise
    except StreamHouseError as error:
        scene.problem(f"reader: {key} from {begin}: {type(error).__name__}: {error}")
        return
    _judge(scene, "reader", key, log, promises, begin, watermark)
    scene.did("logs read")


def _judge(
    scene: Scene, who: str, key: PartitionKey, log: bytes, promises: Promises, begin: int, watermark: int
) -> None:
    records = [record for record in _records(log) if record[0] >= begin]
    found = judge(records, promises.acknowledged.get(str(key), {}), begins_at=begin)
    for problem in found[:5]:
        scene.problem(f"{who}: {key} from {begin}: {problem}")
    end = records[-1][0] + 1 if records else begin
    if end < watermark:
        scene.problem(f"{who}: {key}: the log was read to {end}, its end was {watermark}")


async def consume_pinned(scene: Scene, life: int) -> None:
    """Pins, lists entries, stalls, and reads the objects that it has listed: each must be there while the pin is."""
    rng = random.Random(hash_of(f"{scene.seed} pinned reader {life}"))
    async with scene.place.opened() as stores:
        while True:
            promises = Promises.read(scene.histories)
            pin_id = SystemRandomness().uuid()
            await stores.metadata.create_pin(pin_id, owner=f"reader-{life}", ttl_ms=_PIN_MS)
            for key in await _some_keys(stores, rng):
                await _read_listed(scene, stores, key, promises, rng, pin_id)
            await stores.metadata.release_pins([pin_id])
            await asyncio.sleep(rng.choice([0, 2]))  # without its pin, vacuum may go further


async def consume_listed(scene: Scene, life: int) -> None:
    """Lists entries without a pin and reads their objects: each must be there for the grace of readers (R7)."""
    rng = random.Random(hash_of(f"{scene.seed} listing reader {life}"))
    async with scene.place.opened() as stores:
        while True:
            promises = Promises.read(scene.histories)
            for key in await _some_keys(stores, rng):
                await _read_listed(scene, stores, key, promises, rng, None)


async def _read_listed(
    scene: Scene, stores: Stores, key: PartitionKey, promises: Promises, rng: random.Random, pin_id: UUID | None
) -> None:
    listed_at_ms = await stores.metadata.now_ms()
    listed = await _list_entries(stores, key)
    if listed is None:
        return
    entries, watermark = listed
    await asyncio.sleep(rng.choice([0, 0.2, 1.5] if pin_id else [0, 0.5, 4]))
    who = "listing reader" if pin_id is None else "pinned reader"
    log = bytearray()
    for entry in entries:
        try:
            log += await _entry_bytes(stores, entry)
        except (StreamHouseError, Unreadable) as error:
            if pin_id is None:
                promised = await stores.metadata.now_ms() - listed_at_ms < VACUUM.reader_grace_ms
            else:
                promised = pin_id in await stores.metadata.renew_pins([pin_id], ttl_ms=_PIN_MS)
            if promised:
                scene.problem(f"{who}: {key} {entry.base_offset} to {entry.end_offset}: {error}")
            scene.did("reads that came too late")
            return
    _judge(scene, who, key, bytes(log), promises, entries[0].base_offset, watermark)
    scene.did("reads by list" if pin_id is None else "pinned reads")


async def _list_entries(stores: Stores, key: PartitionKey) -> tuple[list[Entry], int] | None:
    """All entries, and the watermark that stood at first. None if there are none, or others since the page before."""
    entries: list[Entry] = []
    more, start, watermark = True, 0, 0
    while more:
        pages = await stores.metadata.scan_entries([ScanRange(key=key, from_offset=start)], limit=50)
        if not pages or not pages[0].entries:
            return None
        if not entries:
            watermark = pages[0].partition.high_watermark
        elif pages[0].entries[0].base_offset != start:
            return None
        entries += pages[0].entries
        more, start = pages[0].more, entries[-1].end_offset + 1
    return entries, watermark


async def _entry_bytes(stores: Stores, entry: Entry) -> bytes:
    data = bytearray(await stores.objects.get_range(entry.object_key, entry.byte_offset, entry.byte_length))
    if entry.kind is not EntryKind.WAL:
        return b"".join(bytes(run) for run in read_segment(data).runs())
    place_slice(
        data,
        byte_length=entry.byte_length,
        record_count=entry.record_count,
        base_offset=entry.base_offset,
        leader_epoch=entry.epoch,
    )
    return bytes(data)


def _records(log: bytes) -> list[tuple[int, str]]:
    return [
        (record.offset, (record.value or b"").decode())
        for position, _ in iter_batches(log)
        for record in decode_records(log, position)
    ]


async def _some_keys(stores: Stores, rng: random.Random) -> Sequence[PartitionKey]:
    keys = [key for topic in await stores.metadata.list_topics() for key in topic.partition_keys()]
    return rng.sample(keys, min(3, len(keys)))


# The end.


async def settle(scene: Scene) -> list[str]:
    """Run maintenance to its end with all others gone. Returns what is wrong with the logs and with the bucket."""
    promises = Promises.read(scene.histories)
    async with scene.place.opened() as stores:
        await scene.place.let_pass(_PIN_MS + 60 * MINUTE_MS)  # leases, claims and pins of the dead expire
        for _ in range(3):
            await compaction_machine(stores, "at the end")
        await retention_machine(stores, "at the end")
        for _ in range(2):
            await scene.place.let_pass(60 * MINUTE_MS)
            await vacuum_machine(stores, "at the end")
        problems = await what_is_inexact(scene.place, stores)
        for topic in await stores.metadata.list_topics():
            for key in topic.partition_keys():
                problems += await _last_judgement(stores, topic, key, promises)
    return problems


async def _last_judgement(stores: Stores, topic: Topic, key: PartitionKey, promises: Promises) -> list[str]:
    (state,) = await stores.metadata.get_partitions([key])
    start = state.log_start_offset
    log = await read_log(stores, key, start)
    records = [record for record in _records(log) if record[0] >= start]
    found = judge(records, promises.acknowledged.get(str(key), {}), begins_at=start, sent=promises.sent)
    if topic.name != TRIMMED and start:
        found.append(f"nothing may be deleted, and the log starts at {start}")
    if topic.name == TRIMMED and start and len(log) < RETENTION_BYTES // 2:
        found.append(f"retention has left {len(log)} bytes")
    return [f"{topic.name} {key.partition}: {problem}" for problem in found]
