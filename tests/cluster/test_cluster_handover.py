"""Stories of transfers that do not go smoothly (R20)."""

from __future__ import annotations

import asyncio

import pytest
from fleet import Fleet, Phantom, fleet_story

from streamhouse.cluster.contract import Loss
from streamhouse.metadata.contract import Transfer, TransferState


@pytest.mark.parametrize("method", ["initiate_transfer", "accept_transfer", "complete_transfer", "acquire_leases"])
@pytest.mark.parametrize("effect", ["with", "without"])
def test_r20_a_lost_reply_on_the_way_moves_the_lease_once(method: str, effect: str) -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=8)
        (a,) = await fleet.start("a")
        await fleet.settled()
        (b,) = await fleet.start("b")
        for agent in (a, b):
            (agent.link.lose_reply if effect == "with" else agent.link.fail)(method, times=3)
        await fleet.settled()
        for key in topic.partition_keys():
            assert (await fleet.lease(key)).epoch == (2 if key in b.partitions else 1)
        assert a.owner.losses == b.owner.losses == []
        if method == "accept_transfer":
            assert b.member.stats.adopted == len(b.owner.open), "an acceptance whose reply was lost counts"
        if method == "complete_transfer":
            assert a.member.stats.transfers_completed == len(b.owner.open), "sent again until there was a verdict"
            assert a.member.stats.released == 0

    fleet_story(story)


def test_r20_the_guard_is_invalid_while_a_completion_has_no_answer() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=1)
        (a,) = await fleet.start("a")
        await fleet.settled()
        key = topic.partition_keys()[0]
        during: list[bool] = []

        async def look() -> None:
            during.append(a.valid(key))

        a.link.before("complete_transfer", look)
        b = Phantom(fleet, "b")
        await fleet.store.alter_topic_configs(topic.topic_id, set_configs={"agent.group": "b-only"})
        await b.appear(b.accept, group="b-only")
        await fleet.until(lambda: bool(during))
        assert during == [False]
        await fleet.until(lambda: not a.partitions)
        assert (await fleet.lease(key)).agent_id == "b"
        assert a.owner.history[key] == ["gained 1", "losing"]
        await b.vanish()

    fleet_story(story)


def test_a_rejected_offer_changes_nothing() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=8)
        (a,) = await fleet.start("a")
        await fleet.settled()
        b = Phantom(fleet, "b")
        await b.appear(b.reject)
        await asyncio.sleep(30)
        assert b.offered, "it was asked"
        assert len(b.offered) < 200, "and not all the time"
        assert a.partitions == set(topic.partition_keys())
        assert all(a.owner.history[key] == ["gained 1"] for key in topic.partition_keys()), "served throughout"
        await b.vanish()

    fleet_story(story)


def test_an_offer_without_an_answer_changes_nothing_and_is_withdrawn() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=8)
        (a,) = await fleet.start("a")
        await fleet.settled()
        b = Phantom(fleet, "b")
        await b.appear()
        await asyncio.sleep(30)
        assert b.offered
        assert len(b.offered) < 40, "who does not answer is asked about one lease at a time"
        assert a.partitions == set(topic.partition_keys())
        ended = [t for t in await fleet.store.list_transfers(open_only=False) if t.state is not TransferState.PENDING]
        assert {(t.state, t.reason) for t in ended} == {(TransferState.REJECTED, "the target did not answer")}
        await b.vanish()

    fleet_story(story)


def test_r20_a_target_that_dies_after_it_accepted_leaves_the_lease_here_at_a_new_epoch() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=8)
        (a,) = await fleet.start("a")
        await fleet.settled()
        b = Phantom(fleet, "b")
        asked: set[object] = set()

        async def accept_and_die(transfer: Transfer) -> None:
            await b.accept(transfer)
            asked.add(transfer.key)

        async def die() -> None:
            await b.vanish()
            await fleet.store.deregister_agent("b", b.holder.incarnation)

        a.link.before("complete_transfer", die)
        await b.appear(accept_and_die)
        await fleet.until(lambda: bool(asked))
        await fleet.settled()
        assert a.partitions == set(topic.partition_keys())
        taken_back = [key for key, history in a.owner.history.items() if "losing" in history]
        assert taken_back
        for key in taken_back:
            assert a.owner.history[key] == ["gained 1", "losing", "gained 2"]
        assert a.owner.losses == []

    fleet_story(story)


def test_a_watermark_that_is_not_where_the_sender_thinks_stops_the_transfer() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        a.owner.next_offset = 7  # the store says 0
        (b,) = await fleet.start("b")
        await fleet.until(lambda: bool(a.member.stats.transfers_refused))
        await asyncio.sleep(1)
        assert a.partitions == set(topic.partition_keys()), "taken back at once: nobody else would take it"
        a.owner.next_offset = 0
        await fleet.settled()
        assert b.partitions

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


def test_an_offer_is_not_judged_by_a_list_from_before_it() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=8)
        (a,) = await fleet.start("a")
        await fleet.settled()

        async def meanwhile() -> None:
            await fleet.start("b")
            await fleet.until(lambda: bool(a.member._exchange._offers), within_s=1.5)

        a.link.after("list_transfers", meanwhile)
        await fleet.until(lambda: len(fleet.agents) == 2)
        await fleet.settled()
        assert a.member.stats.transfers_completed > 0
        assert a.member.stats.transfers_refused == 0

    fleet_story(story)


def test_lost_notifications_only_slow_a_transfer_down() -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=8)
        (a,) = await fleet.start("a")
        await fleet.settled()
        (b,) = await fleet.start("b")
        a.link.deaf = b.link.deaf = True
        await fleet.settled()
        assert b.partitions
        assert a.owner.losses == []

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
