"""One look at agents, topics and leases: when it comes, what it is compared with, and what follows from it."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from fleet import DEFAULT, FAST, Fleet, Phantom, fleet_story

from streamhouse.cluster import reconciler
from streamhouse.cluster.assigner import DRAINING
from streamhouse.cluster.contract import Loss
from streamhouse.cluster.lease_table import Stage
from streamhouse.cluster.reconciler import MAX_LEAVING
from streamhouse.metadata.contract import (
    AgentInfo,
    HeldLease,
    Holder,
    LeaseKey,
    SlotKey,
)


def test_s3_16_with_the_default_timings_a_death_is_noticed_when_it_becomes_one() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=6)
        a, b = await fleet.start("a", "b", timings=DEFAULT)
        await fleet.settled()
        await asyncio.sleep(100)
        (registered,) = [agent for agent in await fleet.store.list_agents() if agent.agent_id == "a"]
        await a.kill()
        await fleet.settled()
        dead_at_ms = registered.last_heartbeat_ms + DEFAULT.liveness_timeout_ms
        assert fleet.clock.wall_ms() - dead_at_ms < 500, "not at the next interval"
        assert len(b.owner.open) == 56

    fleet_story(story)


def test_a_newcomer_is_noticed_at_the_next_heartbeat() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=12)
        seldom = dataclasses.replace(FAST, assign_interval_ms=600_000)
        await fleet.start("a", timings=seldom)
        await fleet.settled()
        await asyncio.sleep(5)  # past its first looks
        (b,) = await fleet.start("b", timings=seldom)
        await fleet.until(lambda: bool(b.partitions), within_s=3)
        await fleet.settled()

    fleet_story(story)


@pytest.mark.parametrize("what", ["partition", "slot"])
def test_a_lease_that_its_holder_releases_is_taken_at_once(what: str) -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=2)
        key = topic.partition_keys()[0] if what == "partition" else SlotKey(3)
        stranger = Holder(agent_id="stranger", incarnation=fleet.ids.uuid(), wal_id=fleet.ids.uuid())
        await fleet.store.acquire_leases(stranger, [key], ttl_ms=600_000)
        (a,) = await fleet.start("a", timings=dataclasses.replace(FAST, assign_interval_ms=600_000))
        await fleet.until(lambda: len(a.owner.open) == 51)
        await asyncio.sleep(5)
        assert key not in a.owner.open
        await fleet.store.release_leases(stranger, [HeldLease(key=key, epoch=1)])
        await fleet.until(lambda: key in a.owner.open, within_s=0.5)

    fleet_story(story)


def test_what_is_held_only_since_the_look_is_not_judged_by_it() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        await fleet.settled()
        created = []

        async def meanwhile() -> None:
            topic = await fleet.topic("newer-than-the-look", partitions=2)
            created.append(topic)
            await a.member._holdings.acquire(topic.partition_keys())

        a.link.before("list_leases", meanwhile)
        await fleet.until(lambda: bool(created))
        await fleet.settled()
        assert a.owner.losses == []
        assert set(a.owner.open.values()) == {1}

    fleet_story(story)


def test_r1_an_agent_that_took_the_lease_ends_the_leadership_here() -> None:
    """The lease is taken by hand, as an operator may do: the next tick or renewal finds out."""

    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=2)
        (a,) = await fleet.start("a")
        await fleet.settled()
        key = topic.partition_keys()[0]
        rival = Holder(agent_id="b", incarnation=fleet.ids.uuid(), wal_id=fleet.ids.uuid())
        mine = a.member.lease_table.get(key)
        assert mine is not None
        await fleet.store.release_leases(
            Holder(agent_id="a", incarnation=a.incarnation, wal_id=fleet.ids.uuid()), [mine.held]
        )
        await fleet.store.acquire_leases(rival, [key], ttl_ms=60_000)
        assert a.valid(key), "it cannot know yet; the store's fence protects the log meanwhile"
        await fleet.until(lambda: not a.valid(key), within_s=3)
        assert a.owner.losses == [(key, Loss.FENCED)]

    fleet_story(story)


def test_the_next_look_comes_at_the_interval_or_when_something_is_due() -> None:
    async def story(fleet: Fleet) -> None:
        seldom = dataclasses.replace(FAST, assign_interval_ms=600_000, heartbeat_interval_ms=5_000)
        (a,) = await fleet.start("a", timings=seldom)
        await fleet.settled()
        looks = a.member._reconciler
        assert looks.next_look_s(600.0) == 600.0
        b = Phantom(fleet, "b")
        await b.appear()
        await b.vanish()
        await looks.see_agents()
        due_s = looks.next_look_s(600.0)
        assert 0 < due_s <= FAST.liveness_timeout_ms / 1000 + 0.01, "b may be dead then"
        a.member._holdings.reopening.failed(SlotKey(3), now_ms=fleet.clock.boot_ms())
        assert looks.next_look_s(600.0) == 0.2, "a lease that did not open may be tried again"

    fleet_story(story)


def test_an_agent_that_joins_leaves_or_goes_is_a_reason_to_look() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a", timings=dataclasses.replace(FAST, heartbeat_interval_ms=5_999))
        await fleet.settled()
        looks, b = a.member._reconciler, Phantom(fleet, "b")
        assert not await looks.see_agents()
        await b.appear()
        assert await looks.see_agents()
        assert not await looks.see_agents(), "a heartbeat is no news"
        (info,) = [agent for agent in await fleet.store.list_agents() if agent.agent_id == "b"]
        await b.vanish()
        leaving = AgentInfo(
            agent_id="b", incarnation=b.holder.incarnation, listeners=info.listeners, metadata={DRAINING: True}
        )
        await fleet.store.register_agent(leaving)
        assert await looks.see_agents()
        await fleet.store.deregister_agent("b", b.holder.incarnation)
        assert await looks.see_agents()

    fleet_story(story)


def test_at_most_64_leases_are_handed_over_at_a_time() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=160)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.owner.flush_s = 0.5
        closing: list[int] = []
        losing = a.owner.losing

        async def counted(key: LeaseKey) -> int:
            closing.append(sum(leadership.stage is Stage.CLOSING for leadership in a.member.lease_table))
            return await losing(key)

        a.owner.losing = counted  # type: ignore[method-assign]
        (b,) = await fleet.start("b")
        await fleet.settled()
        assert len(b.owner.open) > MAX_LEAVING
        assert max(closing) == MAX_LEAVING

    fleet_story(story)


def test_what_the_store_has_in_this_agents_name_and_it_should_not_lead_is_given_back() -> None:
    """This is the state after an acquisition whose answer was lost, while the ring changed."""

    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=2, group="elsewhere")
        (a,) = await fleet.start("a")
        await fleet.settled()
        mine = Holder(agent_id="a", incarnation=a.incarnation, wal_id=fleet.ids.uuid())
        await fleet.store.acquire_leases(mine, topic.partition_keys(), ttl_ms=600_000)
        await asyncio.sleep(3)
        assert [(await fleet.lease(key)).expired for key in topic.partition_keys()] == [True, True]
        assert not a.partitions

    fleet_story(story)


def test_ended_transfers_are_deleted_when_operators_have_had_time_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "_KEEP_TRANSFERS_MS", 20_000)
    monkeypatch.setattr(reconciler, "_SWEEP_INTERVAL_MS", 5_000)

    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        await fleet.start("a")
        await fleet.settled()
        await fleet.start("b")
        await fleet.settled()
        await asyncio.sleep(10)
        assert await fleet.store.list_transfers(open_only=False)
        await asyncio.sleep(20)
        assert await fleet.store.list_transfers(open_only=False) == []

    fleet_story(story)
