"""R20: the store's clock never goes back, whatever happens to the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import AcquireVerdict, Holder, NewTopic
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.store import SqliteMetadata

NOON = 1_700_000_000_000
HOUR = 3_600_000
IDS = SeededRandomness(3)


def new_store(path: Path, clock: ManualClock) -> SqliteMetadata:
    return SqliteMetadata(path, clock=clock, randomness=SeededRandomness(1))


def test_r20_it_is_the_wall_clock_as_long_as_that_goes_forward() -> None:
    machine = ManualClock(NOON)
    clock = StoreClock(machine)
    assert clock.now_ms(0) == NOON
    machine.advance(1)
    assert clock.now_ms(0) == NOON + 1
    machine.jump_wall(HOUR)
    assert clock.now_ms(0) == NOON + 1 + HOUR


def test_r20_what_another_process_stored_counts() -> None:
    clock = StoreClock(ManualClock(NOON))
    assert clock.now_ms(NOON + 500) == NOON + 500
    assert clock.now_ms(0) == NOON + 500


def test_r20_set_back_it_goes_on_at_15_16_of_full_speed_until_the_wall_clock_has_caught_up() -> None:
    machine = ManualClock(NOON)
    clock = StoreClock(machine)
    clock.now_ms(0)
    machine.jump_wall(-HOUR)
    assert clock.now_ms(0) == NOON
    seen = []
    for _ in range(160):
        machine.advance(3)  # small steps lose nothing to rounding
        seen.append(clock.now_ms(0))
    assert seen == sorted(seen)
    assert seen[-1] == NOON + 450
    machine.advance(16 * HOUR - 480)
    assert clock.now_ms(0) == NOON + 15 * HOUR
    machine.advance(10)
    assert clock.now_ms(0) == NOON + 15 * HOUR + 10


async def test_r20_a_restart_after_the_wall_clock_went_back(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with new_store(path, ManualClock(NOON)) as store:
        await store.allocate_producer_ids(1)  # any write stores the clock
    machine = ManualClock(NOON - HOUR)
    async with new_store(path, machine) as store:
        assert await store.now_ms() == NOON


async def test_r20_a_lease_does_not_live_longer_because_a_clock_was_set_back(tmp_path: Path) -> None:
    machine = ManualClock(NOON)
    topic_id = TopicId(IDS.uuid())
    first = Holder(agent_id="a", incarnation=IDS.uuid(), wal_id=IDS.uuid())
    second = Holder(agent_id="b", incarnation=IDS.uuid(), wal_id=IDS.uuid())
    async with new_store(tmp_path / "metadata.db", machine) as store:
        topic = await store.create_topic(NewTopic(topic_id=topic_id, name="orders", partition_count=1, configs={}))
        await store.acquire_leases(first, topic.partition_keys(), ttl_ms=10_000)
        machine.advance(9_999)
        assert await store.now_ms() == NOON + 9_999
        machine.jump_wall(-HOUR)
        (held,) = await store.acquire_leases(second, topic.partition_keys(), ttl_ms=10_000)
        assert held.verdict is AcquireVerdict.HELD
        machine.advance(2)
        (taken,) = await store.acquire_leases(second, topic.partition_keys(), ttl_ms=10_000)
        assert taken.verdict is AcquireVerdict.ACQUIRED
        assert taken.lease is not None
        assert taken.lease.epoch == 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_r20_two_processes_whose_clocks_disagree_share_the_later(tmp_path: Path, order: tuple[int, int]) -> None:
    clocks = [ManualClock(NOON), ManualClock(NOON + HOUR)]
    async with (
        new_store(tmp_path / "metadata.db", clocks[order[0]]) as one,
        new_store(tmp_path / "metadata.db", clocks[order[1]]) as other,
    ):
        await one.allocate_producer_ids(1)
        await other.allocate_producer_ids(1)
        assert await one.now_ms() == await other.now_ms() == NOON + HOUR
