"""Reading entries for a plan: in pages, without those that are settled, of partitions that exist (S2.8)."""

from __future__ import annotations

import random

import pytest
from compaction_ground import AT_ONCE, Ground, WrittenLog

from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction import looking
from streamhouse.maintenance.compaction.looking import LogPlanner, PlannedLog
from streamhouse.maintenance.compaction.memory import CompactorMemory
from streamhouse.metadata.contract import PartitionState


def planner(ground: Ground) -> LogPlanner:
    return LogPlanner(metadata=ground.metadata, clock=ground.clock, rules=AT_ONCE, memory=CompactorMemory())


async def a_log(ground: Ground) -> WrittenLog:
    log = await ground.log()
    await log.write_some(random.Random(5), 9)
    await ground.advance(1)
    return log


async def state_of(ground: Ground, key: PartitionKey) -> PartitionState:
    return (await planner(ground).states([key]))[key]


async def plan(ground: Ground, log: WrittenLog) -> PlannedLog:
    planned = await planner(ground).plan(await state_of(ground, log.key), now_ms=await ground.metadata.now_ms())
    assert planned is not None
    return planned


@pytest.mark.parametrize("page", [1, 2, 4, 9])
async def test_s2_8_a_plan_is_the_same_however_many_entries_a_page_has(
    sqlite_ground: Ground, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    log = await a_log(sqlite_ground)
    whole = await plan(sqlite_ground, log)
    monkeypatch.setattr(looking, "_PAGE_ENTRIES", page)
    assert await plan(sqlite_ground, log) == whole
    assert sum(len(item.sources) for item in whole.plan.items) == 9


async def test_a_plan_of_a_log_that_is_too_long_says_that_there_is_more(
    sqlite_ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await a_log(sqlite_ground)
    monkeypatch.setattr(looking, "_PAGE_ENTRIES", 2)
    monkeypatch.setattr(looking, "_MAX_ENTRIES_READ", 4)
    found = await plan(sqlite_ground, log)
    assert found.more
    assert found.plan.settled_offset == 0, "the run that is cut short is looked at again"


async def test_a_log_with_nothing_new_is_not_read_again(sqlite_ground: Ground) -> None:
    log = await a_log(sqlite_ground)
    await sqlite_ground.compactor().compact_once([log.key])
    assert await planner(sqlite_ground).plan(await state_of(sqlite_ground, log.key), now_ms=0) is None


async def test_a_partition_that_is_gone_has_no_plan(sqlite_ground: Ground) -> None:
    log = await a_log(sqlite_ground)
    state = await state_of(sqlite_ground, log.key)
    await sqlite_ground.metadata.delete_topic(log.key.topic_id)
    assert await planner(sqlite_ground).states([log.key]) == {}
    assert await planner(sqlite_ground).plan(state, now_ms=0) is None
