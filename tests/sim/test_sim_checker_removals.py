"""What maintenance took away: each right passes, and each wrong has a history made by hand that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.anomalies import Kind
from simulator.checker_removals import judge_removals, thinned_by
from simulator.history import (
    DeletedObject,
    Key,
    Leftovers,
    LoggedRecord,
    LogSpan,
    RawEntry,
    RawPartition,
    RefusedObject,
    Replaced,
    SimHistory,
    TopicRules,
    Trimmed,
)

KEY: Key = ("7" * 32, 0)
MINUTE = 60_000
NOW = 1_000 * MINUTE
GRACE = 30 * MINUTE
BYTES = 100
COMPACTED = TopicRules(compacts=True, deletes=False, tombstones_stay_ms=20 * MINUTE)


def record(key: str, *, age: int = 60 * MINUTE, tombstone: bool = False, crc: int = 1) -> LoggedRecord:
    return LoggedRecord(
        value=f"of {key}",
        key=key.encode(),
        is_tombstone=tombstone,
        time_ms=NOW - age,
        epoch=1,
        producer=(-1, -1, -1),
        crc=crc,
    )


def state(
    records: dict[int, LoggedRecord],
    *ranges: tuple[int, int],
    log_start: int = 0,
    cursor: int = 0,
    name: str = "old",
    unreadable: tuple[str, ...] = (),
) -> LogSpan:
    """A log of ten offsets, of which the entries cover these ranges."""
    entries = tuple(
        RawEntry(
            base_offset=first,
            end_offset=last,
            object_key=f"{name}-{first}",
            byte_offset=0,
            byte_length=BYTES,
            record_count=last - first + 1,
            encoding="strm-v1",
            epoch=1,
        )
        for first, last in ranges
    )
    partition = RawPartition(high_watermark=10, log_start=log_start, entries=entries, cursor=cursor)
    return LogSpan(partition=partition, records=records, unreadable=unreadable)


def kinds(history: SimHistory, left: Leftovers | None = None) -> set[Kind]:
    history.writer_grace_ms = history.reader_grace_ms = GRACE
    return {each.kind for each in judge_removals(history, left or Leftovers(partitions={}, objects={}))}


def compaction(before: LogSpan, after: LogSpan, *, at: float = 1.0, rules: TopicRules = COMPACTED) -> SimHistory:
    history = SimHistory(rules=rules)
    history.replaced.append(Replaced(key=KEY, at_ms=at, store_ms=NOW, before=before, after=after))
    return history


def test_a_copy_keeps_every_byte() -> None:
    log = {at: record(f"k{at}") for at in range(10)}
    before, after = state(log, (0, 4), (5, 9)), state(log, (0, 9), cursor=10, name="new")
    plain = TopicRules()
    assert kinds(compaction(before, after, rules=plain)) == set()
    assert kinds(compaction(before, replace(after, records=log | {3: record("k3", crc=2)}), rules=plain)) == {
        Kind.CHANGED
    }
    assert kinds(compaction(before, replace(after, records=log | {3: record("k3", age=1)}))) == {Kind.CHANGED}
    lost = {at: each for at, each in log.items() if at != 9}
    assert kinds(compaction(before, replace(after, records=lost), rules=plain)) == {Kind.LOST}
    assert kinds(compaction(before, replace(after, records=log | {10: record("new")}), rules=plain)) == {Kind.CHANGED}


def test_cursors_and_log_starts_never_go_back_and_objects_are_there() -> None:
    log = {at: record(f"k{at}") for at in range(10)}
    before = state(log, (0, 9), log_start=2, cursor=5)
    assert kinds(compaction(before, state(log, (0, 9), log_start=2, cursor=4))) == {Kind.WENT_BACK}
    assert kinds(compaction(before, state(log, (0, 9), log_start=1, cursor=5))) == {Kind.WENT_BACK}
    assert kinds(compaction(before, state(log, (0, 9), log_start=11, cursor=5))) == {Kind.NOT_DENSE}
    gone = state(log, (0, 9), log_start=2, cursor=5, unreadable=("old-0 is missing",))
    assert kinds(compaction(gone, gone)) == {Kind.MISSING_OBJECT}
    assert kinds(compaction(before, replace(before, unreadable=("old-0: torn",)))) == {Kind.BAD_OBJECT}


def test_r18_only_the_newest_record_of_a_key_must_stay() -> None:
    log = {0: record("a"), 1: record("b"), 2: record("a")}
    before, after = state(log, (0, 1), (2, 9)), state({1: log[1], 2: log[2]}, (0, 1), (2, 9), name="new")
    history = compaction(before, after)
    assert kinds(history) == set()
    assert thinned_by(history, KEY) == {0: ("of a", 1.0)}
    assert kinds(compaction(before, replace(after, records={0: log[0], 1: log[1]}))) == {Kind.LOST}
    assert kinds(compaction(before, after, rules=TopicRules())) == {Kind.LOST}, "its topic is not compacted"


def test_r18_the_newest_record_of_a_key_stays_for_ever() -> None:
    assert kinds(tombstone_goes(age=60 * MINUTE, kept_before=True, older=False, tombstone=False)) == {Kind.LOST}


def tombstone_goes(*, age: int, kept_before: bool, older: bool, tombstone: bool = True) -> SimHistory:
    log = {1: record("a", age=age, tombstone=tombstone), 2: record("b")}
    if older:
        log[0] = record("a")
    before = state(log, (0, 4), (5, 9), name="first")
    after = state({at: each for at, each in log.items() if at != 1}, (0, 4), (5, 9), name="second")
    history = compaction(before, after, at=2.0)
    if kept_before:
        first = state(log, (0, 2), (3, 4), (5, 9))
        history.replaced.insert(0, Replaced(key=KEY, at_ms=1.0, store_ms=NOW, before=first, after=before))
    return history


def test_r18_a_tombstone_goes_when_its_time_is_over_and_nothing_of_its_key_is_left() -> None:
    assert kinds(tombstone_goes(age=60 * MINUTE, kept_before=True, older=False)) == set()
    assert kinds(tombstone_goes(age=10 * MINUTE, kept_before=True, older=False)) == {Kind.LOST}
    assert kinds(tombstone_goes(age=60 * MINUTE, kept_before=False, older=False)) == {Kind.LOST}
    assert kinds(tombstone_goes(age=60 * MINUTE, kept_before=True, older=True)) == {Kind.LOST}


def trim(start: int, rules: TopicRules, *, young_at: int = 99, asked: int = 0) -> SimHistory:
    """The log start moves over entries of two offsets; the record at one offset is young."""
    log = {at: record("a", age=MINUTE if at == young_at else 60 * MINUTE) for at in range(10)}
    ranges = [(at, at + 1) for at in range(0, 10, 2)]
    before = state(log, *ranges)
    after = state(
        {at: each for at, each in log.items() if at >= start - start % 2},
        *(each for each in ranges if each[1] >= start),
        log_start=start,
    )
    history = SimHistory(rules=rules)
    history.cut.append(Trimmed(key=KEY, at_ms=1, store_ms=NOW, before=before, after=after, asked_offset=asked))
    return history


def test_retention_by_time_takes_entries_whose_newest_record_is_old() -> None:
    rules = TopicRules(retention_ms=30 * MINUTE)
    assert kinds(trim(4, rules)) == set()
    assert kinds(trim(4, rules, young_at=3)) == {Kind.TAKEN_EARLY}
    assert kinds(trim(3, rules, young_at=3)) == set(), "the entry was merged since the plan; what went was old"
    assert kinds(trim(4, TopicRules(retention_ms=90 * MINUTE))) == {Kind.TAKEN_EARLY}
    assert kinds(trim(4, replace(rules, deletes=False))) == {Kind.TAKEN_EARLY}


def test_retention_by_size_leaves_at_least_the_limit() -> None:
    assert kinds(trim(4, TopicRules(retention_bytes=3 * BYTES))) == set()
    assert kinds(trim(4, TopicRules(retention_bytes=3 * BYTES + 1))) == {Kind.TAKEN_EARLY}


def test_delete_records_takes_what_was_asked_for_and_no_more() -> None:
    assert kinds(trim(4, TopicRules(), asked=4)) == set()
    assert kinds(trim(3, TopicRules(), asked=3)) == set()
    assert kinds(trim(6, TopicRules(), asked=4)) == {Kind.TAKEN_EARLY}


def test_a_move_of_the_log_start_takes_nothing_above_it() -> None:
    history = trim(4, TopicRules(retention_ms=30 * MINUTE))
    (cut,) = history.cut
    records = {at: each for at, each in cut.after.records.items() if at != 7}
    history.cut[0] = replace(cut, after=replace(cut.after, records=records))
    assert kinds(history) == {Kind.LOST}


def deleted(
    *, referenced: bool = False, stamp_age: int = 60 * MINUTE, gone_for: int | None = None, pin_age: int | None = None
) -> SimHistory:
    history = SimHistory()
    history.deleted.append(
        DeletedObject(
            object_key="blob",
            at_ms=1,
            store_ms=NOW,
            stamp_ms=NOW - stamp_age,
            is_referenced=referenced,
            dereferenced_ms=None if gone_for is None else NOW - gone_for,
            pinned_since_ms=() if pin_age is None else (NOW - pin_age,),
        )
    )
    return history


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (deleted(), set()),
        (deleted(referenced=True), {Kind.MISSING_OBJECT}),
        (deleted(stamp_age=GRACE - 1), {Kind.TAKEN_EARLY}),
        (deleted(gone_for=GRACE), set()),
        (deleted(gone_for=GRACE - 1), {Kind.TAKEN_EARLY}),
        (deleted(gone_for=GRACE, pin_age=GRACE - 1), set()),
        (deleted(gone_for=GRACE, pin_age=GRACE), {Kind.TAKEN_EARLY}),
    ],
    ids=["orphan", "referenced", "R6 young orphan", "R7 dereferenced", "R7 in its grace", "R7 new pin", "R7 old pin"],
)
def test_r6_r7_an_object_goes_when_nobody_can_need_it(history: SimHistory, expected: set[Kind]) -> None:
    assert kinds(history) == expected


def test_r6_a_commit_is_refused_only_for_an_object_that_is_older_than_the_grace() -> None:
    for age, put_age, expected in (
        (GRACE, GRACE - 1, set()),
        (MINUTE, MINUTE - 1, {Kind.PROBLEM}),
        (MINUTE, 0, set()),
    ):
        history = SimHistory()
        refused = RefusedObject(
            object_key="blob",
            at_ms=1,
            store_ms=NOW,
            stamp_ms=NOW - age,
            put_ms=NOW - put_age,
            horizon_ms=NOW - 10,
        )
        history.refused.append(refused)
        assert kinds(history) == expected


def test_in_the_end_the_bucket_holds_exactly_what_is_referenced() -> None:
    left = Leftovers(partitions={}, objects={"a": b"", "b": b""}, referenced=frozenset({"a", "b"}))
    assert kinds(SimHistory(is_tidied=True), left) == set()
    assert kinds(SimHistory(is_tidied=True), replace(left, referenced=frozenset({"a"}))) == {Kind.GARBAGE}
    assert kinds(SimHistory(is_tidied=True), replace(left, objects={"a": b""})) == {Kind.MISSING_OBJECT}
    assert kinds(SimHistory(), replace(left, objects={"a": b""})) == set(), "garbage is no fault before that"


def test_in_the_end_nothing_is_due() -> None:
    log = {at: record("a", age=60 * MINUTE) for at in range(10)}
    for rules, expected in (
        (TopicRules(retention_ms=90 * MINUTE, retention_bytes=BYTES + 1), set()),
        (TopicRules(retention_ms=30 * MINUTE), {Kind.GARBAGE}),
        (TopicRules(retention_bytes=BYTES), {Kind.GARBAGE}),
        (TopicRules(deletes=False, retention_ms=30 * MINUTE), set()),
    ):
        history = SimHistory(rules=rules, is_tidied=True, tidied={KEY: state(log, (0, 4), (5, 9))})
        assert kinds(history, Leftovers(partitions={}, objects={}, store_ms=NOW)) == expected
    unreadable = SimHistory(is_tidied=True, tidied={KEY: state(log, (0, 9), unreadable=("old-0: torn",))})
    assert kinds(unreadable) == {Kind.BAD_OBJECT}
