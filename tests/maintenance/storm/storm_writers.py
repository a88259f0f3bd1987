"""The roles of a storm that write by themselves: a leased log on a WAL, and a writer that stalls before it commits."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any, Final

from node import AT_ONCE as FLUSH_AT_ONCE
from node import Node
from storm_history import History
from storm_leader import Leader
from storm_machines import hash_of
from storm_place import Stores
from storm_scene import BY_HAND, KEPT, PIN_MS, STALLED, TRIMMED, Scene

from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.metadata.contract import Topic, Verdict
from streamhouse.wire.records import Record, build_batch

_STALL_S: Final = 15.0
"""The longest stall: the writer goes on then even if no vacuum has come by."""


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
    history = scene.history(f"writer.{life}")
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
    history = scene.history(f"staller.{life}")
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
    await stores.metadata.create_pin(pin_id, owner="staller", ttl_ms=PIN_MS)
    values = {key: history.send(2) for key in topic.partition_keys()}
    offsets = {key: leader.next_offsets[key] for key in values}
    slices = await leader.upload_blob(values)
    await asyncio.sleep(2.5)
    verdicts = await leader.commit(slices)
    if Verdict.STALE_OBJECT in verdicts and pin_id in await stores.metadata.renew_pins([pin_id], ttl_ms=PIN_MS):
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
    return await leader.topic(f"{STALLED}-{life}", 2, retention_ms="-1", **BY_HAND)


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
