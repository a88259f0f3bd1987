"""What a take-over loads of its producers: pages, a bound, one call at a time, and turns for everything else (R22)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node import Stage, acked, batch

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.leased import idempotence
from streamhouse.log.leased import producers as module
from streamhouse.log.leased.idempotence import Idempotence
from streamhouse.log.leased.producers import ProducerLoader
from streamhouse.metadata.contract import ProducerBatch, ProducerPage, ProducerState

TOPIC = TopicId(SeededRandomness(1).uuid())


def key(partition: int) -> PartitionKey:
    return PartitionKey(TOPIC, partition)


def state(producer_id: int, at_ms: int) -> ProducerState:
    only = ProducerBatch(base_sequence=producer_id, record_count=1, base_offset=producer_id)
    return ProducerState(producer_id=producer_id, producer_epoch=0, batches=(only,), updated_at_ms=at_ms)


class Pages:
    """A store of windows, whose answers can be held back or made to fail."""

    def __init__(self, counts: dict[int, int]) -> None:
        self.states = {
            key(partition): [state(producer, producer) for producer in reversed(range(count))]
            for partition, count in counts.items()
        }
        self.calls: list[tuple[list[int], int]] = []
        self.under_way = self.most_under_way = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.failures: list[Exception] = []

    async def load_producers(
        self,
        keys: Sequence[PartitionKey],
        *,
        limit: int,
        after: dict[PartitionKey, ProducerState],
        idle_ms: int | None,
    ) -> dict[PartitionKey, ProducerPage]:
        self.calls.append(([one.partition for one in keys], limit))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.may_answer.wait()
        finally:
            self.under_way -= 1
        if self.failures:
            raise self.failures.pop()
        return {one: self._page(one, limit, after.get(one), idle_ms) for one in keys}

    def _page(self, one: PartitionKey, limit: int, last: ProducerState | None, idle_ms: int | None) -> ProducerPage:
        states = self.states[one]
        start = 0 if last is None else states.index(last) + 1
        return ProducerPage(
            states=tuple(states[start : start + limit]),
            more=len(states) > start + limit,
            forgotten_up_to=-1 if idle_ms is None else 77,
            highest_id=max((state.producer_id for state in states), default=-1),
        )


def loader(pages: Pages, **options: Any) -> ProducerLoader:
    return ProducerLoader(pages, **options)  # type: ignore[arg-type]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_r22_one_call_is_under_way_at_a_time_whatever_is_opened() -> None:
    """Renewals of leases use the same connections."""
    pages = Pages(dict.fromkeys(range(50), 3))
    pages.may_answer.clear()
    load, known = loader(pages), [Idempotence() for _ in range(50)]
    openings = []
    for partition in range(50):
        openings.append(asyncio.create_task(load.load(key(partition), known[partition])))
        await turns(3)
    assert (len(pages.calls), pages.under_way) == (1, 1)
    pages.may_answer.set()
    await asyncio.gather(*openings)
    assert pages.most_under_way == 1
    assert len(pages.calls) == 2, "the rest was asked for together"
    assert all(list(one.windows) == [0, 1, 2] for one in known)


async def test_r22_a_partition_with_few_producers_does_not_wait_for_one_with_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PRODUCERS_PER_LOAD", 10)
    pages = Pages({0: 100, 1: 3})
    load, many, few = loader(pages), Idempotence(), Idempotence()
    slow = asyncio.create_task(load.load(key(0), many))
    await load.load(key(1), few)
    assert list(few.windows) == [0, 1, 2]
    assert not slow.done()
    await slow
    assert list(many.windows) == list(range(100))
    assert many.forgotten_up_to == -1
    assert max(limit * len(asked) for asked, limit in pages.calls) <= 10


async def test_r22_the_newest_are_loaded_up_to_the_bound_and_the_rest_counts_as_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PRODUCERS_PER_LOAD", 7)
    monkeypatch.setattr(module, "MAX_PRODUCERS_PER_PARTITION", 10)
    for count, forgotten in ((9, -1), (10, -1), (11, 10), (14, 13), (100, 99)):
        pages, known = Pages({0: count}), Idempotence()
        await loader(pages).load(key(0), known)
        assert list(known.windows) == list(range(max(0, count - 10), count))
        assert known.forgotten_up_to == forgotten, "any of the ids that the store has may be among those left out"
        assert len(pages.calls) <= 2


async def test_r22_a_partition_hears_that_the_store_has_forgotten_producers() -> None:
    pages, known = Pages({0: 1}), Idempotence()
    await loader(pages, idle_ms=1000).load(key(0), known)
    assert known.forgotten_up_to == 77


async def test_r22_for_an_opening_that_was_cancelled_no_further_page_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PRODUCERS_PER_LOAD", 10)
    pages = Pages({0: 1000, 1: 15})
    pages.may_answer.clear()
    load, other = loader(pages), Idempotence()
    cancelled = asyncio.create_task(load.load(key(0), Idempotence()))
    goes_on = asyncio.create_task(load.load(key(1), other))
    await turns()
    cancelled.cancel()
    pages.may_answer.set()
    await goes_on
    await turns()
    assert len(other.windows) == 15
    assert [asked for asked, _ in pages.calls] == [[0, 1], [1]]


async def test_a_failed_call_fails_its_openings_and_no_later_ones() -> None:
    pages = Pages({0: 2, 1: 2})
    pages.failures.append(MetadataUnavailable("away"))
    load = loader(pages)
    outcomes = await asyncio.gather(*(load.load(key(one), Idempotence()) for one in (0, 1)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MetadataUnavailable] * 2
    known = Idempotence()
    await load.load(key(0), known)
    assert len(known.windows) == 2


async def test_r22_the_event_loop_gets_its_turn_all_the_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: how many windows are made known between two turns of another task."""
    pages, known = Pages({0: 5_000}), Idempotence()
    since_turn = most = 0
    know = Idempotence.know

    def counting(self: Idempotence, producers: Sequence[ProducerState], **how: Any) -> None:
        nonlocal since_turn, most
        since_turn += len(producers)
        most = max(most, since_turn)
        know(self, producers, **how)

    monkeypatch.setattr(Idempotence, "know", counting)
    opening = asyncio.create_task(loader(pages).load(key(0), known))
    while not opening.done():
        since_turn = 0
        await asyncio.sleep(0)
    assert len(known.windows) == 5_000
    assert 0 < most <= 200


