"""How soon an agent looks again: a new topic does not wait, a burst is one look, and looking stays a small share."""

from __future__ import annotations

import asyncio

from fleet import SINGLE, Fleet, FleetAgent, fleet_story

from streamhouse.cluster.contract import Mode
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
