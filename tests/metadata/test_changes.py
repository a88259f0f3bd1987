"""The hub of change notifications: bounded, never blocking, and never silent about what was lost."""

from __future__ import annotations

import asyncio

from streamhouse.metadata.changes import ChangeHub
from streamhouse.metadata.contract import Change, ChangeKind


def change(name: str) -> Change:
    return Change(kind=ChangeKind.TOPICS, name=name)


async def test_every_subscriber_gets_every_change_in_order() -> None:
    hub = ChangeHub()
    async with hub.subscribe() as one, hub.subscribe() as two:
        for name in ("a", "b", "c"):
            hub.publish(change(name))
        for subscriber in (one, two):
            assert [(await anext(subscriber)).name for _ in range(3)] == ["a", "b", "c"]


async def test_a_change_before_the_subscription_is_not_delivered() -> None:
    hub = ChangeHub()
    hub.publish(change("early"))
    async with hub.subscribe() as subscriber:
        hub.publish(change("late"))
        assert (await anext(subscriber)).name == "late"


async def test_a_waiting_subscriber_wakes() -> None:
    hub = ChangeHub()
    async with hub.subscribe() as subscriber:
        waiter = asyncio.ensure_future(anext(subscriber))
        await asyncio.sleep(0)
        assert not waiter.done()
        hub.publish(change("a"))
        assert (await waiter).name == "a"


async def test_a_subscriber_that_falls_behind_gets_one_any_instead() -> None:
    hub = ChangeHub(max_queue=3)
    async with hub.subscribe() as slow, hub.subscribe() as quick:
        for name in ("a", "b", "c", "d"):
            hub.publish(change(name))
            if name != "d":
                await anext(quick)
        assert (await anext(slow)).kind is ChangeKind.ANY
        assert (await anext(quick)).name == "d"
        hub.publish(change("e"))
        assert (await anext(slow)).name == "e"


async def test_an_overflow_never_grows_the_queue_past_its_bound() -> None:
    hub = ChangeHub(max_queue=3)
    async with hub.subscribe() as slow:
        for index in range(100):
            hub.publish(change(str(index)))
        hub.close()
        assert len([one async for one in slow]) <= 3


async def test_closing_ends_a_subscription_after_what_it_still_holds() -> None:
    hub = ChangeHub()
    async with hub.subscribe() as subscriber:
        hub.publish(change("last"))
        hub.close()
        assert [one.name async for one in subscriber] == ["last"]


async def test_closing_wakes_a_waiting_subscriber() -> None:
    hub = ChangeHub()
    async with hub.subscribe() as subscriber:
        waiter = asyncio.ensure_future(anext(subscriber, None))
        await asyncio.sleep(0)
        hub.close()
        assert await waiter is None


async def test_a_subscription_to_a_closed_hub_is_over_at_once() -> None:
    hub = ChangeHub()
    hub.close()
    async with hub.subscribe() as subscriber:
        assert [one async for one in subscriber] == []


async def test_leaving_a_subscription_unsubscribes() -> None:
    hub = ChangeHub()
    async with hub.subscribe() as subscriber:
        pass
    hub.publish(change("unheard"))
    hub.close()
    waiter = asyncio.ensure_future(anext(subscriber))
    await asyncio.sleep(0)
    assert not waiter.done()
    waiter.cancel()
