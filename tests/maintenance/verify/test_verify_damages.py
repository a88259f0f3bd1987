"""Injected damage: each is found, with its kind and its place, and nothing else is (invariants 2, 3, 5).

The whole list runs on SQLite; what is done to rows runs on PostgreSQL too.
"""

from __future__ import annotations

from collections import Counter

import pytest
from verify_damages import DAMAGES, ROWS, K, as_hit, build, records_that_cannot_be_decoded
from verify_world import World

from streamhouse.maintenance.verify import VerifyDepth


async def proves(world: World, name: str) -> None:
    fleet = await build(world)
    assert (await world.verify()).findings == [], "the fleet was damaged before"
    expected = await DAMAGES[name](fleet)
    # One partition after the other: which of two overlapping entries is met second is then known.
    told = await world.verify(partitions_at_a_time=1, entries_at_a_time=1)
    assert Counter(map(as_hit, told.findings)) == Counter(expected), "\n".join(map(str, told.findings))
    assert told.summary.findings == Counter(kind for kind, *_ in expected)
    assert not told.summary.is_healthy


@pytest.mark.parametrize("name", sorted(DAMAGES))
async def test_i5_damage_is_found_with_its_kind_and_place(world: World, name: str) -> None:
    await proves(world, name)


@pytest.mark.parametrize("name", sorted(ROWS))
async def test_i5_damage_to_rows_of_postgresql_is_found_with_its_kind_and_place(
    postgres_world: World, name: str
) -> None:
    await proves(postgres_world, name)


QUICKLY = {
    "missing_segment": [K.MISSING_OBJECT],
    "missing_blob": [K.MISSING_OBJECT, K.MISSING_OBJECT],
    "truncated_segment": [K.OBJECT_SIZE],
    "truncated_blob": [K.BYTE_RANGE],
    "slice_of_another_partition": [K.SLICE_OVERLAP],
    "slice_past_the_end_of_its_object": [K.BYTE_RANGE],
    "swapped_objects_of_two_partitions": [K.WRONG_OBJECT, K.WRONG_OBJECT],
    "missing_entry": [K.GAP],
    "watermark_one_too_high": [K.WATERMARK],
    "epoch_of_a_slice": [K.EPOCH],
}


@pytest.mark.parametrize("name", sorted(QUICKLY))
async def test_i5_a_quick_verification_finds_it_without_reading_a_byte(world: World, name: str) -> None:
    fleet = await build(world)
    await DAMAGES[name](fleet)
    told = await world.verify(VerifyDepth.QUICK)
    assert told.kinds == QUICKLY[name]
    assert told.summary.read_bytes == 0


async def test_i5_only_a_deep_verification_decodes_records(world: World) -> None:
    fleet = await build(world)
    await records_that_cannot_be_decoded(fleet)
    assert (await world.verify(VerifyDepth.BYTES)).findings == []
    assert (await world.verify(VerifyDepth.DEEP)).kinds == [K.RECORDS]
