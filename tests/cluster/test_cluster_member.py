"""The membership of one agent: its health, what ends it, and what it tells others of itself."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from fleet import FAST, Fleet, fleet_story

from streamhouse.cluster.contract import Health, HealthState
from streamhouse.core.errors import AgentSuperseded, MetadataUnavailable, StoreUnavailable


def test_s1_13_a_second_process_under_the_same_agent_id_ends_the_first() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (first,) = await fleet.start("a")
        await fleet.settled()
        (second,) = await fleet.start("a")
        await fleet.until(lambda: first.member.health.state is HealthState.FAILED)
        assert first.owner.open == {}
        assert len(first.owner.losses) == 54
        assert isinstance(first.fatal[0], AgentSuperseded)
        assert len(first.fatal) == 1
        await fleet.settled()
        assert set(second.owner.open.values()) == {2}
        calls = sum(first.link.calls.values())
        await asyncio.sleep(60)
        assert sum(first.link.calls.values()) == calls, "it has fallen silent"

    fleet_story(story)


def test_r20_an_agent_that_another_process_deregistered_ends() -> None:
    """Its run is over for the store, which takes nothing from it any more: only a new one can go on."""

    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        a, b = await fleet.start("a", "b")
        await fleet.settled()
        await fleet.store.deregister_agent("a", a.incarnation)
        await fleet.until(lambda: a.member.health.state is HealthState.FAILED, within_s=10)
        assert not a.partitions
        await fleet.until(lambda: len(b.partitions) == 4, within_s=20)

    fleet_story(story)


def test_an_agent_whose_row_was_removed_by_hand_registers_again() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        a, b = await fleet.start("a", "b")
        await fleet.settled()
        await fleet.store._write(lambda tx: tx.run("DELETE FROM agents WHERE agent_id = 'a'"))
        await asyncio.sleep(10)
        assert [agent.agent_id for agent in await fleet.store.list_agents(alive_within_ms=6_000)] == ["a", "b"]
        await fleet.settled()
        assert a.partitions
        assert b.partitions

    fleet_story(story)


def test_a_defect_ends_the_member_loudly() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()

        async def defect() -> None:
            raise RuntimeError("a defect")

        a.link.before("renew_leases", defect)
        await fleet.until(lambda: a.member.health.state is HealthState.FAILED)
        assert a.owner.open == {}
        assert str(a.fatal[0]) == "a defect"

    fleet_story(story)


def test_a_stop_that_is_cut_short_ends_everything() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.owner.flush_s = 10_000.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await a.member.stop()
        assert a.owner.open == {}
        assert len(a.member.lease_table) == 0
        assert a.member.health.state is HealthState.STOPPED

    fleet_story(story)


def test_describe_shows_what_an_operator_asks_for() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=2)
        a, _b = await fleet.start("a", "b")
        await fleet.settled()
        view = a.member.describe()
        assert view.live_agents == ("a", "b")
        assert view.wanted == len(view.leases) == len(a.owner.open)
        assert all(lease.valid and lease.stage == "serving" for lease in view.leases)
        assert {lease.topic for lease in view.leases if lease.key in topic.partition_keys()} <= {"orders"}
        assert all(lease.valid_for_ms is not None and 0 < lease.valid_for_ms <= 5_400 for lease in view.leases)
        assert a.member.agent is not None
        assert a.member.agent.node_id >= 0

    fleet_story(story)


def test_an_agent_should_lead_what_the_ring_gives_it_and_what_is_too_new_to_be_in_the_ring() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=8)
        a, b = fleet.make("a", "b", timings=dataclasses.replace(FAST, assign_interval_ms=600_000))
        assert not a.member.should_lead(topic.partition_keys()[0]), "it has not started"
        await a.member.start()
        await b.member.start()
        await fleet.settled()
        await asyncio.sleep(5)  # past its first looks
        for key in topic.partition_keys():
            assert a.member.should_lead(key) is (key in a.partitions)
        a.link.deaf = b.link.deaf = True
        (late,) = (await fleet.topic("late", partitions=1)).partition_keys()
        assert a.member.should_lead(late)
        assert b.member.should_lead(late)
        await fleet.until(lambda: len(fleet.leaders(late)) == 1, within_s=0.5)
        await a.member.stop()
        assert not a.member.should_lead(late)

    fleet_story(story)


def test_what_other_loops_report_shows_in_the_health_until_it_works_again() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        await fleet.settled()
        error = StoreUnavailable("no bucket")
        a.member.report("uploads", error)
        assert a.member.health == Health(state=HealthState.DEGRADED, reason=f"uploads: {error}")
        assert [(outage.what, outage.problem) for outage in a.member.outages()] == [("the object store", str(error))]
        a.member.report("uploads", None)
        assert a.member.health == Health(state=HealthState.OK)
        await asyncio.sleep(2)
        assert a.member.outages() == []

    fleet_story(story)


def test_a_start_without_a_store_raises_and_leaves_nothing_running() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = fleet.make("a")
        a.link.down = True
        with pytest.raises(MetadataUnavailable):
            await a.member.start()
        calls = sum(a.link.calls.values())
        await asyncio.sleep(60)
        assert sum(a.link.calls.values()) == calls
        assert a.member.health.state is HealthState.STARTING
        a.link.down = False
        await a.member.start()
        await fleet.settled()

    fleet_story(story)


def test_the_addresses_that_were_bound_late_are_registered_beside_the_others() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = fleet.make("a")
        await a.member.start(listeners={"admin": "a:8080"})
        (registered,) = await fleet.store.list_agents()
        assert registered.listeners == {"kafka": "a:9092", "admin": "a:8080"}

    fleet_story(story)


def test_a_member_may_be_stopped_again_and_a_key_that_it_does_not_hold_given_up() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=1)
        (a,) = await fleet.start("a")
        await fleet.settled()
        await a.member.stop()
        calls = sum(a.link.calls.values())
        await a.member.stop()
        await a.member.stop(graceful=False)
        a.member.give_up(topic.partition_keys()[0], "too late")
        assert sum(a.link.calls.values()) == calls
        assert a.owner.losses == []
        assert a.member.health.state is HealthState.STOPPED

    fleet_story(story)
