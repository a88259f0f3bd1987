"""Stories of a fleet: joining, dying, topics that come and go, groups of agents."""

from __future__ import annotations

import asyncio

from fleet import SLOTS, Fleet, fleet_story

from streamhouse.cluster.contract import HealthState


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


def test_a_fleet_that_comes_and_goes_always_finds_its_balance() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=16)
        await fleet.start("a", "b")
        for number in range(6):
            (newcomer,) = await fleet.start(f"n{number}")
            await asyncio.sleep(0.3 * number)
            if number % 2:
                await newcomer.kill()
            elif number:
                await newcomer.member.stop()
            await asyncio.sleep(1.7 * number)
        await fleet.settled()

    fleet_story(story)
