"""Stories of things going wrong around an agent: pauses, lost replies, outages (R1, R20)."""

from __future__ import annotations

import asyncio
import dataclasses

from fleet import FAST, SLOTS, Fleet, fleet_story

from streamhouse.cluster.contract import HealthState, Loss
from streamhouse.metadata.contract import Holder


def test_r20_an_agent_that_sleeps_past_its_leases_trusts_nothing_when_it_wakes() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        rival = Holder(agent_id="b", incarnation=fleet.ids.uuid(), wal_id=fleet.ids.uuid())
        a.link.deaf = True
        fleet.clock.pause(7_000)  # nothing of a runs in between: SIGSTOP
        assert not any(a.valid(key) for key in a.owner.open), "before it has had a chance to do anything"
        await fleet.store.acquire_leases(rival, topic.partition_keys(), ttl_ms=60_000)
        await fleet.until(lambda: len(a.owner.losses) == 54)
        await asyncio.sleep(10)
        assert a.partitions == set(), "they are the rival's"
        assert [key for key, _ in a.owner.losses if key in topic.partition_keys()] == topic.partition_keys()
        assert set(a.owner.open) == SLOTS, "what no agent took is taken again"
        assert set(a.owner.open.values()) == {2}

    fleet_story(story)


def test_r20_a_lease_in_doubt_by_the_clock_comes_back_only_at_a_new_epoch() -> None:
    """Locally expired, in the store not yet: were it opened again at its old epoch, an old commit could still land."""

    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=3)
        (a,) = await fleet.start("a", timings=dataclasses.replace(FAST, margin_ms=3_000))
        await fleet.settled()
        a.link.down = True
        await fleet.until(lambda: len(a.owner.losses) == 53)
        assert not (await fleet.lease(topic.partition_keys()[0])).expired
        a.link.down = False
        await fleet.settled()
        assert {reason for _, reason in a.owner.losses} == {Loss.EXPIRED}
        assert set(a.owner.open.values()) == {2}

    fleet_story(story)


def test_a_metadata_outage_longer_than_the_leases_loses_each_exactly_once() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        agents = await fleet.start("a", "b")
        await fleet.settled()
        for agent in agents:
            agent.link.down = True
        await asyncio.sleep(60)
        for agent in agents:
            assert agent.owner.open == {}
            assert agent.member.health.state is HealthState.DEGRADED
        assert sum(len(agent.owner.losses) for agent in agents) == 54
        for agent in agents:
            agent.link.down = False
        await fleet.settled()
        for key in topic.partition_keys():
            assert len(fleet.leaders(key)) == 1
        await fleet.until(lambda: all(agent.member.health.state is HealthState.OK for agent in agents))

    fleet_story(story)


def test_an_outage_shorter_than_the_leases_is_not_noticed() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        for _ in range(5):
            a.link.down = True
            await asyncio.sleep(2.5)
            a.link.down = False
            await asyncio.sleep(3)
        assert a.owner.losses == []
        assert set(a.owner.open.values()) == {1}

    fleet_story(story)


def test_a_lost_renewal_reply_costs_nothing() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.link.lose_reply("renew_leases", times=2)
        await asyncio.sleep(20)
        assert a.owner.losses == []
        assert set(a.owner.open.values()) == {1}

    fleet_story(story)


def test_a_store_that_hangs_is_a_store_that_is_away() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.link.latency_s = 10_000.0
        await fleet.until(lambda: a.owner.open == {}, within_s=10)
        assert len(a.owner.losses) == 54
        a.link.latency_s = 0.001
        await fleet.settled()

    fleet_story(story)
