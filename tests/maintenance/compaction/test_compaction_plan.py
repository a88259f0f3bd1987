"""Which entries are compacted together, which are left alone, and where the next look begins (S2.8)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import ConfigError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import GIB
from streamhouse.maintenance.compaction.plan import (
    MAX_SOURCES,
    CompactionRules,
    PartitionPlan,
    Worth,
    plan_partition,
)
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    SEGMENT_V1,
    Entry,
    EntryKind,
    LogState,
    PartitionState,
    WriteMode,
)

KEY = PartitionKey(TopicId(UUID(int=1)), 0)
NOW_MS = 1_000_000
RULES = CompactionRules(
    target_object_bytes=100,
    max_object_bytes=150,
    large_entry_bytes=60,
    min_entries=3,
    max_age_ms=1_000,
    max_sources=8,
    max_items=4,
)
ENCODINGS = {EntryKind.WAL: KAFKA_BATCHES, EntryKind.SEGMENT: SEGMENT_V1, EntryKind.COMPACTED: SEGMENT_V1}


def entry(
    at: int,
    size: int = 10,
    *,
    kind: EntryKind = EntryKind.WAL,
    age_ms: int = 0,
    count: int = 2,
    records: int | None = None,
    object_key: str | None = None,
    encoding: str | None = None,
) -> Entry:
    return Entry(
        base_offset=at,
        end_offset=at + count - 1,
        kind=kind,
        object_key=object_key or f"objects/{at}",
        byte_offset=0,
        byte_length=size,
        record_count=count if records is None else records,
        encoding=encoding or ENCODINGS[kind],
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        epoch=1,
        created_at_ms=NOW_MS - age_ms,
    )


def log_of(*sizes: int, age_ms: int = 0) -> list[Entry]:
    """Entries of two records each, from offset 0 on; L for a large one is any size of 60 and more."""
    return [entry(2 * place, size, age_ms=age_ms) for place, size in enumerate(sizes)]


def state(entries: list[Entry], *, cursor: int = 0, watermark: int | None = None, log_start: int = 0) -> PartitionState:
    end = entries[-1].end_offset + 1 if entries else 0
    return PartitionState(
        key=KEY,
        log_state=LogState.OPEN,
        high_watermark=end if watermark is None else watermark,
        log_start_offset=log_start,
        last_stable_offset=end,
        leader_epoch=1,
        write_mode=WriteMode.LEASED,
        gc_horizon_ms=0,
        compaction_cursor=cursor,
    )


def plan(entries: list[Entry], *, rules: CompactionRules = RULES, cursor: int = 0, **how: object) -> PartitionPlan:
    watermark = how.pop("watermark", None)
    partition = state(entries, cursor=cursor, watermark=watermark)  # type: ignore[arg-type]
    return plan_partition(partition, entries, rules=rules, now_ms=NOW_MS, **how)  # type: ignore[arg-type]


def ranges(planned: PartitionPlan) -> list[tuple[int, int, Worth]]:
    return [(item.base_offset, item.end_offset, item.worth) for item in planned.items]


FULL, MANY, OLD = Worth.FULL, Worth.MANY, Worth.OLD
BIG = 60


@pytest.mark.parametrize(
    ("entries", "expected", "settled"),
    [
        pytest.param([], [], 0, id="an empty log"),
        pytest.param(log_of(10), [], 0, id="one entry waits for others"),
        pytest.param(log_of(10, 10), [], 0, id="two young ones wait"),
        pytest.param(log_of(10, 10, age_ms=1_001), [(0, 3, OLD)], 0, id="two old ones do not"),
        pytest.param(log_of(10, 10, age_ms=1_000), [], 0, id="old is older than the age"),
        pytest.param(log_of(10, 10, 10), [(0, 5, MANY)], 0, id="three are many"),
        pytest.param(log_of(50, 50), [(0, 3, FULL)], 0, id="two fill an object"),
        pytest.param(log_of(50, 50, 10), [(0, 3, FULL)], 0, id="what follows a full run waits"),
        pytest.param(log_of(50, 49, 59), [(0, 3, FULL)], 0, id="no object passes the largest size"),
        pytest.param(log_of(*[1] * 9), [(0, 15, FULL)], 0, id="no run has more than the most sources"),
        pytest.param(log_of(BIG, 10, 10, 10), [(2, 7, MANY)], 2, id="a large entry at the cursor is passed over"),
        pytest.param(log_of(10, 10, 10, BIG), [(0, 5, MANY)], 0, id="a large entry ends a run"),
        pytest.param(log_of(BIG, BIG), [], 4, id="large entries are settled"),
        pytest.param(log_of(BIG, 10, BIG), [], 6, id="a small one between large ones can never be merged"),
        pytest.param(log_of(BIG, 10, 10, BIG), [], 2, id="two young ones between large ones wait for their age"),
        pytest.param(log_of(*[30] * 16), [(0, 7, FULL), (8, 15, FULL), (16, 23, FULL), (24, 31, FULL)], 0,
                     id="items up to the limit"),
        pytest.param(log_of(*[30] * 17), [(0, 7, FULL), (8, 15, FULL), (16, 23, FULL), (24, 31, FULL)], 0,
                     id="no more items than the limit"),
    ],
)  # fmt: skip
def test_s2_8_the_plan(entries: list[Entry], expected: list[tuple[int, int, Worth]], settled: int) -> None:
    planned = plan(entries)
    assert ranges(planned) == expected
    assert planned.settled_offset == settled


def test_s2_8_it_begins_exactly_at_the_cursor() -> None:
    entries = log_of(10, 10, 10, 10, 10)
    assert ranges(plan(entries, cursor=4)) == [(4, 9, MANY)]
    assert ranges(plan(entries, cursor=6)) == []


def test_s2_8_a_settled_offset_spares_the_look_at_what_lies_below() -> None:
    entries = log_of(BIG, 10, 10, 10)
    first = plan(entries)
    assert ranges(plan(entries[1:], from_offset=first.settled_offset)) == ranges(first)
    assert plan(log_of(BIG, BIG), from_offset=2).settled_offset == 4


def test_nothing_at_or_above_the_watermark_is_planned() -> None:
    entries = log_of(10, 10, 10, 10)
    planned = plan(entries, watermark=7)
    assert ranges(planned) == [(0, 5, MANY)]
    assert ranges(plan(entries, watermark=5)) == []


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(entry(4, kind=EntryKind.COMPACTED), id="compacted"),
        pytest.param(entry(4, records=1), id="thinned by key compaction (R18)"),
        pytest.param(entry(4, encoding="strm-v9"), id="of an encoding of the future"),
        pytest.param(entry(4, kind=EntryKind.SEGMENT, encoding=KAFKA_BATCHES), id="of an impossible encoding"),
    ],
)  # fmt: skip
def test_entries_that_cannot_be_copied_or_were_compacted_are_left_alone(other: Entry) -> None:
    before, behind = log_of(10, 10), [entry(6), entry(8), entry(10)]
    planned = plan([*before, other, *behind], rules=replace(RULES, max_age_ms=10_000))
    assert ranges(planned) == [(6, 11, MANY)]
    assert planned.settled_offset == 0


def test_segments_and_slices_are_merged() -> None:
    entries = [entry(0), entry(2, kind=EntryKind.SEGMENT), entry(4)]
    assert ranges(plan(entries)) == [(0, 5, MANY)]


def test_entries_of_one_object_are_not_worth_another_object() -> None:
    entries = [entry(at, object_key="objects/blob", age_ms=9_999) for at in (0, 2, 4, 6)]
    planned = plan(entries)
    assert planned.items == ()
    assert (planned.waiting_entries, planned.settled_offset) == (4, 0)
    (item,) = plan([*entries, entry(8)]).items
    assert (len(item.sources), item.objects_saved, item.expected_bytes, item.record_count) == (5, 1, 50, 10)


def test_an_entry_that_cannot_be_read_now_is_left_out_and_looked_at_again() -> None:
    entries = log_of(10, 10, 10, 10, 10, 10, 10)
    planned = plan(entries, avoid={6})
    assert ranges(planned) == [(0, 5, MANY), (8, 13, MANY)]
    planned = plan(log_of(BIG, 10, BIG), avoid={2})
    assert (planned.items, planned.settled_offset) == ((), 2)


def test_a_run_never_spans_a_gap_between_two_pages() -> None:
    entries = [*log_of(10, 10, 10), entry(8), entry(10), entry(12)]
    assert ranges(plan(entries)) == [(0, 5, MANY), (8, 13, MANY)]


def test_the_last_run_waits_while_the_log_has_more_entries_than_were_read() -> None:
    entries = log_of(50, 50, 10, 10, 10)
    assert ranges(plan(entries)) == [(0, 3, FULL), (4, 9, MANY)]
    assert ranges(plan(entries, more=True)) == [(0, 3, FULL)]
    settled = plan(log_of(BIG, BIG, 10, 10, 10), more=True)
    assert (settled.items, settled.settled_offset) == ((), 4), "the next look gets further"


def test_what_waits_is_counted() -> None:
    assert plan(log_of(BIG, 10, 10, BIG, 10)).waiting_entries == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"large_entry_bytes": 101},
        {"target_object_bytes": 151},
        {"max_object_bytes": 4 * GIB},
        {"large_entry_bytes": 0},
        {"min_entries": 1},
        {"min_entries": 9},
        {"max_sources": MAX_SOURCES + 1},
        {"max_age_ms": -1},
        {"max_items": 0},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        replace(RULES, **wrong)


# For any log.

KINDS = st.sampled_from([EntryKind.WAL, EntryKind.WAL, EntryKind.SEGMENT, EntryKind.COMPACTED])


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    made, at = [], 0
    for _ in range(draw(st.integers(0, 40))):
        count = draw(st.integers(1, 3))
        shared = draw(st.booleans()) and made
        made.append(
            entry(
                at,
                draw(st.integers(1, 80)),
                kind=draw(KINDS),
                count=count,
                age_ms=draw(st.integers(0, 2_000)),
                object_key=made[-1].object_key if shared else None,
            )
        )
        at += count
    return made


@given(entries=logs(), cursor=st.integers(0, 100), avoid=st.sets(st.integers(0, 100), max_size=3), more=st.booleans())
def test_s2_8_every_plan_keeps_the_rules(entries: list[Entry], cursor: int, avoid: set[int], more: bool) -> None:
    planned = plan(entries, cursor=cursor, avoid=avoid, more=more)
    assert planned == plan(entries, cursor=cursor, avoid=avoid, more=more), "deterministic"
    assert len(planned.items) <= RULES.max_items
    end = cursor
    for item in planned.items:
        assert item.base_offset >= end, "in order, from the cursor on, none twice"
        end = item.end_offset + 1
        at = item.base_offset
        for source in item.sources:
            assert source.base_offset == at, "consecutive"
            at = source.end_offset + 1
            assert source in entries
            assert source.kind is not EntryKind.COMPACTED, "every record is rewritten once at most"
            assert source.byte_length < RULES.large_entry_bytes
            assert source.base_offset not in avoid
        assert 2 <= len(item.sources) <= RULES.max_sources
        assert item.expected_bytes <= RULES.max_object_bytes
        assert item.objects_saved >= 1
    assert planned.settled_offset >= cursor


@given(entries=logs(), more=st.booleans())
def test_s2_8_what_lies_below_the_settled_offset_is_never_planned_again(entries: list[Entry], more: bool) -> None:
    """However old it gets: looked at again from there, the plan is the same."""
    much_later = replace(RULES, max_age_ms=0)
    planned = plan(entries, more=more)
    whole = plan(entries, more=more, rules=much_later)
    rest = [one for one in entries if one.base_offset >= planned.settled_offset]
    assert all(item.base_offset >= planned.settled_offset for item in whole.items)
    if not more:
        again = plan_partition(
            state(entries), rest, rules=much_later, now_ms=NOW_MS, from_offset=planned.settled_offset
        )
        assert ranges(again) == ranges(whole)


@given(entries=logs())
def test_s2_8_applied_plans_come_to_an_end(entries: list[Entry]) -> None:
    """Each plan is applied as the store does it; the entries cover the same offsets, and in the end nothing is left."""
    rules = replace(RULES, max_age_ms=0)
    covered = [offset for one in entries for offset in range(one.base_offset, one.end_offset + 1)]
    for _ in range(len(entries) + 1):
        items = plan(entries, rules=rules).items
        if not items:
            break
        for item in items:
            place = entries.index(item.sources[0])
            target = entry(
                item.base_offset, item.expected_bytes, kind=EntryKind.COMPACTED, count=item.record_count, age_ms=5_000
            )
            entries[place : place + len(item.sources)] = [target]
    assert plan(entries, rules=rules).items == ()
    assert [offset for one in entries for offset in range(one.base_offset, one.end_offset + 1)] == covered
