"""Splits: every offset exactly once, balanced by bytes, few tasks; and the micro-batches' limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from entry_samples import entry, log
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import LimitExceeded, MetadataError
from streamhouse.core.limits import MIB
from streamhouse.spark.plan import (
    SPLITS_PER_CORE,
    ReadRange,
    Split,
    SplitRules,
    clip,
    plan_splits,
    weight_of,
)


def rules(**changed: int) -> SplitRules:
    return SplitRules(**{"parallelism": 2, "split_bytes": 32 * MIB, **changed})


def offsets_of(splits: Sequence[Split]) -> list[tuple[int, int]]:
    return sorted(
        (each.key.partition, offset)
        for split in splits
        for each in split.ranges
        for offset in range(each.from_offset, each.to_offset)
    )


ENTRIES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9 * MIB)), max_size=12)
LOGS = st.lists(st.tuples(ENTRIES, st.integers(0, 50), st.booleans()), max_size=6)


@given(
    logs=LOGS,
    parallelism=st.integers(1, 8),
    split_bytes=st.integers(1, 64 * MIB),
    min_splits=st.none() | st.integers(1, 60),
    max_records=st.none() | st.integers(1, 60),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_every_offset_is_in_exactly_one_split(
    logs: list[tuple[list[tuple[int, int]], int, bool]],
    parallelism: int,
    split_bytes: int,
    min_splits: int | None,
    max_records: int | None,
    data: st.DataObject,
) -> None:
    ranges = []
    for number, (sizes, start, whole) in enumerate(logs):
        full = log(number, sizes, start=start, whole=whole)
        low = data.draw(st.integers(full.from_offset, full.to_offset))
        high = data.draw(st.integers(low, full.to_offset))
        ranges.append(clip(full, low, high))
    wanted = sorted(
        (each.key.partition, offset) for each in ranges for offset in range(each.from_offset, each.to_offset)
    )
    plan = SplitRules(parallelism=parallelism, split_bytes=split_bytes, min_splits=min_splits, max_records=max_records)
    splits = plan_splits(ranges, plan)
    assert offsets_of(splits) == wanted
    for split in splits:
        assert split.ranges
        for each in split.ranges:  # hints: those it needs, no others
            assert each.entries[0].base_offset <= each.from_offset <= each.entries[0].end_offset
            assert each.entries[-1].base_offset < each.to_offset <= each.entries[-1].end_offset + 1
        if max_records is not None:
            assert sum(each.to_offset - each.from_offset for each in split.ranges) <= max_records
    if wanted and min_splits is not None and max_records is None:
        assert len(splits) <= max(min_splits, parallelism * SPLITS_PER_CORE)


class TestBalance:
    def test_a_large_partition_is_read_by_many_tasks(self) -> None:
        splits = plan_splits([log(0, [(100_000, 400 * MIB)])], rules())
        assert len(splits) == 8
        weights = [split.weight_bytes for split in splits]
        assert max(weights) - min(weights) < MIB

    def test_many_small_partitions_are_read_by_one(self) -> None:
        splits = plan_splits([log(number, [(10, 10_000)]) for number in range(1000)], rules())
        assert len(splits) == 1
        assert len(splits[0].ranges) == 1000

    def test_large_and_small_together_are_even(self) -> None:
        large, small = log(0, [(10_000, MIB)] * 300), [log(number, [(10, 64 * 1024)]) for number in range(1, 1001)]
        splits = plan_splits([large, *small], rules())
        weights = [split.weight_bytes for split in splits]
        assert len(splits) == 8
        assert max(weights) < 1.1 * min(weights)

    def test_slices_of_blobs_are_not_read_twice_to_save_a_little(self) -> None:
        splits = plan_splits([log(0, [(1000, 20 * MIB)] * 8, whole=True)], rules())
        assert all(
            each.from_offset in (e.base_offset for e in each.entries) for split in splits for each in split.ranges
        )

    def test_a_split_is_worth_a_task(self) -> None:
        assert len(plan_splits([log(0, [(100_000, 63 * MIB)])], rules())) == 1
        assert len(plan_splits([log(0, [(100_000, 64 * MIB)])], rules())) == 2

    def test_rows_weigh_however_well_they_are_compressed(self) -> None:
        assert weight_of(entry(0, 1_000_000, 1 * MIB)) == 64_000_000

    def test_whoever_asks_for_more_tasks_gets_them(self) -> None:
        assert len(plan_splits([log(0, [(1000, 5000)])], rules(min_splits=16))) == 16
        assert len(plan_splits([log(0, [(3, 5000)])], rules(min_splits=16))) == 3
        assert len(plan_splits([log(0, [(1000, 5000)])], rules(max_records=100))) == 10

    def test_a_plan_of_ten_thousand_entries_is_quick_and_whole(self) -> None:
        ranges = [log(number, [(100, 4000)] * 100, whole=True) for number in range(100)]
        splits = plan_splits(ranges, rules(split_bytes=1 * MIB))
        assert sum(each.to_offset - each.from_offset for split in splits for each in split.ranges) == 1_000_000


class TestRefused:
    def test_a_hole_between_entries_is_an_error_and_never_fewer_rows(self) -> None:
        full = log(0, [(10, 100), (10, 100), (10, 100)])
        holed = ReadRange(
            topic="orders", key=full.key, from_offset=0, to_offset=30, entries=(full.entries[0], full.entries[2])
        )
        with pytest.raises(MetadataError, match="orders/0: its index has nothing at offset 10, of 0 to 29"):
            plan_splits([holed], rules())

    def test_entries_that_end_too_early_are_an_error(self) -> None:
        full = log(0, [(10, 100)])
        longer = ReadRange(topic="orders", key=full.key, from_offset=0, to_offset=11, entries=full.entries)
        with pytest.raises(MetadataError, match="nothing at offset 10"):
            plan_splits([longer], rules())

    def test_more_tasks_than_spark_can_bear_are_refused(self) -> None:
        with pytest.raises(LimitExceeded, match="raise maxRecordsPerPartition"):
            plan_splits([log(0, [(1_000_000, MIB)])], rules(max_records=1))

    def test_nothing_to_read_is_no_split(self) -> None:
        assert plan_splits([], rules()) == []
        assert plan_splits([clip(log(0, [(10, 100)]), 5, 5)], rules()) == []
