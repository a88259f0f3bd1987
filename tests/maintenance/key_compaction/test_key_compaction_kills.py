"""A process is killed after any of its steps, or two work at once: nothing is lost, nothing dirty seems clean."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from compaction_faults import Life, MortalMetadata, MortalStore, killed
from compaction_ground import WrittenLog
from keyed_logs import CleanerModel, KeyGround, Unclaimed, compact, compacted, random_batch

from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY
from streamhouse.maintenance.key_compaction.plan import KeyRules

FIRST = compacted(delete_retention_ms=1_000)
LONG_MS = 864_000_000
CONFIG = compacted(delete_retention_ms=LONG_MS)
"""New tombstones stay for the whole test, however often a dead process's claim is waited for."""
SOME_ITEMS = KeyRules(max_sources=2)
SHARDS = KeyRules(map_bytes=3 * BYTES_PER_KEY)


async def a_log(ground: KeyGround, name: str = "table") -> tuple[WrittenLog, CleanerModel]:
    """Partly clean, with tombstones whose horizon has passed; then more objects."""
    rng, model = random.Random(4), CleanerModel()
    log = await ground.log(name)
    for _ in range(4):
        entry = await log.write(*[random_batch(rng, keys=8, keyless=0.1) for _ in range(2)])
    await compact(ground, log, config=FIRST, rules=SOME_ITEMS)
    model.written(log.bytes)
    model.clean(below=entry.base_offset, now_ms=ground.backend.now_ms, delete_retention_ms=1_000)
    assert model.horizons
    await ground.advance(1_001)
    for _ in range(4):
        await log.write(*[random_batch(rng, keys=8, keyless=0.1) for _ in range(2)])
    model.written(log.bytes)
    assert await ground.seen_from(log.key, 0) == model.from_offset(0)
    return log, model


async def cleaned(ground: KeyGround, log: WrittenLog, model: CleanerModel) -> CleanerModel:
    """The model as one whole pass leaves it now."""
    after = CleanerModel(records=dict(model.records), horizons=dict(model.horizons), batch_of=dict(model.batch_of))
    newest = (await log.entries())[-1]
    after.clean(below=newest.base_offset, now_ms=ground.backend.now_ms, delete_retention_ms=LONG_MS)
    assert len(after.records) < len(model.records)
    return after


async def assert_between(ground: KeyGround, log: WrittenLog, model: CleanerModel, after: CleanerModel) -> None:
    """The log has all that must stay, nothing that had gone before, and no record twice."""
    found = await ground.seen_from(log.key, 0)
    assert [kept[0] for kept in found] == sorted({kept[0] for kept in found})
    assert set(after.from_offset(0)) <= set(found) <= set(model.from_offset(0))


@pytest.mark.parametrize("rules", [SOME_ITEMS, SHARDS], ids=["items", "shards"])
async def test_p4_killed_after_any_step_any_other_process_goes_on(ground: KeyGround, rules: KeyRules) -> None:
    """Each process lives one step longer than the one before it, until one comes to its end."""
    log, model = await a_log(ground)
    after = await cleaned(ground, log, model)
    for steps in range(1, 1_000):
        life = Life(steps)
        process = ground.key_compactor(
            rules=rules, metadata=MortalMetadata(ground.metadata, life), store=MortalStore(ground.memory, life)
        )
        done = None
        with killed():
            done = await process.compact_once({log.key: CONFIG})
        await assert_between(ground, log, model, after)
        await ground.advance(60_001)  # its claim ends
        if done is not None and not done.more:
            assert done.failures == ()
            break
    assert steps > 10
    assert await ground.seen_from(log.key, 0) == after.from_offset(0)
    assert await ground.metadata.list_compactions() == []


@pytest.mark.parametrize("rules", [SOME_ITEMS, SHARDS], ids=["items", "shards"])
async def test_p4_killed_at_any_one_step_the_next_process_completes_the_pass(
    sqlite_ground: KeyGround, rules: KeyRules
) -> None:
    """What a dead process left dirty is not taken for clean."""
    ground = sqlite_ground
    for steps in range(1, 1_000):
        log, model = await a_log(ground, f"table-{steps}")
        after = await cleaned(ground, log, model)
        life = Life(steps)
        process = ground.key_compactor(
            rules=rules, metadata=MortalMetadata(ground.metadata, life), store=MortalStore(ground.memory, life)
        )
        done = None
        with killed():
            done = await process.compact_once({log.key: CONFIG})
        await ground.advance(60_001)
        while (last := await ground.key_compactor(rules=rules).compact_once({log.key: CONFIG})).more:
            pass
        assert last.failures == ()
        assert await ground.seen_from(log.key, 0) == after.from_offset(0), life.steps
        if done is not None and not done.more:
            break
        if steps > 60:  # longer lives repeat the same steps for further items
            break
    assert steps > 10


class Meeting:
    """One step of a process before which another process does a whole pass."""

    def __init__(self, at: int, other: Callable[[], Awaitable[None]]) -> None:
        self.steps = 0
        self._at = at
        self._other = other

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.steps += 1
        if self.steps == self._at:
            await self._other()
        return await call()


async def test_p4_a_whole_pass_between_any_two_steps_of_another_does_no_harm(sqlite_ground: KeyGround) -> None:
    """Claims are scheduling only: here nobody minds them."""
    ground = sqlite_ground
    conflicts = 0
    for at in range(1, 1_000):
        log, model = await a_log(ground, f"table-{at}")
        after = await cleaned(ground, log, model)

        async def other(log: WrittenLog = log) -> None:
            second = Unclaimed(ground.metadata, "second")
            await compact(ground, log, config=CONFIG, rules=KeyRules(max_sources=3), metadata=second)

        meeting: Any = Meeting(at, other)
        first = ground.key_compactor(
            rules=SOME_ITEMS,
            metadata=MortalMetadata(Unclaimed(ground.metadata, "first"), meeting),  # type: ignore[arg-type]
            store=MortalStore(ground.memory, meeting),
        )
        done = await first.compact_once({log.key: CONFIG})
        assert done.failures == ()
        conflicts += done.stats.conflicts
        await compact(ground, log, config=CONFIG)
        assert await ground.seen_from(log.key, 0) == after.from_offset(0), at
        if meeting.steps < at:
            break
    assert conflicts > 10


async def test_p4_two_compactors_at_once_do_no_harm(ground: KeyGround) -> None:
    for seed in range(3):
        log, model = await a_log(ground, f"table-{seed}")
        after = await cleaned(ground, log, model)
        compactors = [
            ground.key_compactor(rules=SOME_ITEMS, metadata=Unclaimed(ground.metadata, f"process-{number}"))
            for number in range(2)
        ]
        results = await asyncio.gather(*(one.compact_once({log.key: CONFIG}) for one in compactors))
        assert [result.failures for result in results] == [(), ()]
        await assert_between(ground, log, model, after)
        await compact(ground, log, config=CONFIG)
        assert await ground.seen_from(log.key, 0) == after.from_offset(0)
