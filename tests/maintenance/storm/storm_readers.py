"""The roles of a storm that read: through a reader, or by entries that they have listed before, with a pin or without.

What each reads is judged by what writers were told before it was read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from storm_history import Promises, judge
from storm_keyed import found_in, judge_keyed
from storm_looking import read_log
from storm_machines import VACUUM, hash_of
from storm_place import Stores
from storm_scene import DELETE_RETENTION_MS, GOING, KEYED, PIN_MS, Scene

from simulator.rawbytes import Unreadable
from streamhouse.core.errors import OffsetOutOfRange, PartitionNotFound, StreamHouseError, TopicNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.formats.shared_blob_v1 import place_slice
from streamhouse.metadata.contract import Entry, EntryKind, ScanRange, Topic
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.records import decode_records

Log = tuple[Topic, PartitionKey]


async def consume(scene: Scene, life: int) -> None:
    """Reads logs from their start to their end, through a LogReader of its own and without a pin."""
    rng = random.Random(hash_of(f"{scene.seed} reader {life}"))
    async with scene.place.opened() as stores:
        while True:
            promises = Promises.read(scene.histories)
            for log in await _some_logs(stores, rng):
                with suppress(PartitionNotFound, TopicNotFound):  # the stalled writer's topic was deleted
                    await _consume(scene, stores, log, promises, rng)
            await asyncio.sleep(0.02)


async def _consume(scene: Scene, stores: Stores, log: Log, promises: Promises, rng: random.Random) -> None:
    _, key = log
    states = await stores.metadata.get_partitions([key])
    if not states:
        return
    begin, watermark = states[0].log_start_offset, states[0].high_watermark
    if rng.random() < 0.5:
        begin = rng.randint(begin, watermark)
    try:
        found = await read_log(stores, key, begin)
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
    await _judge(scene, stores, "reader", log, found, promises, begin, watermark)
    scene.did("logs read")


async def consume_pinned(scene: Scene, life: int) -> None:
    """Pins, lists entries, stalls, and reads the objects that it has listed: each must be there while the pin is."""
    rng = random.Random(hash_of(f"{scene.seed} pinned reader {life}"))
    async with scene.place.opened() as stores:
        while True:
            promises = Promises.read(scene.histories)
            pin_id = SystemRandomness().uuid()
            await stores.metadata.create_pin(pin_id, owner=f"reader-{life}", ttl_ms=PIN_MS)
            for log in await _some_logs(stores, rng):
                await _read_listed(scene, stores, log, promises, rng, pin_id)
            await stores.metadata.release_pins([pin_id])
            await asyncio.sleep(rng.choice([0, 2]))  # without its pin, vacuum may go further


async def consume_listed(scene: Scene, life: int) -> None:
    """Lists entries without a pin and reads their objects: each must be there for the grace of readers (R7)."""
    rng = random.Random(hash_of(f"{scene.seed} listing reader {life}"))
    async with scene.place.opened() as stores:
        while True:
            promises = Promises.read(scene.histories)
            for log in await _some_logs(stores, rng):
                await _read_listed(scene, stores, log, promises, rng, None)


async def _read_listed(
    scene: Scene, stores: Stores, log: Log, promises: Promises, rng: random.Random, pin_id: UUID | None
) -> None:
    _, key = log
    listed_at_ms = await stores.metadata.now_ms()
    listed = await list_entries(stores, key)
    if listed is None:
        return
    entries, watermark = listed
    await asyncio.sleep(rng.choice([0, 0.2, 1.5] if pin_id else [0, 0.5, 4]))
    who = "listing reader" if pin_id is None else "pinned reader"
    found = bytearray()
    for entry in entries:
        try:
            found += await _entry_bytes(stores, entry)
        except (StreamHouseError, Unreadable) as error:
            if pin_id is None:
                promised = await stores.metadata.now_ms() - listed_at_ms < VACUUM.reader_grace_ms
            else:
                promised = pin_id in await stores.metadata.renew_pins([pin_id], ttl_ms=PIN_MS)
            if promised:
                scene.problem(f"{who}: {key} {entry.base_offset} to {entry.end_offset}: {error}")
            scene.did("reads that came too late")
            return
    await _judge(scene, stores, who, log, bytes(found), promises, entries[0].base_offset, watermark)
    scene.did("reads by list" if pin_id is None else "pinned reads")


async def _judge(
    scene: Scene,
    stores: Stores,
    who: str,
    log: Log,
    found: bytes,
    promises: Promises,
    begin: int,
    watermark: int,
) -> None:
    topic, key = log
    promised = promises.acknowledged.get(str(key), {})
    problems: list[str]
    if topic.name == KEYED:
        keyed = [record for record in found_in(found) if record.offset >= begin]
        end = keyed[-1].offset + 1 if keyed else begin
        verdict = judge_keyed(
            keyed,
            promised,
            partition=str(key),
            later=Promises.read(scene.histories),
            begins_at=begin,
            now_ms=await stores.metadata.now_ms(),
            delete_retention_ms=DELETE_RETENTION_MS,
        )
        problems = verdict.problems
        scene.did("keyed logs read")
        scene.did("superseded records", verdict.superseded)
        scene.did("tombstones gone", verdict.tombstones_gone)
    else:
        records = [record for record in records_in(found) if record[0] >= begin]
        end = records[-1][0] + 1 if records else begin
        problems = [] if topic.name == GOING else judge(records, promised, begins_at=begin)
    for problem in problems[:5]:
        scene.problem(f"{who}: {key} from {begin}: {problem}")
    if end < watermark:
        scene.problem(f"{who}: {key}: the log was read to {end}, its end was {watermark}")


async def list_entries(stores: Stores, key: PartitionKey) -> tuple[list[Entry], int] | None:
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


def records_in(log: bytes) -> list[tuple[int, str]]:
    return [
        (record.offset, (record.value or b"").decode())
        for position, _ in iter_batches(log)
        for record in decode_records(log, position)
    ]


async def _some_logs(stores: Stores, rng: random.Random) -> Sequence[Log]:
    logs = [(topic, key) for topic in await stores.metadata.list_topics() for key in topic.partition_keys()]
    return rng.sample(logs, min(3, len(logs)))
