"""Every injected damage is repaired where that loses nothing, and left as it is where it might (issue 14).

Beside it: what others do at the same time, and a process that is killed after each of its steps.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from compaction_faults import Life, LossyMetadata, MeddledMetadata, MortalMetadata, MortalStore, killed
from repair_ground import (
    Place,
    Snapshot,
    entries_of,
    new_reader,
    objects_of,
    read_all,
    repair,
)
from verify_damages import DAMAGES, Fleet, K, build, rewritten, with_crc
from verify_world import START_MS, World, Written

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.claims import claim_name
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.repair import RepairOutcome, salvage
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.contract import Compaction, CompactionSource, Entry, EntryKind, ObjectRef

HOUR_MS = 3_600_000
LEFT, RIGHT = "orders/0", "orders/1"

REPAIRED: dict[str, set[Place]] = {
    "head_of_a_segment": {(LEFT, 6)},
    "version_of_a_segment": {(LEFT, 6)},
    "footer_of_a_segment": {(LEFT, 6)},
    "magic_at_the_end_of_a_segment": {(LEFT, 6)},
    "index_of_a_segment": {(LEFT, 6)},
    "head_of_a_compacted_segment": {(RIGHT, 10)},
    "footer_of_a_compacted_segment": {(RIGHT, 10)},
    "index_with_a_wrong_largest_time": {(LEFT, 18)},
    "footer_with_a_wrong_smallest_time": {(LEFT, 18)},
    "truncated_blob": {(LEFT, 0)},
    "extended_blob": {(LEFT, 0), (RIGHT, 0)},
    "header_of_a_blob": {(LEFT, 0), (RIGHT, 0)},
    "batch_that_is_newer_than_its_entry": {(LEFT, 20)},
    "largest_time_of_a_slice": {(LEFT, 0)},
    "largest_time_of_a_segment": {(LEFT, 6)},
    "smallest_time_above_the_largest": {(LEFT, 6)},
}
"""The damages that are repaired, with the entries that are written anew. Every other one is left as it is."""
IN_PART = {"truncated_blob"}
"""One of its two slices is cut off."""
ALTERED = {"batch_that_is_newer_than_its_entry"}
"""The damage is another batch than the one that was written, so a consumer reads that one before and after."""
REASONS = {
    "index_of_a_compacted_segment": "its blocks may be compressed, and only the index says where each of them begins",
    "index_and_a_payload": "without its index, from offset 12 on",
    "footer_and_the_offset_of_a_batch": "do not have the CRC-32C in the index",
    "segment_of_a_newer_version": "newer-format: ",
    "blob_of_a_newer_version": "newer-format: ",
    "payload_in_a_slice": "batch: ",
    "missing_segment": "missing-object: ",
    "record_that_is_newer_than_its_batch_says": "record-times: ",
}
"""What is said of damages that are not repaired. The first three are seen by the repair, which reads the batches."""


async def heals_what_it_may(world: World, name: str) -> None:
    fleet = await build(world)
    healthy = await Snapshot.of(fleet)
    await DAMAGES[name](fleet)
    before, expected = await Snapshot.of(fleet), REPAIRED.get(name, set())

    planned = await repair(world, plan_only=True)
    assert await Snapshot.of(fleet) == before, "a plan changes nothing"
    assert planned.places(RepairOutcome.REPAIRABLE) == expected
    assert not planned.summary.is_all_healed

    done = await repair(world)
    after = await Snapshot.of(fleet)
    assert done.places(RepairOutcome.REPAIRED) == expected
    others = {place: outcome for place, outcome in done.outcomes.items() if place not in expected}
    assert set(others.values()) <= {RepairOutcome.NOT_REPAIRABLE}
    assert all(done.reasons[place] for place in others)
    if name in REASONS:
        assert any(REASONS[name] in reason for reason in done.reasons.values()), done.reasons

    assert {place: after.logs[place] for place in before.logs} == before.logs
    if name in REPAIRED.keys() - IN_PART - ALTERED:
        assert after.logs == healthy.logs
    assert {key: after.objects.get(key) for key in before.objects} == before.objects
    assert len(after.objects) == len(before.objects) + len(expected)
    assert untouched(after, expected) == untouched(before, expected)
    if not expected:
        assert after.rows == before.rows

    told = await world.verify(partitions_at_a_time=1, entries_at_a_time=1)
    still = {(f"{each.topic}/{each.key.partition}", each.base_offset) for each in told.findings}
    assert not still & expected
    assert (told.findings == []) == done.summary.is_all_healed == (bool(expected) and name not in IN_PART)


def untouched(snapshot: Snapshot, repaired: set[Place]) -> dict[Place, Entry]:
    return {place: entry for place, entry in snapshot.entries.items() if place not in repaired}


@pytest.mark.parametrize("name", sorted(DAMAGES))
async def test_i5_a_repair_loses_nothing_and_touches_nothing_else(world: World, name: str) -> None:
    await heals_what_it_may(world, name)


@pytest.mark.parametrize("name", sorted({*REPAIRED, *REASONS, "missing_entry", "swapped_objects_of_two_partitions"}))
async def test_i5_a_repair_on_postgresql_loses_nothing_and_touches_nothing_else(
    postgres_world: World, name: str
) -> None:
    await heals_what_it_may(postgres_world, name)


# What becomes of the objects.


async def test_i5_the_damaged_object_stays_until_vacuum_and_only_then_goes(world: World) -> None:
    fleet = await build(world)
    await DAMAGES["header_of_a_blob"](fleet)
    blob = fleet.slices[0].object_key
    (left_entry,) = await entries_at(world, fleet.left, 0)
    await repair(world)
    assert blob in await objects_of(world)
    (new_entry,) = await entries_at(world, fleet.left, 0)
    assert (new_entry.kind, new_entry.epoch) == (EntryKind.COMPACTED, left_entry.epoch)
    await vacuum(world)
    assert blob not in await objects_of(world)
    assert (await world.verify()).findings == []


async def test_i5_a_blob_stays_whose_other_slice_was_not_repaired(world: World) -> None:
    fleet = await build(world)
    await DAMAGES["truncated_blob"](fleet)
    await repair(world)
    await vacuum(world)
    assert fleet.slices[1].object_key in await objects_of(world)


async def test_i5_damage_of_the_index_keeps_the_whole_partition_as_it_is(world: World) -> None:
    """What a gap means is for a person to find out; until then every row and object of the partition is a trace."""
    fleet = await build(world)
    await DAMAGES["head_of_a_segment"](fleet)
    await DAMAGES["extended_blob"](fleet)
    await world.drop_entry(fleet.left, fleet.twins[0])
    done = await repair(world)
    assert done.outcomes == {
        (LEFT, 0): RepairOutcome.NOT_REPAIRABLE,
        (LEFT, 6): RepairOutcome.NOT_REPAIRABLE,
        (RIGHT, 0): RepairOutcome.REPAIRED,
    }
    assert "the index of its partition is damaged too (gap: no entry covers" in done.reasons[LEFT, 6]
    assert not done.summary.is_all_healed


async def test_r18_holes_of_key_compaction_are_kept_and_never_guessed(world: World) -> None:
    (log,) = await world.topic()
    sources = [await world.segment(log, log.batches(2, 2, 2)) for _ in range(2)]
    await world.segment(log, log.batches(2))
    thinned = await world.compact(log, sources, keep=lambda offset: offset in (0, 5, 9))
    batches = await read_all(world, log)

    await world.flip(thinned.object_key, 1)
    assert (await repair(world)).places(RepairOutcome.REPAIRED) == {(LEFT, 0)}
    (entry,) = await entries_at(world, log, 0)
    assert (entry.record_count, entry.object_key != thinned.object_key) == (3, True)
    segment = read_segment(await world.store.get(entry.object_key))
    assert segment.footer.sparse, "the next key compaction knows by it what is clean"
    assert await read_all(world, log) == batches

    await world.flip(entry.object_key, segment.footer.index_offset + 3)
    done = await repair(world)
    assert "key compaction has left holes in it" in done.reasons[LEFT, 0]
    assert await entries_at(world, log, 0) == [entry]


async def test_i5_a_fault_that_the_damage_had_hidden_is_told(world: World) -> None:
    """Records that cannot be decoded, in a segment without its index: written anew they are no worse, and not whole."""
    fleet = await build(world)
    made = bytearray(fleet.left.batch(2, at=18, first_ms=START_MS))
    made[61] ^= 0x40
    entry, _ = await rewritten(fleet, [with_crc(made)])
    index = (await fleet.read_segment(entry)).footer.index_range
    await world.flip(entry.object_key, index.offset + 3)
    done = await repair(world)
    assert done.told.kinds == [K.SEGMENT_INDEX]
    assert done.outcomes == {(LEFT, 18): RepairOutcome.STILL_DAMAGED}
    assert done.reasons[LEFT, 18].startswith("records: ")
    assert not done.summary.is_all_healed
    assert (await read_all(world, fleet.left))[18] == with_crc(made)
    done = await repair(world)
    assert done.outcomes == {(LEFT, 18): RepairOutcome.NOT_REPAIRABLE}


async def test_i5_a_pending_compaction_of_a_newer_version_keeps_its_partition_as_it_is(world: World) -> None:
    fleet, _ = await damaged_head(world)

    class Newer:
        """The metadata of a cluster in which a newer version has begun a compaction."""

        def __getattr__(self, name: str) -> Any:
            return self.get_compaction if name == "get_compaction" else getattr(world.metadata, name)

        async def get_compaction(self, key: PartitionKey) -> Compaction:
            (entry,) = await entries_at(world, fleet.left, 18)
            source = CompactionSource(base_offset=18, end_offset=19, object_key=entry.object_key)
            return Compaction(
                key=key,
                compaction_id=UUID(int=1),
                sources=(source,),
                target=replace(entry, encoding="strm-v9"),
                object=ObjectRef(key="objects/newer", size_bytes=1, created_at_ms=0),
            )

    done = await repair(world, metadata=Newer())
    assert done.outcomes == {(LEFT, 6): RepairOutcome.NOT_REPAIRABLE}
    assert "'strm-v9' is unknown" in done.reasons[LEFT, 6]


# Others at work.


async def damaged_head(world: World) -> tuple[Fleet, dict[int, bytes]]:
    fleet = await build(world)
    log = await read_all(world, fleet.left)
    await world.flip(fleet.segments[0].object_key, 1)
    return fleet, log


async def test_s2_13_a_partition_that_another_process_compacts_is_put_off(world: World) -> None:
    fleet, _ = await damaged_head(world)
    await world.metadata.acquire_claim(claim_name(fleet.left.key), owner="compactor", ttl_ms=60_000)
    objects = await objects_of(world)
    done = await repair(world)
    assert done.outcomes == {(LEFT, 6): RepairOutcome.PUT_OFF}
    assert done.reasons[LEFT, 6] == "another process compacts its partition: run it again"
    assert not done.summary.is_all_healed
    assert await objects_of(world) == objects, "nothing was written in vain"
    await world.metadata.release_claim(claim_name(fleet.left.key), owner="compactor")
    assert (await repair(world)).outcomes == {(LEFT, 6): RepairOutcome.REPAIRED}
    assert await world.metadata.list_claims() == []
    assert await world.metadata.list_pins() == []


@pytest.mark.parametrize("call", ["get_compaction", "epoch_history", "begin_compaction", "apply_compaction"])
async def test_r17_retention_that_drops_the_entry_meanwhile_wins(world: World, call: str) -> None:
    fleet, _ = await damaged_head(world)

    async def retain() -> None:
        await world.metadata.advance_log_start(fleet.left.key, 18)

    done = await repair(world, metadata=MeddledMetadata(world.metadata, call, retain))
    assert done.outcomes == {(LEFT, 6): RepairOutcome.REPLACED}
    assert done.summary.is_all_healed
    assert await world.metadata.list_compactions() == []
    assert [entry.base_offset for entry in await world.entries(fleet.left)] == [18, 20]
    assert (await world.verify()).findings == []


async def test_r17_a_compaction_that_replaces_the_entry_meanwhile_wins(world: World) -> None:
    fleet = await build(world)
    slice_, segment = fleet.slices[0], fleet.segments[0]
    log = await read_all(world, fleet.left)
    await world.change_entry(fleet.left, slice_, max_timestamp=slice_.max_timestamp_ms - 1)

    async def compact() -> None:
        whole = replace(slice_, max_timestamp_ms=START_MS + 5)
        await world.compact(fleet.left, [whole, segment])

    done = await repair(world, metadata=MeddledMetadata(world.metadata, "begin_compaction", compact))
    assert done.outcomes == {(LEFT, 0): RepairOutcome.REPLACED}
    assert await read_all(world, fleet.left) == log
    assert (await world.verify()).findings == []


async def test_i5_a_row_that_was_corrected_meanwhile_is_left_as_it_is(world: World) -> None:
    """Its object and offsets are those that were judged, so a commit would not be refused."""
    fleet = await build(world)
    entry = fleet.slices[0]
    await world.change_entry(fleet.left, entry, max_timestamp=entry.max_timestamp_ms - 1)

    async def correct() -> None:
        await world.change_entry(fleet.left, entry, max_timestamp=entry.max_timestamp_ms)

    done = await repair(world, metadata=MeddledMetadata(world.metadata, "acquire_claim", correct))
    assert done.outcomes == {(LEFT, 0): RepairOutcome.REPLACED}
    assert await entries_at(world, fleet.left, 0) == [entry]


async def test_writers_and_leaders_go_on_while_an_entry_is_repaired(world: World) -> None:
    fleet, _ = await damaged_head(world)

    async def write() -> None:
        await world.take_over(fleet.left)
        await world.segment(fleet.left, fleet.left.batches(2))

    done = await repair(world, metadata=MeddledMetadata(world.metadata, "begin_compaction", write))
    assert done.outcomes == {(LEFT, 6): RepairOutcome.REPAIRED}
    assert sorted(await read_all(world, fleet.left))[-1] == 24
    assert (await world.verify()).findings == []


async def several_at_once(world: World) -> None:
    fleet = await build(world)
    whole = await Snapshot.of(fleet)
    await world.flip(fleet.slices[0].object_key, 30)
    await world.flip(fleet.packed.object_key, 1)
    runs = await asyncio.gather(*(repair(world, owner=f"repair-{seed}", seed=seed) for seed in (1, 2, 3)))
    by_place: dict[Place, list[RepairOutcome]] = {}
    for done in runs:
        for place, outcome in done.outcomes.items():
            by_place.setdefault(place, []).append(outcome)
    assert by_place.keys() == {(LEFT, 0), (RIGHT, 0), (RIGHT, 10)}
    for outcomes in by_place.values():
        assert outcomes.count(RepairOutcome.REPAIRED) == 1
        assert set(outcomes) <= {RepairOutcome.REPAIRED, RepairOutcome.REPLACED, RepairOutcome.PUT_OFF}
    assert (await world.verify()).findings == []
    await vacuum(world)
    after = await Snapshot.of(fleet)
    assert after.logs == whole.logs
    assert set(after.objects) == {entry.object_key for entry in after.entries.values()}


async def test_s2_13_several_repairs_at_once_share_the_work(world: World) -> None:
    await several_at_once(world)


async def test_s2_13_several_repairs_at_once_share_the_work_on_postgresql(postgres_world: World) -> None:
    await several_at_once(postgres_world)


async def all_at_once(world: World) -> None:
    """Rounds of damage that consumers can read through, each with everyone at work on the same partition."""
    fleet = await build(world)
    log, draw = fleet.left, random.Random(4)
    rules = CompactionRules(min_entries=3, max_sources=3)
    outcomes: Counter[RepairOutcome] = Counter()

    async def write() -> None:
        for _ in range(3):
            await world.segment(log, log.batches(2))

    for number in range(12):
        entry = draw.choice(await world.entries(log))
        await world.change_entry(log, entry, max_timestamp=entry.max_timestamp_ms - 1)
        before = await read_all(world, log)
        compactor = Compactor(
            metadata=world.metadata,
            store=world.store,
            offload=InlineOffload(),
            clock=ManualClock(),
            randomness=SeededRandomness(number),
            owner=f"compactor-{number}",
            options=CompactorOptions(rules=rules),
        )
        done, *_ = await asyncio.gather(
            repair(world, owner=f"repair-{number}", seed=100 + number), compactor.compact_once([log.key]), write()
        )
        outcomes.update(done.outcomes.values())
        await vacuum(world)
        after = await read_all(world, log)
        assert {offset: after[offset] for offset in before} == before
        outcomes.update((await repair(world, owner=f"again-{number}", seed=200 + number)).outcomes.values())
        assert (await world.verify()).findings == []
    assert outcomes[RepairOutcome.REPAIRED] >= 6
    assert not outcomes[RepairOutcome.NOT_REPAIRABLE] + outcomes[RepairOutcome.STILL_DAMAGED]
    assert sorted(after)[-1] == log.next_offset - 2
    await vacuum(world)
    after_all = await Snapshot.of(fleet)
    assert set(after_all.objects) == {entry.object_key for entry in after_all.entries.values()}


async def test_s2_13_repairs_lose_nothing_beside_writers_compactors_and_vacuum(world: World) -> None:
    await all_at_once(world)


async def test_s2_13_repairs_on_postgresql_lose_nothing_beside_writers_compactors_and_vacuum(
    postgres_world: World,
) -> None:
    await all_at_once(postgres_world)


async def test_i5_a_segment_of_many_reads_is_repaired_without_its_index(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvage, "READ_BYTES", 50)  # less than a batch has
    fleet = await build(world)
    log = await read_all(world, fleet.left)
    await DAMAGES["index_of_a_segment"](fleet)
    assert (await repair(world)).outcomes == {(LEFT, 6): RepairOutcome.REPAIRED}
    assert await read_all(world, fleet.left) == log


async def test_r6_an_object_that_vacuum_may_delete_is_written_again(world: World) -> None:
    fleet, log = await damaged_head(world)

    async def raise_horizon() -> None:
        await world.advance()
        await world.metadata.raise_gc_horizon(await world.metadata.now_ms())

    done = await repair(world, metadata=MeddledMetadata(world.metadata, "begin_compaction", raise_horizon))
    assert done.outcomes == {(LEFT, 6): RepairOutcome.REPAIRED}
    assert done.summary.rewriting.stale == 1
    assert await read_all(world, fleet.left) == log


async def test_r5_calls_whose_answers_are_lost_are_sent_again(world: World) -> None:
    fleet, log = await damaged_head(world)
    lossy = LossyMetadata(world.metadata, {"begin_compaction": 1, "apply_compaction": 1})
    done = await repair(world, metadata=lossy)
    assert done.outcomes == {(LEFT, 6): RepairOutcome.REPAIRED}
    assert set(lossy.losses.values()) == {0}
    assert await read_all(world, fleet.left) == log


async def test_a_reader_that_has_met_the_damage_goes_on_behind_the_repair(world: World) -> None:
    fleet = await build(world)
    whole = await read_all(world, fleet.left)
    reader = new_reader(world)
    await DAMAGES["index_of_a_segment"](fleet)
    assert 6 not in await read_all(world, fleet.left, reader)
    await repair(world)
    assert await read_all(world, fleet.left, reader) == whole
    await reader.close()


# A process that dies.


async def killed_after_every_step(world: World) -> None:
    fleet = await build(world)
    log, steps = await read_all(world, fleet.left), 0
    seen: set[RepairOutcome] = set()
    while True:
        steps += 1
        (entry,) = await entries_at(world, fleet.left, 6)
        await world.change_entry(fleet.left, entry, max_timestamp=entry.max_timestamp_ms - 1)
        life = Life(steps)
        with killed():
            await repair(
                world,
                metadata=MortalMetadata(world.metadata, life),
                store=MortalStore(world.store, life),
                owner=f"dying-{steps}",
                seed=1_000 + steps,
            )
        assert await read_all(world, fleet.left) == log, f"after step {steps}, {life.steps[-1]}"
        await world.advance(61_000)  # a dead process's claim
        done = await repair(world, owner="next", seed=2_000 + steps)
        seen |= set(done.outcomes.values())
        assert done.summary.is_all_healed, f"after step {steps}, {life.steps[-1]}"
        assert await read_all(world, fleet.left) == log
        assert (await world.verify()).findings == []
        assert await world.metadata.list_compactions() == []
        if len(life.steps) < steps:
            break
    assert steps > 15
    assert seen == {RepairOutcome.REPAIRED, RepairOutcome.REPLACED}, "also one that was begun, and finished by the next"
    await vacuum(world)
    logs = (fleet.left, fleet.right, fleet.clicks)
    assert set(await objects_of(world)) == {entry.object_key for entry in await entries_of(world, logs)}


async def test_s2_9_killed_after_every_step_the_next_process_ends_the_repair(world: World) -> None:
    await killed_after_every_step(world)


async def test_s2_9_killed_after_every_step_on_postgresql_the_next_process_ends_the_repair(
    postgres_world: World,
) -> None:
    await killed_after_every_step(postgres_world)


# Steps.


async def entries_at(world: World, log: Written, offset: int) -> list[Entry]:
    return [entry for entry in await world.entries(log) if entry.base_offset == offset]


async def vacuum(world: World) -> None:
    """As vacuum does it, after all graces."""
    await world.advance(3 * HOUR_MS)
    options = VacuumOptions(writer_grace_ms=HOUR_MS, reader_grace_ms=HOUR_MS)
    await Vacuum(metadata=world.metadata, objects=world.store, options=options).run()
