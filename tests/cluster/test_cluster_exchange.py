"""Transfers, outgoing and incoming, when calls fail, answers are late or the other side goes (R20)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from fleet import FAST, Fleet, FleetAgent, Phantom, fleet_story

from streamhouse.cluster.contract import Loss
from streamhouse.cluster.exchange import Handed
from streamhouse.cluster.lease_table import Leadership, Stage
from streamhouse.metadata.contract import (
    Holder,
    Transfer,
    TransferState,
)


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
        assert a.partitions == set(topic.partition_keys()), "taken back at once: no other agent would take it"
        a.owner.next_offset = 0
        await fleet.settled()
        assert b.partitions

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


async def led_by_a(fleet: Fleet) -> tuple[FleetAgent, Leadership]:
    topic = await fleet.topic(partitions=1)
    (a,) = await fleet.start("a", timings=dataclasses.replace(FAST, assign_interval_ms=600_000))
    await fleet.settled()
    leadership = a.member.lease_table.get(topic.partition_keys()[0])
    assert leadership is not None
    return a, leadership


def test_an_offer_that_does_not_reach_the_store_leaves_the_lease_served_here() -> None:
    async def story(fleet: Fleet) -> None:
        a, leadership = await led_by_a(fleet)
        a.link.fail("initiate_transfer", times=1_000)
        assert await a.member._exchange.hand_over(leadership, "b") is Handed.REFUSED
        assert leadership.stage is Stage.SERVING
        assert leadership.valid()
        assert a.link.calls["initiate_transfer"] > 1, "tried again while there was time"

    fleet_story(story)


def test_r20_an_offer_of_a_lease_that_another_agent_has_ends_the_leadership_here() -> None:
    async def story(fleet: Fleet) -> None:
        a, leadership = await led_by_a(fleet)
        a.link.deaf = True
        mine = Holder(agent_id="a", incarnation=a.incarnation, wal_id=fleet.ids.uuid())
        rival = Holder(agent_id="c", incarnation=fleet.ids.uuid(), wal_id=fleet.ids.uuid())
        await fleet.store.release_leases(mine, [leadership.held])
        await fleet.store.acquire_leases(rival, [leadership.key], ttl_ms=60_000)
        assert await a.member._exchange.hand_over(leadership, "b") is Handed.MOVED
        assert a.owner.losses == [(leadership.key, Loss.FENCED)]

    fleet_story(story)


def test_an_agent_that_did_not_answer_is_left_alone_for_a_while_and_one_that_refused_is_not() -> None:
    async def story(fleet: Fleet) -> None:
        a, leadership = await led_by_a(fleet)
        partners, now_ms = a.member._exchange.partners, fleet.clock.boot_ms
        silent, unwilling = Phantom(fleet, "silent"), Phantom(fleet, "unwilling")
        await silent.appear(group="elsewhere")
        await unwilling.appear(unwilling.reject, group="elsewhere")
        assert await a.member._exchange.hand_over(leadership, "unwilling") is Handed.REFUSED
        assert await a.member._exchange.hand_over(leadership, "silent") is Handed.REFUSED
        assert not partners.may_try("silent", now_ms=now_ms())
        assert partners.may_try("unwilling", now_ms=now_ms())
        assert partners.may_try("silent", now_ms=now_ms() + FAST.transfer_timeout_ms)
        assert leadership.stage is Stage.SERVING
        await silent.vanish()
        await unwilling.vanish()

    fleet_story(story)


def test_an_agent_that_stops_rejects_what_it_is_offered() -> None:
    async def story(fleet: Fleet) -> None:
        a, leadership = await led_by_a(fleet)
        (b,) = await fleet.start("b", group="elsewhere")
        b.member._exchange.stopping = True
        assert await a.member._exchange.hand_over(leadership, "b") is Handed.REFUSED
        (transfer,) = await fleet.store.list_transfers(open_only=False)
        assert (transfer.state, transfer.reason) == (TransferState.REJECTED, "b is stopping")

    fleet_story(story)
