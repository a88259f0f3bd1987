"""When retention is due (S3.2), and how compaction is slowed down."""

from __future__ import annotations

import asyncio

from streamhouse.maintenance.upkeep.pace import Pace
from streamhouse.maintenance.upkeep.schedule import RetentionSchedule

LIMIT = 1_600


def schedule() -> RetentionSchedule:
    made = RetentionSchedule(interval_ms=10_000, due_ms=1_000)
    made.passed(now_ms=1_000, written_bytes=500)
    return made


def test_s3_2_a_pass_is_due_at_its_interval_whatever_was_written() -> None:
    fresh = RetentionSchedule(interval_ms=10_000, due_ms=1_000)
    assert not fresh.is_due(now_ms=999, written_bytes=0, limit_bytes=None)
    assert fresh.is_due(now_ms=1_000, written_bytes=0, limit_bytes=None)
    passed = schedule()
    assert not passed.is_due(now_ms=10_999, written_bytes=10**9, limit_bytes=None)
    assert passed.is_due(now_ms=11_000, written_bytes=500, limit_bytes=None)


def test_s3_2_a_pass_is_due_once_a_thirty_second_of_the_smallest_size_limit_was_written() -> None:
    assert not schedule().is_due(now_ms=2_000, written_bytes=550, limit_bytes=LIMIT)
    assert schedule().is_due(now_ms=2_000, written_bytes=551, limit_bytes=LIMIT)


def test_a_tiny_limit_does_not_make_passes_without_end() -> None:
    assert not schedule().is_due(now_ms=1_049, written_bytes=10**9, limit_bytes=0)
    assert schedule().is_due(now_ms=1_050, written_bytes=10**9, limit_bytes=0)


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
