"""Stories of a fleet: joining, dying, leaving."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from fleet import DEFAULT, FAST, SLOTS, Fleet, fleet_story

from streamhouse.cluster.contract import HealthState
from streamhouse.metadata.contract import HeldLease, Holder, SlotKey


def test_s3_7_one_agent_leads_everything() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=5)
        (alone,) = await fleet.start("a")
        await fleet.settled()
        assert set(alone.owner.open) == set(topic.partition_keys()) | SLOTS
        assert all(alone.valid(key) for key in alone.owner.open)
        assert alone.member.health.state is HealthState.OK

    fleet_story(story)


def test_s1_20_three_agents_share_and_a_fourth_gets_its_part() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=24)
        first = await fleet.start("a", "b", "c")
        await fleet.settled()
        assert all(agent.partitions for agent in first)
        before = {key: fleet.leaders(key) for key in topic.partition_keys()}
        (fourth,) = await fleet.start("d")
        await fleet.settled()
        moved = {key for key in topic.partition_keys() if fleet.leaders(key) != before[key]}
        assert fourth.partitions
        assert moved == fourth.partitions, "only what the fourth got has moved"
        assert all(agent.owner.losses == [] for agent in fleet.agents), "handed over, never lost"
        assert sum(agent.member.stats.transfers_completed for agent in first) >= len(fourth.owner.open)
        assert all(agent.member.stats.transfers_refused == 0 for agent in first)
        assert fourth.member.stats.adopted == len(fourth.owner.open)

    fleet_story(story)


def test_s3_16_a_dead_agents_partitions_are_taken_over_within_ten_seconds() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=24)
        a, b, c = await fleet.start("a", "b", "c")
        await fleet.settled()
        orphans, epochs = a.partitions, {key: (await fleet.lease(key)).epoch for key in a.partitions}
        await a.kill()
        took_s = await fleet.settled()
        assert took_s <= 10, "virtual seconds, with the timings of the fast profile"
        assert orphans <= b.partitions | c.partitions
        for key in orphans:
            assert (await fleet.lease(key)).epoch == epochs[key] + 1

    fleet_story(story)


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
def test_what_somebody_releases_is_taken_at_once(what: str) -> None:
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


def test_s3_17_a_graceful_stop_hands_everything_over() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=24)
        a, b, c = await fleet.start("a", "b", "c")
        await fleet.settled()
        a.owner.flush_s = 0.1
        leaving, moved_before = set(a.owner.open), a.member.stats.transfers_completed
        began_s = fleet.now_s()
        await a.member.stop()
        assert fleet.now_s() - began_s < 1, "virtual seconds: the flush and a few calls, no waiting for intervals"
        assert a.owner.losses == []
        assert a.member.stats.transfers_completed - moved_before == len(leaving)
        assert a.member.stats.released == 0
        assert [agent.agent_id for agent in await fleet.store.list_agents()] == ["b", "c"]
        await fleet.until(lambda: leaving <= b.owner.open.keys() | c.owner.open.keys(), within_s=1)
        assert a.member.health.state is HealthState.STOPPED
        await fleet.settled()

    fleet_story(story)


def test_s3_17_leases_are_renewed_while_a_flush_takes_longer_than_they_last() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.owner.flush_s = 3 * FAST.lease_ttl_ms / 1000  # type: ignore[operator]
        await a.member.stop()
        assert a.owner.losses == []
        assert [a.owner.history[key] for key in topic.partition_keys()] == [["gained 1", "losing"]] * 4
        assert all(lease.expired for lease in await fleet.store.list_leases())

    fleet_story(story)


def test_s3_17_the_last_agent_releases_and_the_next_start_takes_at_once() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        await a.member.stop()
        (again,) = await fleet.start("a")
        took_s = await fleet.settled()
        assert took_s < 1
        assert set(again.owner.open.values()) == {2}

    fleet_story(story)


def test_s3_17_what_has_not_been_opened_is_not_waited_for() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        a.owner.gained_s = 10_000.0
        await fleet.until(lambda: bool(a.owner.opening))
        began_s = fleet.now_s()
        await a.member.stop()
        assert fleet.now_s() - began_s < 1
        assert all(lease.expired for lease in await fleet.store.list_leases())
        assert a.owner.open == {}
        assert a.owner.opening == set()

    fleet_story(story)


def test_s3_17_an_acquisition_that_the_stop_cut_short_is_given_back() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        reached = asyncio.Event()

        async def never_answer() -> None:
            reached.set()
            await asyncio.sleep(1)

        a.link.after("acquire_leases", never_answer)
        await reached.wait()
        await a.member.stop()
        leases = await fleet.store.list_leases()
        assert len(leases) == 54
        assert all(lease.expired for lease in leases)

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


def test_s3_10_a_new_topic_is_picked_up_at_once_and_a_leaderless_one_is_not() -> None:
    async def story(fleet: Fleet) -> None:
        a, b = await fleet.start("a", "b")
        await fleet.settled()
        topic = await fleet.topic("late", partitions=6)
        free = await fleet.topic("free", partitions=6, leaderless=True)
        took_s = await fleet.until(lambda: a.partitions | b.partitions == set(topic.partition_keys()))
        assert took_s < 0.5, "a notification, not the interval"
        grown = await fleet.store.grow_topic(topic.topic_id, 9)
        await fleet.until(lambda: a.partitions | b.partitions == set(grown.partition_keys()))
        assert not (a.partitions | b.partitions) & set(free.partition_keys())

    fleet_story(story)


def test_s3_10_a_new_topic_is_picked_up_without_notifications_too() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.link.deaf = True
        topic = await fleet.topic("late", partitions=6)
        await fleet.until(lambda: a.partitions == set(topic.partition_keys()), within_s=3)

    fleet_story(story)


def test_r19_a_deleted_topic_is_lost_and_its_successor_is_another() -> None:
    async def story(fleet: Fleet) -> None:
        a, b = await fleet.start("a", "b")
        topic = await fleet.topic("orders", partitions=6)
        await fleet.settled()
        await fleet.store.delete_topic(topic.topic_id)
        await fleet.until(lambda: not a.partitions and not b.partitions, within_s=0.5)
        assert {str(reason) for agent in (a, b) for _, reason in agent.owner.losses} == {"gone"}
        assert len(a.owner.losses) + len(b.owner.losses) == 6
        again = await fleet.topic("orders", partitions=6)
        await fleet.settled()
        assert a.partitions | b.partitions == set(again.partition_keys())

    fleet_story(story)


def test_s3_5_groups_do_not_mix() -> None:
    async def story(fleet: Fleet) -> None:
        shared = await fleet.topic("shared", partitions=8)
        hot = await fleet.topic("hot", partitions=8, group="ingest")
        a, b = await fleet.start("a", "b")
        (c,) = await fleet.start("c", group="ingest")
        await fleet.settled()
        assert a.partitions | b.partitions == set(shared.partition_keys())
        assert set(c.owner.open) == set(hot.partition_keys())
        await c.kill()
        await fleet.until(lambda: a.member.health.state is HealthState.DEGRADED)
        assert "no live agent for 8" in a.member.health.reason
        assert not a.partitions & set(hot.partition_keys())

    fleet_story(story)


def test_s3_5_a_topic_that_changes_its_group_moves_there() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        (c,) = await fleet.start("c", group="ingest")
        await fleet.settled()
        assert a.partitions == set(topic.partition_keys())
        await fleet.store.alter_topic_configs(topic.topic_id, set_configs={"agent.group": "ingest"})
        await fleet.until(lambda: c.partitions == set(topic.partition_keys()), within_s=1)
        assert a.owner.losses == []

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
