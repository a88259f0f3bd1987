"""When retention is due (S3.2), and how compaction is slowed down."""

from __future__ import annotations

import asyncio

import pytest

from streamhouse.maintenance.upkeep.pace import Pace
from streamhouse.maintenance.upkeep.schedule import RetentionDue, RetentionSchedule

LIMIT = 1_600


def schedule(*, took_ms: int = 0) -> RetentionSchedule:
    made = RetentionSchedule(interval_ms=10_000, due_ms=1_000)
    made.begins(RetentionDue.ALL, now_ms=1_000, committed_bytes=500)
    made.ended(now_ms=1_000 + took_ms, took_ms=took_ms)
    return made


def test_s3_2_a_pass_over_all_is_due_at_its_interval_whatever_was_written() -> None:
    fresh = RetentionSchedule(interval_ms=10_000, due_ms=1_000)
    assert fresh.due(now_ms=999, committed_bytes=0, limit_bytes=None) is None
    assert fresh.due(now_ms=1_000, committed_bytes=0, limit_bytes=None) is RetentionDue.ALL
    passed = schedule()
    assert passed.due(now_ms=10_999, committed_bytes=10**9, limit_bytes=None) is None
    assert passed.due(now_ms=11_000, committed_bytes=500, limit_bytes=None) is RetentionDue.ALL


def test_s3_2_an_early_pass_is_due_once_a_thirty_second_of_the_smallest_size_limit_was_committed() -> None:
    assert schedule().due(now_ms=2_000, committed_bytes=550, limit_bytes=LIMIT) is None
    assert schedule().due(now_ms=2_000, committed_bytes=551, limit_bytes=LIMIT) is RetentionDue.LIMITED


def test_an_early_pass_does_not_put_off_the_pass_over_all() -> None:
    made = schedule()
    made.begins(RetentionDue.LIMITED, now_ms=9_000, committed_bytes=10**6)
    made.ended(now_ms=9_000, took_ms=0)
    assert made.due(now_ms=10_999, committed_bytes=10**6, limit_bytes=LIMIT) is None
    assert made.due(now_ms=11_000, committed_bytes=10**6, limit_bytes=LIMIT) is RetentionDue.ALL


@pytest.mark.parametrize(("took_ms", "pause_ms"), [(0, 50), (10, 50), (100, 100)])
def test_early_passes_have_a_distance_that_grows_with_what_a_pass_takes(took_ms: int, pause_ms: int) -> None:
    ended_ms = 1_000 + took_ms
    assert schedule(took_ms=took_ms).due(now_ms=ended_ms + pause_ms - 1, committed_bytes=10**9, limit_bytes=0) is None
    assert schedule(took_ms=took_ms).due(now_ms=ended_ms + pause_ms, committed_bytes=10**9, limit_bytes=0) is not None


def test_after_a_failure_all_is_tried_again_after_the_pause_and_nothing_before() -> None:
    made = schedule()
    made.failed(now_ms=2_000, pause_ms=3_000)
    assert made.due(now_ms=4_999, committed_bytes=10**9, limit_bytes=0) is None
    assert made.due(now_ms=5_000, committed_bytes=0, limit_bytes=None) is RetentionDue.ALL


def test_where_writes_wait_for_retention_the_next_pass_comes_at_once_unless_passes_fail() -> None:
    made = schedule(took_ms=100)
    assert made.due(now_ms=1_101, committed_bytes=500, limit_bytes=LIMIT, writes_wait=True) is RetentionDue.LIMITED
    made.failed(now_ms=2_000, pause_ms=3_000)
    assert made.due(now_ms=2_001, committed_bytes=10**9, limit_bytes=LIMIT, writes_wait=True) is None
    made.ended(now_ms=2_500, took_ms=0)
    assert made.due(now_ms=2_501, committed_bytes=500, limit_bytes=LIMIT, writes_wait=True) is RetentionDue.LIMITED


async def test_compaction_reads_no_faster_than_its_rate() -> None:
    """Without a rate the clock of the event loop would not move at all."""
    time = asyncio.get_running_loop().time
    pace = Pace(bytes_per_second=1_000, must_wait=lambda: False)
    began_s = time()
    for _ in range(4):
        await pace.spend(50)
    assert time() - began_s >= 0.2


async def test_compaction_pauses_while_writes_wait_for_room_and_goes_on_afterwards() -> None:
    looks = 0

    def must_wait() -> bool:
        nonlocal looks
        looks += 1
        return looks < 4

    pace = Pace(bytes_per_second=10**9, must_wait=must_wait)
    await pace.spend(1)
    assert looks == 4
    assert pace.paused_s > 0


async def test_an_agent_that_is_always_full_still_compacts() -> None:
    looks = 0

    def always() -> bool:
        nonlocal looks
        looks += 1
        return True

    pace = Pace(bytes_per_second=10**9, must_wait=always)
    task = asyncio.create_task(pace.spend(1))
    async with asyncio.timeout(60):
        await task
    assert 1 < looks <= 200
