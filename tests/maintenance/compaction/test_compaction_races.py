"""Several processes at work on one log at once, and processes that are killed between any two steps."""

from __future__ import annotations

import asyncio
import random

import pytest
from builders import assert_dense
from compaction_faults import Life, MortalMetadata, MortalStore, killed
from compaction_ground import AT_ONCE, Ground, assert_one_object, rules_with, small_log

from streamhouse.core.errors import OffsetOutOfRange
from streamhouse.metadata.contract import EntryKind

# Two at once, and others at work.


async def test_two_compactors_with_one_claim_do_no_harm(ground: Ground) -> None:
    log = await small_log(ground, 12)
    other = await ground.backend.open_another()
    rules = rules_with(AT_ONCE, max_sources=4)
    stores = (ground.metadata, other) * 2
    done = await asyncio.gather(
        *(ground.compactor(metadata=store, owner="one name", rules=rules).compact_once([log.key]) for store in stores)
    )
    assert sum(one.stats.failures for one in done) == 0
    await ground.compactor(rules=rules).compact_once([log.key])
    assert [one.kind for one in await log.entries()] == [EntryKind.COMPACTED] * 3
    assert_dense(await log.entries(), log_start=0, watermark=log.next_offset)
    assert await ground.read(log.key) == log.bytes


@pytest.mark.parametrize("seed", range(3))
async def test_a_writer_retention_vacuum_readers_and_two_compactors_at_once(ground: Ground, seed: int) -> None:
    """Readers get every byte of the log from where it starts, however the entries beneath them change (R6, R7, R17)."""
    rng, log = random.Random(seed), await ground.log()
    await log.write_some(rng, 3)
    other = await ground.backend.open_another()
    compactors = [
        ground.compactor(metadata=store, owner="one name", rules=rules_with(AT_ONCE, max_sources=5))
        for store in (ground.metadata, other)
    ]
    over = False

    async def write() -> None:
        nonlocal over
        for _ in range(12):
            await log.write_some(rng, 2)
            await ground.advance(1)
        over = True

    async def compact(one: int) -> None:
        while not over:
            done = await compactors[one].compact_once([log.key])
            assert done.failures == ()

    async def retain() -> None:
        while not over:
            start = (await ground.backend.state(log.key)).log_start_offset
            await ground.metadata.advance_log_start(log.key, start + rng.randrange(4))

    async def vacuum() -> None:
        while not over:
            garbage = await ground.backend.garbage()
            await ground.memory.delete(garbage)
            await ground.metadata.forget_objects(garbage)

    async def read() -> None:
        while not over:
            watermark = await ground.backend.watermark(log.key)
            try:
                found = await ground.read(log.key, watermark // 2)
            except OffsetOutOfRange:
                continue  # retention was faster
            assert log.bytes_from(watermark // 2).startswith(found)

    async with asyncio.TaskGroup() as group:
        for task in (write(), compact(0), compact(1), retain(), vacuum(), read()):
            group.create_task(task)
    await compactors[0].compact_once([log.key])
    state = await ground.backend.state(log.key)
    assert_dense(await log.entries(), log_start=state.log_start_offset, watermark=log.next_offset)
    assert await ground.read(log.key, state.log_start_offset) == log.bytes_from(state.log_start_offset)
    assert await ground.metadata.list_compactions() == []


# Killed.


async def lives_through(ground: Ground, steps: int) -> list[str]:
    """A compactor dies after so many calls; readers and another compactor go on. Returns the calls that it made."""
    log = await small_log(ground, 7, seed=steps, name=f"topic-{steps}")
    rules = rules_with(AT_ONCE, max_sources=4)
    life = Life(steps)
    mortal = ground.compactor(
        metadata=MortalMetadata(ground.metadata, life), store=MortalStore(ground.memory, life), rules=rules
    )
    with killed():
        await mortal.compact_once([log.key])
    assert await ground.read(log.key) == log.bytes, "whatever it left, readers see the whole log"
    await ground.advance(60_001)
    other = ground.compactor(rules=rules)
    done = await other.compact_once([log.key])
    assert done.failures == ()
    entries = await log.entries()
    assert [one.kind for one in entries] == [EntryKind.COMPACTED] * 2
    assert_dense(entries, log_start=0, watermark=log.next_offset)
    assert (await ground.backend.state(log.key)).compaction_cursor == log.next_offset
    assert await ground.metadata.list_compactions() == []
    assert await ground.metadata.list_claims() == []
    assert await ground.read(log.key) == log.bytes
    stored = [info.key async for info in ground.memory.list()]
    named = {one.object_key for one in entries}
    assert named <= set(stored)
    return life.steps


async def test_s2_9_killed_after_any_step_another_process_goes_on(ground: Ground) -> None:
    steps = 1
    while len(made := await lives_through(ground, steps)) == steps:
        steps += 1
    assert made.count("begin_compaction") == made.count("apply_compaction") == made.count("complete") == 2
    assert made[-1] == "release_claim", "the last one was not killed"


async def test_s2_9_killed_again_while_it_recovers(ground: Ground) -> None:
    """Each process finds what the one before left, and dies one step later; in the end the work is done."""
    log = await small_log(ground, 7)
    begun = 0
    for steps in range(1, 60):
        life = Life(steps)
        mortal = ground.compactor(
            metadata=MortalMetadata(ground.metadata, life),
            store=MortalStore(ground.memory, life),
            rules=rules_with(AT_ONCE, max_sources=4),
        )
        with killed():
            await mortal.compact_once([log.key])
        if len(life.steps) < steps:
            break
        begun += life.steps.count("begin_compaction")
        assert await ground.read(log.key) == log.bytes
        await ground.advance(60_001)
    assert begun >= 1
    assert [one.kind for one in await log.entries()] == [EntryKind.COMPACTED] * 2
    assert await ground.metadata.list_compactions() == []


async def test_s2_9_a_pass_beside_a_killed_one_leaves_other_partitions_alone(ground: Ground) -> None:
    first, second = await small_log(ground, name="one"), await small_log(ground, name="two")
    life = Life(8)
    mortal = ground.compactor(metadata=MortalMetadata(ground.metadata, life), store=MortalStore(ground.memory, life))
    with killed():
        await mortal.compact_once([first.key])
    assert (await ground.compactor().compact_once([first.key, second.key])).stats.busy == 1
    await assert_one_object(second)
