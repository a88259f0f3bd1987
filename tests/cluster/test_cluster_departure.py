"""A graceful stop: what is held is handed over or released, and then the agent deregisters (S3.17)."""

from __future__ import annotations

import asyncio
from collections import Counter

from fleet import FAST, Fleet, Phantom, fleet_story

from streamhouse.cluster.assigner import DRAINING
from streamhouse.cluster.contract import HealthState, Loss


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


def test_s3_17_leaving_while_the_first_choice_is_dead_finds_another() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=12)
        a, b, c = await fleet.start("a", "b", "c")
        await fleet.settled()
        leaving = set(a.owner.open)
        await b.kill()  # the others do not know yet
        await a.member.stop()
        await fleet.until(lambda: leaving <= c.owner.open.keys(), within_s=0.5)
        assert a.member.stats.released == 0, "even what the ring would have given to b was handed to c"
        assert a.owner.losses == []
        await fleet.settled()

    fleet_story(story)


def test_s3_17_two_agents_leaving_at_once_do_not_hand_to_each_other() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=12)
        a, b, c = await fleet.start("a", "b", "c")
        await fleet.settled()
        await asyncio.gather(a.member.stop(), b.member.stop())
        await fleet.settled(within_s=1)
        assert len(c.owner.open) == 62
        assert a.owner.losses == b.owner.losses == []

    fleet_story(story)


def test_s3_17_leaving_while_the_store_is_away_ends_with_nothing_held() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.link.down = True
        await a.member.stop()
        assert a.owner.open == {}
        assert len(a.member.lease_table) == 0

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


def test_a_departing_agent_says_so_before_it_offers_anything() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=6)
        a, _ = await fleet.start("a", "b")
        await fleet.settled()
        known: list[object] = []

        async def look() -> None:
            (mine,) = [agent for agent in await fleet.store.list_agents() if agent.agent_id == "a"]
            known.append(mine.metadata.get(DRAINING))

        a.link.before("initiate_transfer", look)
        await a.member.stop()
        assert known == [True]

    fleet_story(story)


def test_a_departing_agent_hands_over_before_it_deregisters() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=6)
        a, _ = await fleet.start("a", "b")
        await fleet.settled()
        a.owner.flush_s = 1.0
        left: list[int] = []

        async def look() -> None:
            held = [lease for lease in await fleet.store.list_leases(agent_id="a") if not lease.expired]
            left.append(len(held) + len(a.owner.open))

        a.link.before("deregister_agent", look)
        await a.member.stop()
        assert left == [0]

    fleet_story(story)


def test_a_lease_that_three_agents_refuse_is_released() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=3)
        (a,) = await fleet.start("a")
        await fleet.settled()
        others = [Phantom(fleet, agent_id) for agent_id in ("w", "x", "y", "z")]

        async def appear() -> None:  # just now, so that nothing was offered to them before
            for each in others:
                await each.appear(each.reject)

        a.link.before("list_agents", appear)
        await a.member.stop()
        asked = Counter(transfer.key for each in others for transfer in each.offered)
        assert {asked[key] for key in topic.partition_keys()} == {3}, "not all four of them"
        assert [a.owner.history[key] for key in topic.partition_keys()] == [["gained 1", "losing"]] * 3
        assert a.member.stats.released == 53
        for each in others:
            await each.vanish()

    fleet_story(story)


def test_an_agent_whose_id_another_process_has_hands_nothing_over() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        first, b = await fleet.start("a", "b")
        await fleet.settled()
        await fleet.make("a")[0].member.start()
        taken_before, offered = b.member.stats.adopted, first.link.calls["initiate_transfer"]
        await first.member.stop()
        assert first.member.health.state is not HealthState.OK
        assert first.owner.open == {}
        assert {reason for _, reason in first.owner.losses} <= {Loss.SUPERSEDED, Loss.STOPPED}
        assert (b.member.stats.adopted, first.link.calls["initiate_transfer"]) == (taken_before, offered)

    fleet_story(story)
