"""Compactions that a process left pending: finished if their object is there, cleared if it is not (S2.9, S2.10)."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from compaction_faults import SteppedStore
from compaction_ground import AT_ONCE, Ground, WrittenLog, an_item, assert_one_object, rules_with, small_log

from streamhouse.core.errors import CompactionConflict, StoreUnavailable, UnsupportedVersion
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.formats.segment_v1_writer import write_segment
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.commit import sources_of
from streamhouse.maintenance.compaction.recovery import RecoveryOutcome, recover_compaction
from streamhouse.maintenance.compaction.rewrite import rewrite_item
from streamhouse.metadata.contract import Compaction, CompactionState
from streamhouse.wire.batch import validate


async def left_pending(log: WrittenLog) -> Compaction:
    """All entries rewritten and begun, by a process that died then."""
    ground = log.ground

    async def unheard(size_bytes: int) -> None:
        pass

    entries = await log.entries()
    rewritten = await rewrite_item(
        an_item(log.key, entries),
        store=ground.memory,
        offload=InlineOffload(),
        created_ms=await ground.metadata.now_ms(),
        object_id=ground.backend.uuid(),
        copied=unheard,
    )
    compaction = Compaction(
        key=log.key,
        compaction_id=ground.backend.uuid(),
        sources=sources_of(entries),
        target=rewritten.target,
        object=rewritten.object,
    )
    return await ground.metadata.begin_compaction(compaction)


async def recovered(ground: Ground, compaction: Compaction, store: Any = None) -> RecoveryOutcome:
    return await recover_compaction(compaction, metadata=ground.metadata, store=store or ground.memory)


async def test_s2_9_a_pending_compaction_is_finished_by_any_process(ground: Ground) -> None:
    log = await small_log(ground)
    compaction = await left_pending(log)
    done = await ground.compactor().compact_once([log.key])
    assert (done.stats.recovered, done.stats.aborted, done.stats.runs) == (1, 0, 0)
    await assert_one_object(log)
    assert (await log.entries())[0] == compaction.target


async def test_s2_8_what_is_pending_is_recovered_before_anything_is_planned(ground: Ground) -> None:
    log = await small_log(ground)
    compaction = await left_pending(log)
    await log.write_some(random.Random(9), 4)
    await ground.advance(1)
    done = await ground.compactor().compact_once([log.key])
    assert (done.stats.recovered, done.stats.runs, done.stats.entries) == (1, 1, 4)
    first, second = await log.entries()
    assert first == compaction.target
    assert second.base_offset == compaction.target.end_offset + 1
    assert await ground.read(log.key) == log.bytes


async def test_invariant_5_a_pending_compaction_without_its_object_is_cleared(ground: Ground) -> None:
    log = await small_log(ground)
    compaction = await left_pending(log)
    await ground.memory.delete([compaction.object.key])
    entries = await log.entries()
    nothing = rules_with(AT_ONCE, max_age_ms=99_999, min_entries=99, max_sources=99)
    done = await ground.compactor(rules=nothing).compact_once([log.key])
    assert (done.stats.recovered, done.stats.aborted) == (0, 1)
    assert await log.entries() == entries
    assert await ground.metadata.list_compactions() == []
    assert (await ground.compactor().compact_once([log.key])).stats.runs == 1
    await assert_one_object(log)


async def test_invariant_5_an_object_that_is_not_the_targets_is_not_committed(sqlite_ground: Ground) -> None:
    """Of another size, damaged in its footer, of another partition, of other offsets."""
    ground = sqlite_ground
    log = await small_log(ground, 4)
    batches = [(batch, validate(batch)) for batch in log.batches]
    for way in range(4):
        compaction = await left_pending(log)
        intact = bytes(await ground.memory.get(compaction.object.key))
        other = PartitionKey(TopicId(ground.backend.uuid()), 0)
        wrong = (
            intact + b"more",
            intact[:-50] + bytes([intact[-50] ^ 1]) + intact[-49:],
            padded(b"".join(write_segment(batches, key=other, compression="lz4").buffers), len(intact)),
            padded(b"".join(write_segment(batches[:-1], key=log.key, compression="lz4").buffers), len(intact)),
        )[way]
        await ground.memory.delete([compaction.object.key])
        await ground.memory.put(compaction.object.key, wrong)
        assert await recovered(ground, compaction) is RecoveryOutcome.ABORTED
        assert len(await log.entries()) == 4
    assert await ground.read(log.key) == log.bytes


def padded(segment: bytes, size: int) -> bytes:
    """The same segment as the end of an object of this size, as far as that is possible."""
    return (b"\0" * size + segment)[-size:]


async def test_s2_9_a_store_that_does_not_answer_decides_nothing(ground: Ground) -> None:
    log = await small_log(ground)
    compaction = await left_pending(log)

    class Away(SteppedStore):
        async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await recovered(ground, compaction, Away(ground.memory))
    assert await ground.metadata.list_compactions() == [compaction]
    assert (await ground.compactor(store=Away(ground.memory)).compact_once([log.key])).stats.failures == 1
    assert await ground.metadata.list_compactions() == [compaction]


async def test_s2_9_past_its_first_state_there_is_no_way_back(sqlite_ground: Ground) -> None:
    """A store without transactions may have replaced entries already: only applying can end that."""
    ground = sqlite_ground
    log = await small_log(ground)
    compaction = await left_pending(log)
    await ground.memory.delete([compaction.object.key])
    further = replace(compaction, state=CompactionState.DELETING_OLD)
    assert await recovered(ground, further) is RecoveryOutcome.APPLIED


async def test_s2_9_two_that_recover_at_once_and_the_one_that_lives_agree(ground: Ground) -> None:
    log = await small_log(ground)
    compaction = await left_pending(log)
    assert [await recovered(ground, compaction) for _ in range(2)] == [RecoveryOutcome.APPLIED] * 2
    await ground.metadata.apply_compaction(log.key, compaction.compaction_id)
    await assert_one_object(log)


async def test_r17_what_retention_aborted_stays_aborted(ground: Ground) -> None:
    log = await small_log(ground)
    compaction = await left_pending(log)
    start = (await log.entries())[1].base_offset
    await ground.metadata.advance_log_start(log.key, start)
    assert await recovered(ground, compaction) is RecoveryOutcome.SETTLED
    await ground.memory.delete([compaction.object.key])
    assert await recovered(ground, compaction) is RecoveryOutcome.SETTLED
    with pytest.raises(CompactionConflict):
        await ground.metadata.apply_compaction(log.key, compaction.compaction_id)
    assert await ground.read(log.key, start) == log.bytes_from(start)


async def test_an_object_of_a_newer_version_is_left_to_a_newer_build(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground)
    compaction = await left_pending(log)
    with pytest.raises(UnsupportedVersion):
        await recovered(sqlite_ground, replace(compaction, target=replace(compaction.target, encoding="strm-v9")))
    assert await sqlite_ground.metadata.list_compactions() == [compaction]
