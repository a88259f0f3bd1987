"""The role of a storm that reads what goes while it reads, so that nothing but its pin or the readers' grace keeps it.

Its topic has partitions of a few entries. It takes those whose objects are so old that a vacuum might delete them, and
lets the log start move past what it has listed, as DeleteRecords does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from storm_leader import Leader
from storm_machines import VACUUM, hash_of
from storm_place import Stores
from storm_readers import list_entries
from storm_scene import GOING, PIN_MS, Scene

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import Entry, Verdict
from streamhouse.objectstore.keys import parse

_LOOK_S: Final = 0.1
_PINNED_S: Final = 5.0
"""A pin is held for no longer: it keeps what others let go."""


async def consume_going(scene: Scene, life: int) -> None:
    rng = random.Random(hash_of(f"{scene.seed} going reader {life}"))
    async with scene.place.opened() as stores:
        leader = Leader(stores, "going reader")
        topic = await stores.metadata.get_topic(GOING)
        while True:
            await leader.lead(topic)
            for key in topic.partition_keys():
                if await list_entries(stores, key) is None:
                    await _write_what_goes(scene, leader, key, rng)
                elif rng.random() < 0.3:
                    await _read_with_a_pin(scene, stores, key)
                else:
                    await _read_within_the_grace(scene, stores, key)
            await asyncio.sleep(_LOOK_S)


async def _write_what_goes(scene: Scene, leader: Leader, key: PartitionKey, rng: random.Random) -> None:
    values = [f"going {number}" for number in range(rng.randint(1, 4))]
    slices = await leader.upload_blob({key: values}) if rng.random() < 0.5 else await leader.upload_segment(key, values)
    if set(await leader.commit(slices)) != {Verdict.COMMITTED}:
        scene.did("refused commits of what goes")  # time was let pass between upload and commit


async def _read_within_the_grace(scene: Scene, stores: Stores, key: PartitionKey) -> None:
    """Without a pin it stalls until a vacuum has gone over the bucket. If that took less than the grace of readers, all
    that it has listed is there: the grace counts from the end of the last reference, however old the object is (R7)."""

    async def has_time() -> bool:
        return await stores.metadata.now_ms() - listed_at_ms < VACUUM.reader_grace_ms

    listed_at_ms = await stores.metadata.now_ms()
    entries = await _list_old(stores, key)
    if not entries:
        return
    await stores.metadata.advance_log_start(key, entries[-1].end_offset + 1)
    dereferenced_at_ms = await stores.metadata.now_ms()

    async def no_pin_protects_it() -> bool:
        return all(pin.created_at_ms > dereferenced_at_ms for pin in await stores.metadata.list_pins())

    is_tried = await _until_a_vacuum_after(scene, no_pin_protects_it, while_true=has_time)
    missing = await _missing(stores, entries)
    if not await has_time():
        scene.did("reads that came too late")
    elif missing:
        scene.problem(f"going reader: {key} {missing}")
    elif is_tried:
        scene.did("reads of what is dereferenced")


async def _read_with_a_pin(scene: Scene, stores: Stores, key: PartitionKey) -> None:
    """It stalls until the grace of readers is over and a vacuum has gone over the bucket: while its pin lives, all that
    it has listed is there (R7)."""
    pin_id = SystemRandomness().uuid()

    async def pin_lives() -> bool:
        return pin_id in await stores.metadata.renew_pins([pin_id], ttl_ms=PIN_MS)

    if not await _list_old(stores, key):
        return
    await stores.metadata.create_pin(pin_id, owner="going reader", ttl_ms=PIN_MS)
    entries = await _list_old(stores, key)
    if entries:
        await stores.metadata.advance_log_start(key, entries[-1].end_offset + 1)
        dereferenced_at_ms = await stores.metadata.now_ms()

        async def grace_is_over() -> bool:
            return await stores.metadata.now_ms() - dereferenced_at_ms > VACUUM.reader_grace_ms

        is_tried = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_PINNED_S):
                is_tried = await _until_a_vacuum_after(scene, grace_is_over, while_true=pin_lives)
        missing = await _missing(stores, entries)
        if not await pin_lives():
            scene.did("pins that have ended")
        elif missing:
            scene.problem(f"going reader with a pin: {key} {missing}")
        elif is_tried:
            scene.did("pinned reads of what is dereferenced")
    await stores.metadata.release_pins([pin_id])


async def _list_old(stores: Stores, key: PartitionKey) -> list[Entry]:
    """The entries of the log, if all of their objects are below the horizon; else none."""
    listed = await list_entries(stores, key)
    if listed is None:
        return []
    (state,) = await stores.metadata.get_partitions([key])
    named = [parse(entry.object_key) for entry in listed[0]]
    are_old = all(each is not None and each.created_ms < state.gc_horizon_ms for each in named)
    return listed[0] if are_old else []


async def _until_a_vacuum_after(
    scene: Scene, begins: Callable[[], Awaitable[bool]], *, while_true: Callable[[], Awaitable[bool]]
) -> bool:
    """Wait until ``begins``, and then for a whole vacuum. False when ``while_true`` has ended before."""
    seen: int | None = None
    while await while_true():
        if seen is None and await begins():
            seen = scene.tally()["vacuums"]
        if seen is not None and scene.tally()["vacuums"] >= seen + 2:  # the first of the two had begun before
            return True
        await asyncio.sleep(_LOOK_S)
    return False


async def _missing(stores: Stores, entries: Sequence[Entry]) -> str:
    """What says which object is not there; empty when all are."""
    missing = ""
    for entry in entries:
        try:
            await stores.objects.get_range(entry.object_key, entry.byte_offset, entry.byte_length)
        except StreamHouseError as error:
            missing = f"{entry.base_offset} to {entry.end_offset}: {error}"
    return missing
