"""What an operator reads of leases, agents and problems: every change once, and thousands of leases in one line."""

from __future__ import annotations

import asyncio
import logging

import pytest
from fleet import Fleet, fleet_story

from streamhouse.cluster.contract import HealthState, Loss
from streamhouse.cluster.lease_log import LeaseLog
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import Lease
from virtual_time import run_virtually

TOPIC = TopicId(SeededRandomness(1).uuid())


@pytest.fixture(autouse=True)
def _everything_is_heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="streamhouse")


def said(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [line for line in caplog.messages if all(word in line for word in words)]


def lease(partition: int) -> Lease:
    return Lease(
        key=PartitionKey(TOPIC, partition),
        topic="orders",
        agent_id="a",
        incarnation=None,
        epoch=1,
        acquired_at_ms=0,
        expires_at_ms=0,
        expired=False,
        high_watermark=0,
    )


def test_ten_thousand_leases_that_go_the_same_way_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        lease_log = LeaseLog("a")
        for partition in range(10_000):
            lease_log.lost(lease(partition), Loss.EXPIRED)
            lease_log.given_up(lease(partition), f"the commit at offset {partition} was refused")
        await asyncio.sleep(5)

    run_virtually(story())
    first = "orders/0, orders/1, orders/2, orders/3, orders/4 and 9995 more"
    assert caplog.messages == [
        f"a: 10000 partitions ({first}) lost (expired)",
        f"a: 10000 partitions ({first}) given up: the commit at offset 0 was refused",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_is_lost_to_a_metadata_outage_is_told_with_why_and_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=4)
        (a,) = await fleet.start("a")
        await fleet.settled()
        await asyncio.sleep(1)
        assert said(caplog, "a: 4 partitions (orders/", "and 50 coordinator slots gained")
        caplog.clear()
        a.link.down = True
        await asyncio.sleep(150)
        assert len(said(caplog, "problem with the metadata store: ")) == 1, "six loops notice; it is one outage"
        assert len(said(caplog, "lost (expired)")) == 1
        assert len(caplog.messages) == 2, caplog.messages
        a.link.down = False
        await fleet.settled()
        await fleet.until(lambda: a.member.health.state is HealthState.OK)
        await asyncio.sleep(5)
        (back,) = said(caplog, "the metadata store works again after ")
        assert 140 < float(back.split()[-2]) < 160
        assert said(caplog, "4 partitions", "gained")

    fleet_story(story)


def test_agents_that_come_leave_and_die_are_told_of_by_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def story(fleet: Fleet) -> None:
        await fleet.topic(partitions=12)
        await fleet.start("a")
        await fleet.settled()
        (b,) = await fleet.start("b")
        await fleet.settled()
        await asyncio.sleep(1)
        assert len(said(caplog, "a: agents joined: b; 2 alive")) == 1
        assert said(caplog, "a: ", "handed over to b")
        (c,) = await fleet.start("c")
        await fleet.settled()
        await c.member.stop()
        await fleet.until(lambda: bool(said(caplog, "a: agents gone: c; 2 alive")))
        assert said(caplog, "a: agents leaving: c")
        assert said(caplog, "c: ", "handed over to a")
        caplog.clear()
        await b.kill()
        await fleet.until(lambda: bool(said(caplog, "a: agents gone: b; 1 alive")))
        assert not said(caplog, "a: agents leaving: b"), "it died"

    fleet_story(story)


def test_a_lease_that_its_owner_gave_up_is_told_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=1)
        (a,) = await fleet.start("a")
        await fleet.settled()
        key = topic.partition_keys()[0]
        a.owner.open.pop(key)
        a.member.give_up(key, "a commit was refused")
        await asyncio.sleep(1)
        assert said(caplog, "a: partition orders/0 given up: a commit was refused")

    fleet_story(story)


def test_a_subscription_that_failed_once_is_over_when_the_next_one_stands(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(fleet: Fleet) -> None:
        (a,) = fleet.make("a")
        with monkeypatch.context() as patched:
            patched.setattr(a.link, "subscribe", refused)
            await a.member.start()
            await fleet.until(lambda: a.member.health.state is HealthState.DEGRADED)
        await fleet.until(lambda: a.member.health.state is HealthState.OK)
        await asyncio.sleep(5)
        assert len(said(caplog, "the metadata store works again")) == 1

    def refused() -> None:
        raise MetadataUnavailable("no server listens")

    fleet_story(story)
