"""A single node: the directory's lock is the lease (R2)."""

from __future__ import annotations

import asyncio

import pytest
from fleet import FAST, SINGLE, SLOTS, Fleet, fleet_story

from streamhouse.cluster.contract import HealthState, Mode
from streamhouse.core.errors import ConfigError, DurabilityMismatch
from streamhouse.metadata.contract import NEVER_MS, Durability


def test_r2_everything_is_open_when_start_returns_and_never_expires() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        (a,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        assert set(a.owner.open) == set(topic.partition_keys()) | SLOTS
        assert {lease.expires_at_ms for lease in await fleet.store.list_leases()} == {NEVER_MS}
        fleet.clock.pause(30 * 86_400_000)
        a.link.down = True
        await asyncio.sleep(60)
        assert all(a.valid(key) for key in a.owner.open)
        assert a.owner.losses == []
        assert a.link.calls["renew_leases"] == 0

    fleet_story(story, durability=Durability.WAL)


def test_r2_one_epoch_a_start_after_a_crash_and_after_a_stop() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (first,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        assert set(first.owner.open.values()) == {1}
        await first.kill()
        (second,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        assert set(second.owner.open.values()) == {2}
        await second.member.stop()
        assert all(history == ["gained 2", "losing"] for history in second.owner.history.values())
        (renamed,) = await fleet.start("another-name", timings=SINGLE, mode=Mode.SINGLE_NODE)
        assert set(renamed.owner.open.values()) == {3}

    fleet_story(story, durability=Durability.WAL)


def test_r2_new_and_deleted_topics_are_noticed_at_once() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        topic = await fleet.topic(partitions=4)
        took_s = await fleet.until(lambda: a.partitions == set(topic.partition_keys()))
        assert took_s < 0.5
        await fleet.store.delete_topic(topic.topic_id)
        await fleet.until(lambda: not a.partitions, within_s=0.5)

    fleet_story(story, durability=Durability.WAL)


def test_a_partition_that_does_not_open_does_not_keep_the_others_from_it() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        bad = topic.partition_keys()[0]

        (a,) = fleet.make("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        a.owner.cannot_open[bad] = 2
        await a.member.start()
        assert len(a.owner.open) == 53
        assert a.member.health.state is HealthState.DEGRADED
        await fleet.until(lambda: bad in a.owner.open)
        assert a.member.health.state is HealthState.OK

    fleet_story(story, durability=Durability.WAL)


def test_r2_a_foreign_wal_is_refused_and_nothing_is_left_running() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        fleet.wal_id = fleet.ids.uuid()
        with pytest.raises(DurabilityMismatch):
            await fleet.start("a", timings=SINGLE, mode=Mode.SINGLE_NODE)
        assert fleet.agents[0].owner.history == {}

    fleet_story(story, durability=Durability.WAL)


def test_r2_a_fleet_with_leases_for_ever_is_refused() -> None:
    async def story(fleet: Fleet) -> None:
        with pytest.raises(ConfigError):
            fleet.make("a", timings=SINGLE, mode=Mode.FLEET)
        with pytest.raises(ConfigError):
            fleet.make("a", timings=FAST, mode=Mode.SINGLE_NODE)

    fleet_story(story)
