"""The judge of a storm's compacted logs finds each record that should be there, and each that should not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from storm_history import Promises, value_of
from storm_keyed import KeyedRecord, found_in, is_tombstone, judge_keyed, key_of, keyed_record, not_cleaned

from streamhouse.wire.records import build_batch

RETENTION_MS = 1_000
VALUES = [value_of("agent.1", number) for number in range(24)]
PROMISED = dict(enumerate(VALUES))
PROMISES = Promises(sent={value: 100 * number for number, value in enumerate(VALUES)}, acknowledged={"one": PROMISED})
WRITTEN = found_in(build_batch([keyed_record(value, 7) for value in VALUES]))
COMPACTED = [record for record in WRITTEN if all(newer.key != record.key for newer in WRITTEN[record.offset + 1 :])]
OWN_TOMBSTONE = next(record for record in WRITTEN if record.offset == 5)


def problems_of(records: list[KeyedRecord], *, now_ms: int = 0, later: Promises = PROMISES, begins_at: int = 0) -> str:
    verdict = judge_keyed(
        records,
        PROMISED,
        partition="one",
        later=later,
        begins_at=begins_at,
        now_ms=now_ms,
        delete_retention_ms=RETENTION_MS,
    )
    return "\n".join(verdict.problems)


def test_a_record_says_its_key_and_whether_it_is_a_tombstone() -> None:
    assert [record.value for record in WRITTEN] == VALUES
    assert [(record.key, record.is_tombstone) for record in WRITTEN] == [
        (key_of(value), is_tombstone(value)) for value in VALUES
    ]
    assert OWN_TOMBSTONE.is_tombstone
    assert WRITTEN[0].key == OWN_TOMBSTONE.key != WRITTEN[8].key


def test_a_log_with_the_newest_record_of_each_key_has_no_problem() -> None:
    assert problems_of(WRITTEN) == problems_of(COMPACTED) == ""
    assert problems_of(COMPACTED[3:], begins_at=COMPACTED[3].offset) == ""
    assert not_cleaned(COMPACTED, below=99) == []
    assert len(COMPACTED) < len(WRITTEN)


def test_old_tombstones_may_be_gone_and_no_others() -> None:
    without = [record for record in COMPACTED if record is not OWN_TOMBSTONE]
    sent_ms = PROMISES.sent[OWN_TOMBSTONE.value]
    assert "the newest of agent.1-0; it is not there" in problems_of(without, now_ms=sent_ms + RETENTION_MS - 1)
    assert problems_of(without, now_ms=sent_ms + RETENTION_MS) == ""


def test_a_key_may_be_gone_by_a_tombstone_whose_writer_was_killed_before_its_answer() -> None:
    newest = next(record for record in COMPACTED if record.key.startswith("busy") and not record.is_tombstone)
    without = [record for record in COMPACTED if record is not newest]
    tombstone = next(value for number in range(3, 400, 8) if key_of(value := value_of("agent.2", number)) == newest.key)
    sent_ms = PROMISES.sent[newest.value]
    later = replace(PROMISES, sent={**PROMISES.sent, tombstone: sent_ms + 1})
    assert "not there" in problems_of(without, now_ms=10**9)
    assert "not there" in problems_of(without, now_ms=sent_ms + RETENTION_MS, later=later)
    assert problems_of(without, now_ms=sent_ms + RETENTION_MS + 1, later=later) == ""
    elsewhere = replace(later, acknowledged={**PROMISES.acknowledged, "other": {0: tombstone}})
    assert "not there" in problems_of(without, now_ms=10**9, later=elsewhere)


def test_an_older_record_of_a_key_whose_tombstone_is_gone_is_told() -> None:
    log = [WRITTEN[0], *(record for record in COMPACTED if record is not OWN_TOMBSTONE)]
    verdict = judge_keyed(
        log, PROMISED, partition="one", later=PROMISES, begins_at=0, now_ms=10**9, delete_retention_ms=RETENTION_MS
    )
    assert verdict.problems == []
    assert verdict.resurrected == ["agent.1-0 is there at 0, and its tombstone at 5 is not"]


@pytest.mark.parametrize(
    ("log", "problem"),
    [
        ([record for record in COMPACTED if record.key != "agent.1-1"], "the newest of agent.1-1; it is not there"),
        ([*COMPACTED, replace(COMPACTED[-1], offset=30)], "stands at 23 and at 30"),
        ([*COMPACTED[1:], COMPACTED[0]], "offset 5 follows 23"),
        ([replace(COMPACTED[0], value=COMPACTED[0].value + "x"), *COMPACTED[1:]], "was never sent"),
        ([replace(COMPACTED[0], key="busy-0"), *COMPACTED[1:]], "was never sent"),
        ([replace(COMPACTED[0], is_tombstone=False), *COMPACTED[1:]], "was never sent"),
        ([replace(COMPACTED[0], offset=4), *COMPACTED[1:]], "was acknowledged at 4; there is"),
        ([replace(COMPACTED[-1], offset=40)], "was acknowledged at 23; it is at 40"),
    ],
)
def test_every_broken_promise_of_a_compacted_log_is_found(log: list[KeyedRecord], problem: str) -> None:
    assert problem in problems_of(log)


def test_a_key_that_is_there_twice_was_not_cleaned() -> None:
    assert "agent.1-0 is there at 0 and at 5" in not_cleaned(WRITTEN, below=6)
    assert not_cleaned(WRITTEN, below=3) == []
