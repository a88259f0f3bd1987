"""How soon an agent looks again: a new topic does not wait, a burst is one look, and looking stays a small share."""

from __future__ import annotations

import asyncio

import pytest
from fleet import SINGLE, Fleet, FleetAgent, fleet_story

from streamhouse.cluster.contract import Mode
from streamhouse.cluster.pace import TimeBudget
from streamhouse.metadata.contract import Durability, Topic


async def led(fleet: Fleet, agent: FleetAgent, topic: Topic) -> float:
    began_s = asyncio.get_running_loop().time()
    while not agent.partitions >= set(topic.partition_keys()):
        assert asyncio.get_running_loop().time() - began_s < 60
        await asyncio.sleep(0.001)
    return asyncio.get_running_loop().time() - began_s


def test_topics_created_one_after_the_other_do_not_wait_for_a_pause() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        waits_s = [await led(fleet, a, await fleet.topic(f"topic-{number}", partitions=2)) for number in range(20)]
        assert max(waits_s) < 0.02, "a look and an acquisition, two calls each way"

    fleet_story(story, durability=Durability.WAL)


def test_topics_created_at_once_are_few_looks() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        before = a.member.stats.ticks
        topics = [await fleet.topic(f"topic-{number}", partitions=2) for number in range(50)]
        for topic in topics:
            await led(fleet, a, topic)
        assert a.member.stats.ticks - before <= 5

    fleet_story(story, durability=Durability.WAL)


def test_a_slow_acquisition_is_no_reason_to_rest() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)

        async def slow() -> None:
            await asyncio.sleep(1.0)

        a.link.before("acquire_leases", slow)
        await led(fleet, a, await fleet.topic("slow", partitions=2))
        assert await led(fleet, a, await fleet.topic("next", partitions=2)) < 0.02

    fleet_story(story, durability=Durability.WAL)


def test_looking_takes_a_tenth_of_the_time_however_much_changes() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        a.link.latency_s = 0.05  # so that a look takes 0.1 s
        before = a.member.stats.ticks
        began_s = fleet.now_s()
        number = 0
        while fleet.now_s() - began_s < 60:
            await fleet.topic(f"topic-{number}", partitions=1)
            number += 1
            await asyncio.sleep(0.05)
        looks = a.member.stats.ticks - before
        assert 60 <= looks <= 75, "a burst of ten, then one each second"

    fleet_story(story, durability=Durability.WAL)


def time_budget(*, longest_s: float = 30.0) -> TimeBudget:
    return TimeBudget(share=0.1, burst_s=1.0, longest_s=longest_s)


def test_a_burst_is_free_until_the_budget_is_empty() -> None:
    budget = time_budget()
    for _ in range(10):
        assert budget.wait_s(now_s=5.0) == 0
        budget.spent(0.1, now_s=5.0)
    assert budget.wait_s(now_s=5.0) == pytest.approx(0.0, abs=1e-9)
    budget.spent(0.1, now_s=5.0)
    assert budget.wait_s(now_s=5.0) == pytest.approx(1.0)


def test_in_the_long_run_it_is_a_share_of_the_time() -> None:
    budget, now_s, spent_s = time_budget(), 0.0, 0.0
    while now_s < 1000:
        now_s += budget.wait_s(now_s=now_s) + 0.1
        budget.spent(0.1, now_s=now_s)
        spent_s += 0.1
    assert 90 < spent_s < 103


def test_what_is_not_used_is_not_saved_beyond_the_burst() -> None:
    budget = time_budget()
    budget.spent(0.0, now_s=0.0)
    budget.spent(1.5, now_s=10_000.0)
    assert budget.wait_s(now_s=10_000.0) == pytest.approx(5.0)
    assert budget.wait_s(now_s=10_003.0) == pytest.approx(2.0)


def test_no_wait_is_longer_than_the_longest() -> None:
    budget = time_budget(longest_s=2.0)
    budget.spent(500.0, now_s=0.0)
    assert budget.wait_s(now_s=0.0) == pytest.approx(2.0)
    assert budget.wait_s(now_s=2.0) == pytest.approx(0.0, abs=1e-9)
