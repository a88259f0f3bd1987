"""What a person is told about a pass without work, and about objects that vacuum could not delete yet (S2.45)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from streamhouse.cli.commands.maintenance_reasons import (
    free_at_ms,
    nothing_to_compact,
    nothing_to_delete,
    nothing_to_retain,
    what_waits,
)
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.retention.passes import RetentionKept
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.summary import VacuumSummary
from streamhouse.metadata.contract import Pin, WaitingObjects

HOUR_MS = 3_600_000
NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00:00 UTC
GRACES = VacuumOptions(writer_grace_ms=HOUR_MS, reader_grace_ms=2 * HOUR_MS)


def compact(*, partitions: int = 0, waiting: int = 0, key_partitions: int = 0, waiting_keys: int = 0) -> str:
    return nothing_to_compact(
        partitions=partitions,
        waiting_entries=waiting,
        key_partitions=key_partitions,
        waiting_keys=waiting_keys,
        rules=CompactionRules(),
    )


def test_s2_16_compaction_says_what_its_plan_waits_for() -> None:
    assert compact() == "nothing to do: 0 partitions looked at"
    assert compact(partitions=1) == "nothing to do: 1 partition looked at; no small entry is left to compact"
    assert compact(partitions=3, waiting=1_400) == (
        "nothing to do: 3 partitions looked at; 1,400 small entries wait: compaction takes 500 in a row"
        " (--min-entries), or 2 once the oldest is older than 1h (--max-age)"
    )
    assert "; 1 small entry waits: " in compact(partitions=3, waiting=1)
    assert compact(key_partitions=2, waiting_keys=1) == (
        "nothing to do: 2 partitions looked at; 1 entry to be compacted by key waits for the topic's"
        " min.cleanable.dirty.ratio or max.compaction.lag.ms"
    )
    assert "since their last compaction" in compact(partitions=1, key_partitions=2)


def test_s3_2_retention_says_why_each_partition_keeps_its_records() -> None:
    assert nothing_to_retain({}) == "nothing to do: 0 partitions looked at"
    assert nothing_to_retain({RetentionKept.EMPTY: 1, RetentionKept.WITHIN: 2}) == (
        "nothing to do: 3 partitions looked at: 2 are within their limits, 1 has nothing in the object store"
    )
    said = nothing_to_retain({RetentionKept.HELD: 1, RetentionKept.UNLIMITED: 1_000})
    assert "1,001 partitions looked at: 1 is held back by a reader, 1,000 keep everything (no delete" in said


def test_s2_45_vacuum_says_that_nothing_old_is_garbage() -> None:
    found = VacuumSummary(horizon_ms=NOON_MS, listed=5, young=2, foreign=3)
    assert nothing_to_delete(found) == "nothing to delete: no object is older than the horizon, 2026-01-01 12:00:00 UTC"
    found.listed = 6
    assert nothing_to_delete(found).startswith("nothing to delete: 1 object is older than the horizon, 2026-01-01 12")


def test_s2_45_what_waits_is_free_when_its_last_grace_ends() -> None:
    waiting = WaitingObjects(
        objects=2, size_bytes=3_000, last_dereferenced_ms=NOON_MS - HOUR_MS, last_created_ms=NOON_MS - HOUR_MS
    )
    assert free_at_ms(WaitingObjects(), GRACES) is None
    assert free_at_ms(waiting, GRACES) == NOON_MS + HOUR_MS
    assert free_at_ms(waiting, replace(GRACES, writer_grace_ms=5 * HOUR_MS)) == NOON_MS + 4 * HOUR_MS
    assert what_waits(WaitingObjects(), GRACES, []) == []
    assert what_waits(waiting, GRACES, []) == [
        "2 objects (3,000 bytes) that the log needs no more wait: the graces end by 2026-01-01 13:00:00 UTC"
    ]


def test_r7_pins_that_hold_objects_are_named_up_to_a_limit() -> None:
    waiting = WaitingObjects(objects=2, size_bytes=3_000, pinned_objects=1, pinned_bytes=1_000)
    pins = [
        Pin(pin_id=UUID(int=number), owner=f"query-{number}", created_at_ms=NOON_MS, expires_at_ms=NOON_MS + 60_000)
        for number in range(7)
    ]
    _, said = what_waits(waiting, GRACES, pins)
    assert said.startswith(
        "1 of them (1,000 bytes) stays until these pins end: query-0 (since 2026-01-01 12:00:00 UTC, until 2026-01-01"
        " 12:01:00 UTC unless renewed), query-1"
    )
    assert said.endswith("unless renewed) and 2 more")
    assert len(what_waits(waiting, GRACES, [])) == 1
