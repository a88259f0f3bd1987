"""The end of a storm: maintenance runs to its end with all others gone, and then the logs and the bucket are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from storm_history import Promises, judge
from storm_keyed import found_in, judge_keyed, not_cleaned
from storm_looking import read_log, what_is_inexact
from storm_machines import eager_compactor, hash_of, retention_machine, vacuum_machine
from storm_maintainers import KEY_RULES
from storm_place import HOUR_MS, Stores
from storm_readers import records_in
from storm_scene import DELETE_RETENTION_MS, GOING, KEYED, PIN_MS, RETENTION_BYTES, Scene

from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.policy import compacted_logs, small_object_logs
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor, KeyCompactorOptions
from streamhouse.metadata.contract import PartitionState, ScanRange, Topic

_PASSES: Final = 3
_MAX_KEY_PASSES: Final = 100
_OWNER: Final = "at the end"


async def settle(scene: Scene) -> list[str]:
    """What is wrong with the logs and with the bucket."""
    promises = Promises.read(scene.histories)
    async with scene.place.opened() as stores:
        await scene.place.let_pass(PIN_MS + HOUR_MS)  # leases, claims and pins of the dead expire
        for _ in range(_PASSES):
            result = await eager_compactor(stores, _OWNER).compact_once(
                small_object_logs(await stores.metadata.list_topics())
            )
            assert not result.failures, result.failures
        await _compact_keys(stores)
        await retention_machine(stores, _OWNER)
        for _ in range(2):
            await scene.place.let_pass(HOUR_MS)
            await vacuum_machine(stores, _OWNER)
        problems = await what_is_inexact(scene.place, stores)
        problems += [f"still pending: {compaction}" for compaction in await stores.metadata.list_compactions()]
        for topic in await stores.metadata.list_topics():
            for key in topic.partition_keys():
                problems += [
                    f"{topic.name} {key.partition}: {found}" for found in await _judge(stores, topic, key, promises)
                ]
    return problems


async def _compact_keys(stores: Stores) -> None:
    """Until nothing is dirty, whatever its share of the bytes."""
    compactor = KeyCompactor(
        metadata=stores.metadata,
        store=stores.objects,
        offload=InlineOffload(),
        clock=stores.clock,
        randomness=SeededRandomness(hash_of(_OWNER)),
        owner=_OWNER,
        options=KeyCompactorOptions(rules=KEY_RULES),
    )
    logs = compacted_logs(await stores.metadata.list_topics())
    eager = {key: replace(config, min_cleanable_dirty_ratio=0.0) for key, config in logs.items()}
    for _ in range(_MAX_KEY_PASSES):
        result = await compactor.compact_once(eager)
        assert not result.failures, result.failures
        if not result.stats.partitions and not result.more:
            return
    raise AssertionError(f"key compaction has found something to do in {_MAX_KEY_PASSES} passes")


async def _judge(stores: Stores, topic: Topic, key: PartitionKey, promises: Promises) -> list[str]:
    (state,) = await stores.metadata.get_partitions([key])
    log = await read_log(stores, key, state.log_start_offset)
    promised = promises.acknowledged.get(str(key), {})
    if topic.name == KEYED:
        return await _judge_keyed(stores, state, log, promised, promises)
    if topic.name == GOING:
        return []
    start = state.log_start_offset
    records = [record for record in records_in(log) if record[0] >= start]
    problems = judge(records, promised, begins_at=start, sent=promises.sent)
    is_limited = "retention.bytes" in topic.configs
    if not is_limited and start:
        problems.append(f"nothing may be deleted, and the log starts at {start}")
    if is_limited and start and len(log) < RETENTION_BYTES // 2:
        problems.append(f"retention has left {len(log)} bytes")
    return problems


async def _judge_keyed(
    stores: Stores, state: PartitionState, log: bytes, promised: dict[int, str], promises: Promises
) -> list[str]:
    records = found_in(log)
    verdict = judge_keyed(
        records,
        promised,
        partition=str(state.key),
        later=promises,
        begins_at=0,
        now_ms=await stores.metadata.now_ms(),
        delete_retention_ms=DELETE_RETENTION_MS,
    )
    unsent = [f"{record.value!r} was never sent" for record in records if record.value not in promises.sent]
    started = (
        [f"nothing may be deleted, and the log starts at {state.log_start_offset}"] if state.log_start_offset else []
    )
    return [
        *verdict.problems,
        *verdict.resurrected,
        *unsent,
        *started,
        *not_cleaned(records, below=await _newest_entry(stores, state)),
    ]


async def _newest_entry(stores: Stores, state: PartitionState) -> int:
    """Where the newest entry begins, which is never compacted."""
    if not state.high_watermark:
        return 0
    (page,) = await stores.metadata.scan_entries(
        [ScanRange(key=state.key, from_offset=state.high_watermark - 1)], limit=1
    )
    return page.entries[0].base_offset
