"""What is due, and up to which offset: Kafka's rules on entries. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from compaction_ground import START_MS
from keyed_logs import compacted

from streamhouse.core.errors import ConfigError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.maintenance.key_compaction.plan import Due, KeyPlan, KeyRules, items_below, plan_keys
from streamhouse.metadata.contract import (
    SEGMENT_V1,
    Entry,
    EntryKind,
    LogState,
    PartitionState,
    WriteMode,
)

KEY = PartitionKey(TopicId(SeededRandomness(1).uuid()), 0)


def entry(base: int, end: int, *, size: int = 100, times: tuple[int, int] = (START_MS, START_MS)) -> Entry:
    return Entry(
        base_offset=base,
        end_offset=end,
        kind=EntryKind.SEGMENT,
        object_key=f"o{base}",
        byte_offset=0,
        byte_length=size,
        record_count=end - base + 1,
        encoding=SEGMENT_V1,
        min_timestamp_ms=times[0],
        max_timestamp_ms=times[1],
        epoch=1,
        created_at_ms=START_MS,
    )


def planned(
    entries: list[Entry],
    *,
    clean_end: int = 0,
    now_ms: int = START_MS,
    rules: KeyRules | None = None,
    log_start: int = 0,
    watermark: int | None = None,
    **configs: Any,
) -> KeyPlan:
    state = PartitionState(
        key=KEY,
        log_state=LogState.OPEN,
        high_watermark=entries[-1].end_offset + 1 if watermark is None else watermark,
        log_start_offset=log_start,
        last_stable_offset=0,
        leader_epoch=1,
        write_mode=WriteMode.LEASED,
        gc_horizon_ms=0,
        compaction_cursor=0,
    )
    return plan_keys(
        state, entries, clean_end=clean_end, config=compacted(**configs), rules=rules or KeyRules(), now_ms=now_ms
    )


FIVE = [entry(10 * n, 10 * n + 9) for n in range(5)]


def test_r18_the_newest_entry_is_never_compacted() -> None:
    assert planned(FIVE).dirty == tuple(FIVE[:4])
    assert planned(FIVE, watermark=60).dirty == tuple(FIVE), "the newest one was not read"
    assert planned(FIVE[:1]).due is None


def test_what_lies_below_the_log_start_is_left_out() -> None:
    assert planned(FIVE, log_start=15).dirty == tuple(FIVE[1:4])


@pytest.mark.parametrize(
    ("ratio", "clean_end", "due"),
    [
        ("0.5", 0, Due.RATIO),
        ("0.5", 10, Due.RATIO),
        ("0.5", 20, None),
        ("0.49", 20, Due.RATIO),
        ("0", 30, Due.RATIO),
        ("1", 0, None),
        ("0", 40, None),
    ],
)
def test_min_cleanable_dirty_ratio(ratio: str, clean_end: int, due: Due | None) -> None:
    found = planned(FIVE, clean_end=clean_end, min_cleanable_dirty_ratio=ratio)
    assert found.due is due
    assert (found.clean_bytes, found.dirty_bytes) == (clean_end * 10, 400 - clean_end * 10)


def test_min_compaction_lag_ends_the_dirty_part_at_the_first_entry_with_a_young_record() -> None:
    entries = [entry(10 * n, 10 * n + 9, times=(START_MS, START_MS + n * 1_000)) for n in range(5)]
    at_ms = START_MS + 3_000
    assert planned(entries, now_ms=at_ms, min_compaction_lag_ms=1_000).dirty == tuple(entries[:3])
    assert planned(entries, now_ms=at_ms, min_compaction_lag_ms=1_001).dirty == tuple(entries[:2])
    assert planned(entries, now_ms=at_ms, min_compaction_lag_ms=9_999).due is None
    assert planned(entries, now_ms=START_MS, min_compaction_lag_ms=0).dirty == tuple(entries[:4])


def test_min_compaction_lag_takes_the_entrys_age_where_records_have_no_time() -> None:
    entries = [entry(0, 9, times=(-1, -1)), entry(10, 19)]
    assert planned(entries, now_ms=START_MS + 10, min_compaction_lag_ms=11).dirty == ()
    assert planned(entries, now_ms=START_MS + 11, min_compaction_lag_ms=11).dirty == (entries[0],)


def test_max_compaction_lag_makes_a_little_dirt_due() -> None:
    lazy = {"min_cleanable_dirty_ratio": "1", "max_compaction_lag_ms": 5_000}
    assert planned(FIVE, now_ms=START_MS + 5_000, **lazy).due is None
    assert planned(FIVE, now_ms=START_MS + 5_001, **lazy).due is Due.LAG
    assert planned(FIVE, now_ms=START_MS + 5_001, clean_end=40, **lazy).due is None, "nothing may be compacted"


def test_very_many_small_entries_are_due_whatever_their_share() -> None:
    rules = KeyRules(max_dirty_entries=3)
    assert planned(FIVE, rules=rules, min_cleanable_dirty_ratio="1").due is Due.ENTRIES
    assert planned(FIVE, rules=rules, min_cleanable_dirty_ratio="1", clean_end=20).due is None


def test_items_take_neighbours_up_to_a_size_in_order() -> None:
    entries = [entry(0, 9, size=500), entry(10, 19), entry(20, 29), entry(30, 39), entry(40, 49), entry(50, 59)]
    plan = planned(entries, clean_end=20)

    def bases(end_offset: int, **rules: int) -> list[list[int]]:
        made = items_below(plan, end_offset, KeyRules(**rules))
        return [[source.base_offset for source in item.sources] for item in made]

    assert bases(50, target_object_bytes=200) == [[0], [10, 20], [30, 40]]
    assert bases(50, target_object_bytes=200, max_sources=1) == [[0], [10], [20], [30], [40]]
    assert bases(50) == [[0, 10, 20, 30, 40]]
    assert bases(30) == [[0, 10, 20]]
    assert bases(49) == [[0, 10, 20, 30]], "an entry that was not mapped whole is left out"


@pytest.mark.parametrize(
    "wrong",
    [
        {"map_bytes": 31},
        {"target_object_bytes": 0},
        {"target_object_bytes": 2**40},
        {"max_sources": 0},
        {"max_sources": 10**6},
        {"max_dirty_entries": 0},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        KeyRules(**wrong)