async def test_r22_a_leader_that_makes_room_for_a_new_producer_knows_that_it_has_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotence, "MAX_PRODUCERS_PER_PARTITION", 3)
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (partition,) = topic.partition_keys()
        await node.lead(topic)
        led = node.log.partition(partition)
        assert led is not None
        for producer, sequence in ((1, 0), (2, 0), (3, 0), (1, 1)):
            await acked(node.log.append(partition, batch("v", producer=(producer, 0, sequence)), acks=-1))
        assert led.producers.forgotten_up_to == -1
        await acked(node.log.append(partition, batch("v", producer=(4, 0, 0)), acks=-1))
        assert list(led.producers.windows) == [3, 1, 4], "2 has not written for the longest time"
        assert led.producers.forgotten_up_to == 2


async def test_r22_a_take_over_leaves_out_producers_past_their_expiry(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        (partition,) = topic.partition_keys()
        old = await stage.node("agent-1")
        await old.lead(topic)
        await acked(old.log.append(partition, batch("v", producer=(1, 0, 0)), acks=-1))
        stage.cluster.clock.advance(40_000)
        await old.lead(topic)
        await acked(old.log.append(partition, batch("v", producer=(2, 0, 0)), acks=-1))
        stage.cluster.clock.advance(40_000)
        new = await stage.node("agent-2", producer_expiration_ms=60_000)
        await new.lead(topic)
        led = new.log.partition(partition)
        assert led is not None
        assert list(led.producers.windows) == [2]
        assert led.producers.forgotten_up_to == 1


async def test_many_take_overs_share_one_look_at_the_producers(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic(partitions=20)
        old, new = await stage.node("agent-1"), await stage.node("agent-2")
        for key in topic.partition_keys():
            await old.lead(topic, key.partition)
            await acked(old.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1))
        stage.cluster.clock.advance(40_000)
        await asyncio.gather(*(new.lead(topic, key.partition) for key in topic.partition_keys()))
        for key in topic.partition_keys():
            assert new.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1).duplicate
