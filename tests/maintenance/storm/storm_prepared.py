"""A log that gives every machine of maintenance something to do, the victim that is killed at it, and its survivor.

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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from compaction_faults import Died, MeddledMetadata, SteppedStore, killed
from storm_leader import Leader
from storm_looking import read_log, what_is_inexact
from storm_machines import (
    MACHINES,
    compaction_machine,
    eager_compactor,
    retention_machine,
    vacuum_machine,
    work_in_small_steps,
)
from storm_place import HOUR_MS, MINUTE_MS, Stores, StormPlace

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import CompactedKey, ProbeKey, StagingKey
from streamhouse.wire.batch import iter_batches, read_header


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
        await eager_compactor(stores, "before").compact_once([old])
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
        await eager_compactor(replace(stores, metadata=dying), "gone").compact_once([key])  # type: ignore[arg-type]
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
