"""Passes over real logs: what readers see afterwards, what is claimed, and what a pass tells (S2.8 to S2.16)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from builders import assert_dense
from compaction_faults import HeldStore, Life, MortalMetadata, SteppedStore
from compaction_ground import AT_ONCE, Ground, assert_one_object, records_of, rules_with, settle, small_log, some_batch

from streamhouse.core.errors import ConfigError, StoreUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.claims import claim_name
from streamhouse.maintenance.compaction.compactor import CompactorOptions
from streamhouse.maintenance.compaction.stats import PassProgress
from streamhouse.metadata.contract import EntryKind
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.keys import CompactedKey, parse
from streamhouse.wire.records import Record


@pytest.mark.parametrize("leaderless", [False, True])
async def test_s2_8_small_objects_of_every_sort_become_one_and_readers_see_the_same(
    ground: Ground, leaderless: bool
) -> None:
    log = await ground.log(leaderless=leaderless)
    await log.write_some(random.Random(2), 12)
    await ground.advance(1)
    before = await log.entries()
    assert await ground.read(log.key) == log.bytes
    done = await ground.compactor().compact_once([log.key])
    await assert_one_object(log)
    (entry,) = await log.entries()
    assert records_of(await ground.read(log.key)) == records_of(log.bytes)
    assert entry.epoch == max(one.epoch for one in before) == log.epoch
    assert entry.max_timestamp_ms == max(one.max_timestamp_ms for one in before)
    assert entry.min_timestamp_ms == min(one.min_timestamp_ms for one in before)
    state = await ground.backend.state(log.key)
    assert (state.compaction_cursor, state.high_watermark) == (log.next_offset, log.next_offset)
    assert await ground.metadata.list_compactions() == []
    assert (done.stats.runs, done.stats.entries, done.stats.objects_released) == (1, 12, 12)
    assert done.stats.bytes_in == sum(one.byte_length for one in before)
    assert done.stats.bytes_out == entry.byte_length
    assert (done.failures, done.partitions_left, done.more) == ((), 0, False)


async def test_s2_36_the_object_lies_under_its_partition_and_carries_the_stores_time(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground)
    await sqlite_ground.compactor().compact_once([log.key])
    (entry,) = await log.entries()
    key = parse(entry.object_key)
    assert isinstance(key, CompactedKey)
    assert (key.log, key.base_offset, key.end_offset) == (log.key, 0, log.next_offset - 1)
    assert key.created_ms == entry.created_at_ms == await sqlite_ground.metadata.now_ms()
    assert len(await sqlite_ground.memory.get(entry.object_key)) == entry.byte_length


async def test_invariant_7_nothing_is_deleted_and_what_was_replaced_is_dereferenced(ground: Ground) -> None:
    log = await small_log(ground)
    sources = {entry.object_key for entry in await log.entries()}
    await ground.compactor().compact_once([log.key])
    stored = {info.key async for info in ground.memory.list()}
    assert sources < stored
    await ground.advance(1)
    assert set(await ground.backend.garbage()) == sources


async def test_s2_8_the_next_pass_goes_on_from_the_cursor(ground: Ground) -> None:
    log = await small_log(ground)
    compactor = ground.compactor()
    await compactor.compact_once([log.key])
    (first,) = await log.entries()
    assert (await compactor.compact_once([log.key])).stats.runs == 0
    await log.write_some(random.Random(3), 5)
    await ground.advance(1)
    for one in (compactor, ground.compactor()):
        await one.compact_once([log.key])
        entries = await log.entries()
        assert entries[0] == first, "what was compacted is not rewritten"
        assert len(entries) == 2
    assert await ground.read(log.key) == log.bytes


async def test_s2_8_large_entries_are_passed_over_and_stay(ground: Ground) -> None:
    rng, log = random.Random(4), await ground.log()
    large = rules_with(AT_ONCE, large_entry_bytes=20_000)
    await log.write(*[some_batch(rng, most_records=40) for _ in range(30)], kind=EntryKind.SEGMENT)
    await log.write_some(rng, 4)
    await log.write(*[some_batch(rng, most_records=40) for _ in range(30)], kind=EntryKind.SEGMENT)
    await log.write_some(rng, 4)
    await ground.advance(1)
    before = await log.entries()
    assert [one.byte_length >= 20_000 for one in before] == [True, *[False] * 4, True, *[False] * 4]
    compactor = ground.compactor(rules=large)
    await compactor.compact_once([log.key])
    after = await log.entries()
    assert [one.kind for one in after] == [EntryKind.SEGMENT, EntryKind.COMPACTED] * 2
    assert (after[0], after[2]) == (before[0], before[5])
    assert_dense(after, log_start=0, watermark=log.next_offset)
    assert await ground.read(log.key) == log.bytes
    for one in (compactor, ground.compactor(rules=large)):
        assert (await one.compact_once([log.key])).stats.runs == 0


async def test_larger_sources_are_read_by_their_index(sqlite_ground: Ground) -> None:
    rng, log = random.Random(5), await sqlite_ground.log()
    rules = rules_with(AT_ONCE, target_object_bytes=1 << 26, max_object_bytes=1 << 27, large_entry_bytes=1 << 24)
    large = {"records": [Record(value=rng.randbytes(1_500_000))]}
    for kind in (EntryKind.WAL, EntryKind.SEGMENT, EntryKind.WAL):
        entry = await log.write(*[large] * 4, some_batch(rng), kind=kind)
        assert entry.byte_length > 4 << 20
    await log.write(some_batch(rng))
    await sqlite_ground.advance(1)
    done = await sqlite_ground.compactor(rules=rules).compact_once([log.key])
    assert done.stats.runs == 1
    await assert_one_object(log)


async def test_s2_16_a_pass_takes_each_partition_once_and_its_plan_changes_nothing(ground: Ground) -> None:
    logs = [await small_log(ground, name=name, seed=seed) for seed, name in enumerate(("one", "two", "three"))]
    keys = [log.key for log in logs]
    told: list[PassProgress] = []
    compactor = ground.compactor()
    planned = await compactor.plan([*keys, *keys])
    assert sorted(plan.key for plan in planned) == sorted(keys)
    assert {len(plan.items[0].sources) for plan in planned} == {6}
    assert await ground.metadata.list_claims() == []
    assert [len(await log.entries()) for log in logs] == [6, 6, 6]
    done = await compactor.compact_once([*keys, *keys], on_progress=told.append)
    for log in logs:
        await assert_one_object(log)
    assert compactor.stats == done.stats
    expected = sum(item.expected_bytes for plan in planned for item in plan.items)
    assert told[-1] == PassProgress(
        partitions=3, partitions_done=3, items=3, items_done=3, bytes_expected=expected, bytes_read=expected
    )
    assert all(one.bytes_read <= two.bytes_read and one.items_done <= two.items_done for one, two in pairwise(told))
    assert await compactor.plan(keys) == []


async def test_s2_16_what_one_pass_leaves_is_announced(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground, 9)
    compactor = sqlite_ground.compactor(rules=rules_with(AT_ONCE, max_sources=2, max_items=2))
    assert [(await compactor.compact_once([log.key])).more for _ in range(3)] == [True, True, False]
    assert len(await log.entries()) == 5
    assert await sqlite_ground.read(log.key) == log.bytes


async def test_s2_16_what_waits_to_be_worth_an_object_is_told(ground: Ground) -> None:
    first, second = await small_log(ground), await small_log(ground, name="second")
    waiting = len(await first.entries()) + len(await second.entries())
    patient = rules_with(AT_ONCE, min_entries=100, max_age_ms=3_600_000)
    done = await ground.compactor(rules=patient).compact_once([first.key, second.key])
    assert (done.stats.runs, done.waiting_entries) == (0, waiting)
    done = await ground.compactor(rules=AT_ONCE).compact_once([first.key, second.key])
    assert (done.stats.runs, done.waiting_entries) == (2, 0)


async def test_partitions_that_do_not_exist_are_nothing_to_do(ground: Ground) -> None:
    log = await small_log(ground)
    await ground.metadata.delete_topic(log.topic.topic_id)
    done = await ground.compactor().compact_once([log.key, PartitionKey(log.key.topic_id, 7)])
    assert (done.failures, done.stats.runs, done.stats.failures) == ((), 0, 0)


# Claims (S2.13).


async def test_s2_13_a_claimed_partition_is_passed_over_until_the_claim_expires(ground: Ground) -> None:
    log = await small_log(ground)
    await ground.metadata.acquire_claim(claim_name(log.key), owner="another", ttl_ms=60_000)
    compactor = ground.compactor()
    done = await compactor.compact_once([log.key])
    assert (done.stats.busy, done.stats.runs, len(await log.entries())) == (1, 0, 6)
    await ground.advance(60_001)
    assert (await compactor.compact_once([log.key])).stats.runs == 1
    assert await ground.metadata.list_claims() == [], "given back"


async def test_s2_13_a_partition_without_work_is_not_claimed(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground, 1)
    asked = MortalMetadata(sqlite_ground.metadata, life := Life())
    compactor = sqlite_ground.compactor(metadata=asked)
    await compactor.compact_once([log.key])
    assert life.steps == ["now_ms", "get_partitions", "list_compactions", "scan_entries"]


async def test_s2_12_one_process_has_one_task_for_a_partition_and_so_many_at_a_time(sqlite_ground: Ground) -> None:
    logs = [await small_log(sqlite_ground, 3, name=f"topic-{number}") for number in range(5)]
    keys = [log.key for log in logs]
    store = HeldStore(sqlite_ground.memory)
    compactor = sqlite_ground.compactor(store=store, max_parallel_items=2)
    first = asyncio.create_task(compactor.compact_once(keys))
    while store.uploads < 2:  # noqa: ASYNC110 -- what it waits for are steps of the pass
        await asyncio.sleep(0)
    working = set(compactor._working)
    second = await compactor.compact_once(working)
    assert second.stats.busy == 2
    store.open.set()
    done = await first
    assert (done.stats.runs, store.most_at_a_time) == (5, 2)


async def test_s2_12_passes_take_the_partitions_in_an_order_of_their_own(sqlite_ground: Ground) -> None:
    keys = (await sqlite_ground.backend.topic("many", partitions=20)).partition_keys()
    orders = {tuple(sqlite_ground.compactor(seed=seed)._shuffled([*keys, *keys])) for seed in range(5)}
    assert len(orders) == 5
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(keys))}


async def test_a_lost_claim_ends_the_work(sqlite_ground: Ground) -> None:
    ground = sqlite_ground
    log = await small_log(ground)

    class Slow(SteppedStore):
        async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if name == "open_upload":
                await ground.advance(60_001)
                await ground.metadata.acquire_claim(claim_name(log.key), owner="another", ttl_ms=60_000)
            return await call()

    done = await ground.compactor(store=Slow(ground.memory)).compact_once([log.key])
    assert (done.stats.conflicts, done.stats.runs, len(await log.entries())) == (1, 0, 6)


async def test_a_store_that_is_away_ends_the_pass_before_it_begins_other_partitions(sqlite_ground: Ground) -> None:
    logs = [await small_log(sqlite_ground, 3, name=f"topic-{number}") for number in range(4)]
    down = FaultyStore(
        sqlite_ground.memory,
        plan=ScriptedFaults([StoreFault.UNAVAILABLE] * 1_000),
        randomness=sqlite_ground.backend.ids,
    )
    compactor = sqlite_ground.compactor(store=down, max_parallel_items=1)
    done = await compactor.compact_once([log.key for log in logs])
    assert (done.stats.failures, done.partitions_left) == (1, 3)
    assert isinstance(done.failures[0].error, StoreUnavailable)
    assert await sqlite_ground.metadata.list_claims() == []


async def test_a_pass_that_is_cancelled_gives_its_claim_back_and_leaves_the_log(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground)
    store = HeldStore(sqlite_ground.memory)
    compactor = sqlite_ground.compactor(store=store)
    task = asyncio.create_task(compactor.compact_once([log.key]))
    while not store.uploads:  # noqa: ASYNC110 -- what it waits for is a step of the pass
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert await sqlite_ground.metadata.list_claims() == []
    assert len(await log.entries()) == 6
    store.open.set()
    assert (await compactor.compact_once([log.key])).stats.runs == 1


@pytest.mark.parametrize("wrong", [{"max_parallel_items": 0}, {"max_parallel_items": 65}, {"claim_ttl_ms": 999}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        CompactorOptions(**wrong)
