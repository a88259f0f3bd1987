"""Idempotent producers on a leased log: repeats, mistakes, and what a take-over leaves them (R9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from node import Stage, acked, batch

from streamhouse.core.errors import (
    BackPressureRejected,
    DuplicateSequence,
    OutOfOrderSequence,
    StaleProducer,
)
from streamhouse.log.leased import idempotence
from streamhouse.wire.batch import read_header


async def test_r9_a_retry_gets_the_originals_offsets_and_waits_for_it(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        first = node.log.append(key, batch("a", "b", producer=(9, 0, 0)), acks=1)
        again = node.log.append(key, batch("a", "b", producer=(9, 0, 0)), acks=1)
        assert again.duplicate
        assert again.base_offset == first.base_offset == 0
        assert not again.done.done(), "a producer's batch waits for the commit whatever its acks say"
        await acked(first, again)
        assert await stage.cluster.high_watermark(key) == 2
        later = node.log.append(key, batch("a", "b", producer=(9, 0, 0)), acks=1)
        assert later.done.done()
        assert later.base_offset == 0


async def test_r9_a_repeat_gets_its_answer_though_the_sender_of_the_original_gave_up(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        first = node.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1)
        again = node.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1)
        first.done.cancel()
        await acked(again)
        assert await stage.cluster.high_watermark(key) == 1


async def test_idempotent_producers_hear_their_mistakes(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(*(node.log.append(key, batch("v", producer=(9, 1, sequence)), acks=1) for sequence in range(7)))
        with pytest.raises(OutOfOrderSequence, match="the next sequence is 7"):
            node.log.append(key, batch("v", producer=(9, 1, 9)), acks=1)
        with pytest.raises(OutOfOrderSequence, match="the next sequence is 0"):
            node.log.append(key, batch("v", producer=(9, 2, 7)), acks=1)  # a new epoch starts at 0
        with pytest.raises(DuplicateSequence, match="was written before the last five batches"):
            node.log.append(key, batch("v", producer=(9, 1, 0)), acks=1)
        with pytest.raises(StaleProducer):
            node.log.append(key, batch("v", producer=(9, 0, 7)), acks=1)
        assert node.log.append(key, batch("v", producer=(9, 1, 7)), acks=1).base_offset == 7


async def test_r21_the_first_batch_of_a_producer_is_never_lost_behind_its_second(tmp_path: Path) -> None:
    """Clients send five batches at once. When the first is refused, the second must not be taken in its place."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        for sequence in (1, 2):
            with pytest.raises(OutOfOrderSequence, match="does not start at sequence 0"):
                node.log.append(key, batch("b", producer=(9, 0, sequence)), acks=-1)
        first = node.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1)
        second = node.log.append(key, batch("b", producer=(9, 0, 1)), acks=-1)
        assert (first.duplicate, first.base_offset, second.base_offset) == (False, 0, 1)
        await acked(first, second)
        with pytest.raises(OutOfOrderSequence):
            node.log.append(key, batch("c", producer=(9, 1, 2)), acks=-1)


async def test_r21_a_producer_that_was_forgotten_goes_on_and_one_that_cannot_have_been_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotence, "MAX_PRODUCERS_PER_PARTITION", 2)
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(resume_after_ms=1000)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        for producer in (9, 10, 11):
            await acked(node.log.append(key, batch("v", producer=(producer, 0, 0)), acks=-1))
        with pytest.raises(OutOfOrderSequence):
            node.log.append(key, batch("w", producer=(12, 0, 1)), acks=-1)
        with pytest.raises(BackPressureRejected, match="an earlier one may be on its way"):
            node.log.append(key, batch("w", producer=(9, 0, 5)), acks=-1)  # the leadership has just begun
        stage.cluster.clock.advance(1000)
        resumed = [node.log.append(key, batch("w", producer=(9, 0, sequence)), acks=-1) for sequence in range(5, 12)]
        assert [each.base_offset for each in resumed] == list(range(3, 10))
        await acked(*resumed)
        with pytest.raises(OutOfOrderSequence):
            node.log.append(key, batch("x", producer=(9, 0, 4)), acks=-1)  # was it ever written? 46 would say so


async def test_r21_a_producer_with_an_uncommitted_batch_is_never_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retry would be written a second time."""
    monkeypatch.setattr(idempotence, "MAX_PRODUCERS_PER_PARTITION", 2)
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(resume_after_ms=0)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        waiting = [node.log.append(key, batch("v", producer=(id_, 0, 0)), acks=-1) for id_ in (9, 10, 11, 12)]
        again = [node.log.append(key, batch("v", producer=(id_, 0, 0)), acks=-1) for id_ in (9, 10, 11, 12)]
        assert [each.base_offset for each in again] == [0, 1, 2, 3]
        await acked(*waiting, *again)


async def test_r21_a_batch_that_is_only_partly_known_is_not_called_written(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("a", "b", producer=(9, 0, 0)), acks=-1))
        with pytest.raises(OutOfOrderSequence):
            node.log.append(key, batch("b", "c", producer=(9, 0, 1)), acks=-1)
        assert node.log.append(key, batch("c", producer=(9, 0, 2)), acks=-1).base_offset == 2


async def test_r9_nothing_uncommitted_is_called_written_long_ago(tmp_path: Path) -> None:
    """Clients take 46 for success. More than five batches of a producer may wait while the store is slow."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        await acked(node.log.append(key, batch("committed", producer=(9, 1, 0)), acks=-1))
        waiting = [
            node.log.append(key, batch("v", "w", producer=(9, 1, sequence)), acks=-1) for sequence in range(1, 19, 2)
        ]
        again = node.log.append(key, batch("v", "w", producer=(9, 1, 1)), acks=-1)
        assert (again.duplicate, again.base_offset, again.done.done()) == (True, 1, False)
        with pytest.raises(BackPressureRejected, match="waits for its commit"):
            node.log.append(key, batch("w", producer=(9, 1, 2)), acks=-1)
        with pytest.raises(DuplicateSequence):
            node.log.append(key, batch("committed", producer=(9, 1, 0)), acks=-1)
        await acked(*waiting, again)
        with pytest.raises(DuplicateSequence):
            node.log.append(key, batch("v", "w", producer=(9, 1, 1)), acks=-1)


async def test_r9_producer_state_survives_a_take_over(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        old, new = await stage.node("agent-1"), await stage.node("agent-2")
        (key,) = topic.partition_keys()
        await old.lead(topic)
        await acked(old.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1))
        stage.cluster.clock.advance(40_000)
        await new.lead(topic)
        again = new.log.append(key, batch("a", producer=(9, 0, 0)), acks=-1)
        assert again.duplicate
        with pytest.raises(OutOfOrderSequence):
            new.log.append(key, batch("c", producer=(9, 0, 2)), acks=-1)
        assert new.log.append(key, batch("b", producer=(9, 0, 1)), acks=-1).base_offset == 1


async def test_r11_a_leadership_that_has_ended_calls_nothing_a_repeat(tmp_path: Path) -> None:
    """Its windows name batches that were never committed; a repeat of one would be acknowledged at once."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        sent = batch("a", producer=(9, 0, 0))
        node.log.append(key, sent, acks=-1)
        partition = node.log.partition(key)
        assert partition is not None
        header = read_header(sent)
        assert partition.producers.judge(header, partition) is not None
        node.log.drop_partition(key, "the test says so")
        assert partition.producers.judge(header, partition) is None
