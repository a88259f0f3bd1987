"""The leases of one agent: each beginning has one end, and store, table and owner stay in step (R2, R20)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from fleet import FAST, Fleet, fleet_story

from streamhouse.cluster.contract import HealthState, Loss
from streamhouse.metadata.contract import (
    AcquireVerdict,
    Holder,
    Lease,
    LeaseKey,
)


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
        gained = a.owner.gained
        unwound: list[int] = []

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


def test_what_the_owner_drops_while_it_is_handed_over_is_led_again() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=6)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.owner.flush_s = 1.0
        (b,) = await fleet.start("b")

        def leaving() -> set[LeaseKey]:
            return {key for key in topic.partition_keys() if a.owner.history[key][-1] == "losing"}

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


def test_what_cannot_be_flushed_is_lost_here_and_led_elsewhere() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=8)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.owner.cannot_flush.update(topic.partition_keys())
        (b,) = await fleet.start("b")
        await fleet.settled()
        assert b.partitions
        assert {key for key, _ in a.owner.losses} == b.partitions
        assert {reason for _, reason in a.owner.losses} == {Loss.NOT_FLUSHED}

    fleet_story(story)


def test_at_most_64_leases_open_at_a_time() -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = fleet.make("a")
        opening: list[int] = []
        gained = a.owner.gained

        async def counted(lease: Lease) -> None:
            opening.append(len(a.owner.opening) + 1)
            await gained(lease)

        a.owner.gained = counted  # type: ignore[method-assign]
        a.owner.gained_s = 0.1
        await fleet.topic(partitions=100)
        await a.member.start()
        await fleet.settled()
        assert max(opening) == 64
        assert len(a.owner.open) == 150

    fleet_story(story)


def test_a_key_that_is_held_or_being_acquired_is_not_acquired_again() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=1, group="elsewhere")
        (key,) = topic.partition_keys()
        (a,) = await fleet.start("a")
        await fleet.settled()
        holdings, before = a.member._holdings, a.link.calls["acquire_leases"]
        first, second = await asyncio.gather(holdings.acquire([key]), holdings.acquire([key]))
        assert (list(first.values()), second) == ([AcquireVerdict.ACQUIRED], {})
        assert await holdings.acquire([key]) == {}
        assert a.link.calls["acquire_leases"] == before + 1

    fleet_story(story)


def test_a_renewal_that_is_refused_ends_the_leadership_with_its_reason() -> None:
    async def story(fleet: Fleet) -> None:
        taken, gone = [(await fleet.topic(name, partitions=1)).partition_keys()[0] for name in ("taken", "gone")]
        (a,) = await fleet.start("a", timings=dataclasses.replace(FAST, assign_interval_ms=600_000))
        await fleet.settled()
        a.link.deaf = True
        leadership = a.member.lease_table.get(taken)
        assert leadership is not None
        mine = Holder(agent_id="a", incarnation=a.incarnation, wal_id=fleet.ids.uuid())
        rival = Holder(agent_id="b", incarnation=fleet.ids.uuid(), wal_id=fleet.ids.uuid())
        await fleet.store.release_leases(mine, [leadership.held])
        await fleet.store.acquire_leases(rival, [taken], ttl_ms=60_000)
        await fleet.store.delete_topic(gone.topic_id)
        await a.member._holdings.renew()
        assert dict(a.owner.losses) == {taken: Loss.FENCED, gone: Loss.GONE}

    fleet_story(story)


def test_r20_a_refused_renewal_says_nothing_about_a_lease_whose_transfer_is_under_way() -> None:
    async def story(fleet: Fleet) -> None:
        (key,) = (await fleet.topic(partitions=1)).partition_keys()
        (a,) = await fleet.start("a", timings=dataclasses.replace(FAST, assign_interval_ms=600_000))
        await fleet.settled()
        a.link.deaf = True
        leadership = a.member.lease_table.get(key)
        assert leadership is not None

        async def transfer_begins() -> None:
            mine = Holder(agent_id="a", incarnation=a.incarnation, wal_id=fleet.ids.uuid())
            await fleet.store.release_leases(mine, [leadership.held])
            a.member.lease_table.doubt(leadership)

        a.link.before("renew_leases", transfer_begins)
        await a.member._holdings.renew()
        assert a.owner.losses == []
        assert a.member.lease_table.is_current(leadership)

    fleet_story(story)
