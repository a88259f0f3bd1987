"""What a vacuum tells: objects and bytes by kind, what they cost no longer, and a bounded number of problems."""

from __future__ import annotations

import json

import pytest

from streamhouse.core.errors import StoreDenied
from streamhouse.core.limits import GIB
from streamhouse.maintenance.vacuum.candidates import Garbage, GarbageCause, ObjectKind
from streamhouse.maintenance.vacuum.summary import TOLD_PROBLEMS, Tally, VacuumSummary
from streamhouse.objectstore.metering import USD_PER_GIB_MONTH


def garbage(kind: ObjectKind, cause: GarbageCause, size_bytes: int) -> Garbage:
    return Garbage(key="k", kind=kind, cause=cause, size_bytes=size_bytes)


FOUND = [
    garbage(ObjectKind.SEGMENT, GarbageCause.NEVER_REFERENCED, 1 * GIB),
    garbage(ObjectKind.SEGMENT, GarbageCause.DEREFERENCED, 2 * GIB),
    garbage(ObjectKind.SEGMENT, GarbageCause.DEREFERENCED, 3 * GIB),
    garbage(ObjectKind.PROBE, GarbageCause.LEFT_BEHIND, 0),
]


def test_s2_45_objects_and_bytes_are_counted_by_cause_and_kind() -> None:
    summary = VacuumSummary()
    summary.count_garbage(FOUND[:2])
    summary.count_garbage(FOUND[2:])
    assert summary.garbage[GarbageCause.DEREFERENCED, ObjectKind.SEGMENT] == Tally(objects=2, size_bytes=5 * GIB)
    assert summary.by_kind() == {
        ObjectKind.SEGMENT: Tally(objects=3, size_bytes=6 * GIB),
        ObjectKind.PROBE: Tally(objects=1, size_bytes=0),
    }
    assert summary.total == Tally(objects=4, size_bytes=6 * GIB)


def test_s2_45_the_saving_is_the_storage_price_of_what_was_deleted() -> None:
    summary = VacuumSummary(undecided=Tally(objects=1, size_bytes=100 * GIB))
    summary.count_garbage(FOUND)
    assert summary.saved_usd_month == pytest.approx(6 * USD_PER_GIB_MONTH)


def test_failures_are_counted_in_full_and_told_in_part() -> None:
    summary = VacuumSummary()
    summary.count_failures({f"key-{number}": StoreDenied("a legal hold") for number in range(TOLD_PROBLEMS + 5)})
    summary.tell("one more")
    assert (summary.failed, len(summary.problems)) == (TOLD_PROBLEMS + 5, TOLD_PROBLEMS)
    assert "key-0 could not be deleted: a legal hold" in summary.problems[0]


def test_the_summary_is_plain_json() -> None:
    summary = VacuumSummary(plan_only=True)
    summary.count_garbage(FOUND)
    read = json.loads(json.dumps(summary.as_json()))
    assert (read["objects"], read["size_bytes"], read["plan_only"]) == (4, 6 * GIB, True)
    assert {"cause": "dereferenced", "kind": "segment", "objects": 2, "size_bytes": 5 * GIB} in read["garbage"]
