"""One item: what a lost answer, an old object, retention and damage do to it (R5, R6, R7, R17, invariant 5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from compaction_faults import LossyMetadata, MeddledMetadata, SteppedStore
from compaction_ground import Ground, assert_one_object, damage, small_log

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import DamagedObject, MetadataUnavailable
from streamhouse.maintenance.compaction import commit
from streamhouse.metadata.contract import EntryKind
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault

# Rules of safety.


async def test_r6_an_object_older_than_the_horizon_is_written_again_with_a_fresh_stamp(ground: Ground) -> None:
    log = await small_log(ground)

    async def vacuum() -> None:
        await ground.advance(1_000)
        await ground.backend.raise_horizon()

    metadata = MeddledMetadata(ground.metadata, "begin_compaction", vacuum)
    done = await ground.compactor(metadata=metadata).compact_once([log.key])
    assert (done.stats.stale, done.stats.conflicts, done.stats.runs) == (1, 0, 1)
    await assert_one_object(log)
    (entry,) = await log.entries()
    assert entry.created_at_ms >= (await ground.backend.state(log.key)).gc_horizon_ms


async def test_r6_a_rewrite_that_is_always_too_slow_is_given_up(ground: Ground) -> None:
    log = await small_log(ground)

    async def vacuum() -> None:
        await ground.advance(1_000)
        await ground.backend.raise_horizon()

    metadata = MeddledMetadata(ground.metadata, "begin_compaction", vacuum, times=99)
    done = await ground.compactor(metadata=metadata).compact_once([log.key])
    assert (done.stats.stale, done.stats.conflicts, done.stats.runs) == (2, 1, 0)
    assert await ground.read(log.key) == log.bytes
    assert (await ground.compactor().compact_once([log.key])).stats.runs == 1


@pytest.mark.parametrize("call", ["begin_compaction", "apply_compaction"])
async def test_r17_retention_that_comes_between_wins_and_the_item_is_given_up(ground: Ground, call: str) -> None:
    log = await small_log(ground)
    second = (await log.entries())[1]

    async def retention() -> None:
        await ground.metadata.advance_log_start(log.key, second.base_offset)

    done = await ground.compactor(metadata=MeddledMetadata(ground.metadata, call, retention)).compact_once([log.key])
    assert (done.stats.conflicts, done.stats.runs, done.failures) == (1, 0, ())
    assert await ground.metadata.list_compactions() == []
    await ground.compactor().compact_once([log.key])
    assert len(await log.entries()) == 1
    assert await ground.read(log.key, second.base_offset) == log.bytes_from(second.base_offset)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_PAUSE", Backoff(first_ms=1, longest_ms=1))


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("call", ["begin_compaction", "apply_compaction"])
async def test_r5_a_lost_answer_is_resolved_by_the_identical_call(ground: Ground, call: str) -> None:
    log = await small_log(ground)
    done = await ground.compactor(metadata=LossyMetadata(ground.metadata, {call: 2})).compact_once([log.key])
    assert (done.stats.runs, done.stats.conflicts, done.failures) == (1, 0, ())
    await assert_one_object(log)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("call", ["begin_compaction", "apply_compaction"])
async def test_r5_a_compaction_without_an_answer_is_finished_by_the_next_pass(ground: Ground, call: str) -> None:
    log = await small_log(ground)
    compactor = ground.compactor(metadata=LossyMetadata(ground.metadata, {call: 3}))
    done = await compactor.compact_once([log.key])
    assert (done.stats.runs, done.stats.failures) == (0, 1)
    assert isinstance(done.failures[0].error, MetadataUnavailable)
    assert (await compactor.compact_once([log.key])).stats.recovered == (call == "begin_compaction")
    await assert_one_object(log)


# Damage.


async def test_invariant_5_a_damaged_source_is_named_and_nothing_is_committed(ground: Ground) -> None:
    log = await small_log(ground)
    entries = await log.entries()
    await damage(ground, entries[3])
    compactor = ground.compactor()
    done = await compactor.compact_once([log.key])
    (failure,) = done.failures
    assert isinstance(failure.error, DamagedObject)
    assert failure.error.object_key == entries[3].object_key
    assert (failure.error.where, failure.error.base_offset) == (str(log.key), entries[3].base_offset)
    assert (done.stats.damaged, done.stats.runs) == (1, 0)
    assert await log.entries() == entries
    assert await ground.metadata.list_compactions() == []


async def test_a_damaged_entry_does_not_keep_its_neighbours_from_being_compacted(sqlite_ground: Ground) -> None:
    ground = sqlite_ground
    log = await small_log(ground, 9)
    entries = await log.entries()
    intact = bytes(await ground.memory.get(entries[4].object_key))
    await ground.memory.delete([entries[4].object_key])
    compactor = ground.compactor()
    done = await compactor.compact_once([log.key])
    assert isinstance(done.failures[0].error, DamagedObject)
    assert done.failures[0].error.missing
    done = await compactor.compact_once([log.key])
    assert (done.stats.runs, done.stats.damaged) == (2, 0)
    after = await log.entries()
    assert [one.kind for one in after] == [EntryKind.COMPACTED, entries[4].kind, EntryKind.COMPACTED]
    await ground.memory.put(entries[4].object_key, intact)
    assert await ground.read(log.key) == log.bytes


async def test_a_damaged_source_is_tried_again_once_its_time_has_come(sqlite_ground: Ground) -> None:
    ground = sqlite_ground
    log = await small_log(ground, 2)
    entry = (await log.entries())[0]
    intact = bytes(await ground.memory.get(entry.object_key))
    await damage(ground, entry)
    compactor = ground.compactor()
    runs = [(await compactor.compact_once([log.key])).stats.damaged for _ in range(2)]
    await ground.memory.delete([entry.object_key])
    await ground.memory.put(entry.object_key, intact)
    runs.append((await compactor.compact_once([log.key])).stats.runs)
    await ground.advance(60_001)
    runs.append((await compactor.compact_once([log.key])).stats.runs)
    assert runs == [1, 0, 0, 1]


async def test_a_damaged_download_is_no_damage(sqlite_ground: Ground) -> None:
    log = await small_log(sqlite_ground)
    faulty = FaultyStore(
        sqlite_ground.memory,
        plan=ScriptedFaults([None, StoreFault.CORRUPTED]),
        randomness=sqlite_ground.backend.ids,
    )
    done = await sqlite_ground.compactor(store=faulty).compact_once([log.key])
    assert (done.stats.runs, done.stats.damaged) == (1, 0)
    await assert_one_object(log)


async def test_r7_an_object_that_vacuum_deleted_meanwhile_is_a_conflict_and_no_damage(ground: Ground) -> None:
    """Its entry was replaced while this compactor, whose claim had expired, was still about to read it."""
    log = await small_log(ground)
    sources = [entry.object_key for entry in await log.entries()]

    class Overtaken(SteppedStore):
        async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if name == "open_upload":
                await ground.compactor(owner="the same").compact_once([log.key])
                await ground.memory.delete(sources)
            return await call()

    compactor = ground.compactor(store=Overtaken(ground.memory), owner="the same")
    done = await compactor.compact_once([log.key])
    assert (done.stats.conflicts, done.stats.damaged, done.failures) == (1, 0, ())
    await assert_one_object(log)
