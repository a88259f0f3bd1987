"""Stories of things going wrong: pauses, rivals, lost replies, outages (R1, R2, R20)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from fleet import FAST, SLOTS, Fleet, fleet_story

from streamhouse.cluster.contract import HealthState, Loss
from streamhouse.core.errors import AgentSuperseded
from streamhouse.metadata.contract import Holder, Lease


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
        assert set(a.owner.open) == SLOTS, "what nobody took is taken again"
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


def test_s3_10_a_failed_acquire_is_tried_again() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        a.link.fail("acquire_leases", times=3)
        a.link.lose_reply("acquire_leases", times=2)
        await fleet.settled()
        assert a.link.calls["acquire_leases"] >= 6
        assert set(a.owner.open.values()) == {1}, "taken once, by a call whose reply was lost, and extended since"

    fleet_story(story)


def test_a_lease_that_does_not_open_is_given_back_and_tried_again() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        bad = topic.partition_keys()[0]
        (a,) = await fleet.start("a")
        a.owner.cannot_open[bad] = 3
        await fleet.until(lambda: len(a.owner.open) == 53)
        await fleet.until(lambda: a.member.health.state is HealthState.DEGRADED)
        assert "disk problem" in a.member.health.reason
        await fleet.settled()
        assert a.owner.open[bad] == 4, "a new leadership each time"
        assert a.owner.losses == []
        await fleet.until(lambda: a.member.health.state is HealthState.OK)

    fleet_story(story)


def test_a_lease_lost_while_it_opens_is_not_opened() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=1)
        (a,) = await fleet.start("a")
        a.owner.gained_s = 30.0
        await fleet.until(lambda: len(a.owner.opening) == 51)
        a.link.down = True
        await fleet.until(lambda: len(a.owner.losses) == 51)
        assert a.owner.open == {}
        a.owner.gained_s = 0.0
        a.link.down = False
        await fleet.settled()

    fleet_story(story)


def test_a_lease_whose_answer_came_too_late_is_not_opened() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=1)
        (a,) = await fleet.start("a")
        gained = a.owner.gained
        valid = []

        async def check(lease: Lease) -> None:
            valid.append(a.valid(lease.key))
            await gained(lease)

        async def sleep() -> None:
            fleet.clock.pause(7_000)

        a.owner.gained = check  # type: ignore[method-assign]
        a.link.after("acquire_leases", sleep)
        await fleet.settled()
        assert len(valid) == 51
        assert all(valid)

    fleet_story(story)


@pytest.mark.parametrize("acquired_at_once", [True, False])
def test_the_next_opening_waits_until_the_last_has_unwound(acquired_at_once: bool) -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=1)
        key = topic.partition_keys()[0]
        (a,) = fleet.make("a", timings=dataclasses.replace(FAST, assign_interval_ms=600_000))
        gained, unwound = a.owner.gained, []

        async def reluctant(lease: Lease) -> None:
            if lease.key != key or lease.epoch > 1:
                assert unwound or lease.key != key, "the first is still under way"
                await gained(lease)
                return
            a.owner.opening.add(key)
            try:
                await asyncio.sleep(10_000)
            finally:
                await asyncio.sleep(1)
                unwound.append(lease.epoch)

        a.owner.gained = reluctant  # type: ignore[method-assign]
        await a.member.start()
        await fleet.until(lambda: key in a.owner.opening)
        leadership = a.member.lease_table.get(key)
        assert leadership is not None
        a.member._holdings.end(leadership, Loss.FENCED)
        if acquired_at_once:
            await a.member._holdings.acquire([key])
        await fleet.settled(within_s=3)
        assert a.owner.open[key] == 2
        assert unwound == [1]

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


def test_an_old_renewals_answer_does_not_touch_a_new_leadership() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=1)
        key = topic.partition_keys()[0]
        (a,) = await fleet.start("a")
        await fleet.settled()

        async def meanwhile() -> None:
            a.owner.gained_s = 3.0
            del a.owner.open[key]
            a.member.give_up(key, "a test")
            await fleet.until(lambda: key in a.owner.opening, within_s=1)

        a.link.before("renew_leases", meanwhile)
        await fleet.until(lambda: key in a.owner.opening)
        await fleet.settled()
        assert a.owner.history[key] == ["gained 1", "gained 2"]
        assert a.owner.losses == []

    fleet_story(story)


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


def test_r1_somebody_who_took_the_lease_ends_the_leadership_here() -> None:
    """By hand, as an operator may: the next tick or renewal finds out."""

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


def test_r20_an_agent_that_somebody_else_deregistered_ends() -> None:
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


def test_r20_an_agent_that_signs_off_does_not_stumble_over_its_own_heartbeat() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        a, _ = await fleet.start("a", "b")
        await fleet.settled()
        a.link.after("deregister_agent", lambda: asyncio.sleep(4))  # the answer takes two heartbeats
        await a.member.stop()
        assert a.member.health.state is HealthState.STOPPED
        assert [agent.agent_id for agent in await fleet.store.list_agents()] == ["b"]

    fleet_story(story)


def test_what_the_owner_drops_by_itself_is_released_and_comes_back_at_a_new_epoch() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        key = topic.partition_keys()[0]
        guard = a.member.lease_table.guard(key)
        del a.owner.open[key]
        a.member.give_up(key, "its commit was refused")
        assert not guard.valid()
        a.member.give_up(key, "once more")
        await fleet.settled(within_s=1)
        assert a.owner.open[key] == 2
        assert a.owner.history[key] == ["gained 1", "gained 2"]
        assert not guard.valid()

    fleet_story(story)


def test_what_the_owner_drops_while_it_is_handed_over_is_led_by_somebody_again() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=6)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.owner.flush_s = 1.0
        (b,) = await fleet.start("b")
        leaving = lambda: {key for key in topic.partition_keys() if a.owner.history[key][-1] == "losing"}  # noqa: E731
        await fleet.until(lambda: bool(leaving()))
        for key in leaving():
            del a.owner.open[key]
            a.owner.cannot_flush.add(key)
            a.member.give_up(key, "its commit was refused")
        await fleet.settled()
        assert b.partitions
        assert a.owner.losses == []

    fleet_story(story)


def test_an_owner_that_fails_to_hear_of_a_loss_does_not_keep_it_from_others() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        told, record = [], a.owner.lost

        def lost(key: object, reason: Loss) -> None:
            record(key, reason)  # type: ignore[arg-type]
            told.append(key)
            if key == topic.partition_keys()[0]:
                raise OSError("cannot even close")

        a.owner.lost = lost  # type: ignore[method-assign]
        a.link.down = True
        await fleet.until(lambda: len(told) == 54)
        assert len(set(told)) == 54
        a.link.down = False
        await fleet.settled()

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
