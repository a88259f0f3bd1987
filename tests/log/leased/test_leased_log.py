"""The leased log as a whole: how a leadership begins, flushes, closes and ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node import Stage, acked, batch, settle

from streamhouse.core.errors import BackPressureRejected, NotLeader
from streamhouse.log.leased.partition import Phase


async def test_r1_a_stale_leader_cannot_commit_and_its_producers_hear_not_leader(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        old, new = await stage.node("agent-1"), await stage.node("agent-2")
        (key,) = topic.partition_keys()
        await old.lead(topic)
        stage.cluster.clock.advance(40_000)
        await new.lead(topic)
        doomed = old.log.append(key, batch("old"), acks=-1)
        with pytest.raises(NotLeader):
            await acked(doomed)
        kept = new.log.append(key, batch("new"), acks=-1)
        await acked(kept)
        assert kept.base_offset == 0
        assert await stage.cluster.high_watermark(key) == 1
        assert [reason for _, reason in old.dropped] == ["the commit at offset 0 was refused: fenced"]
        with pytest.raises(NotLeader):
            old.log.append(key, batch("later"), acks=1)


async def test_closing_refuses_writes_and_brings_everything_out(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        appends = [node.log.append(key, batch(f"v{number}"), acks=1) for number in range(3)]
        next_offset = await node.log.close_partition(key)
        assert next_offset == 3 == await stage.cluster.high_watermark(key)
        await acked(*appends)
        with pytest.raises(NotLeader):
            node.log.append(key, batch("late"), acks=1)


async def test_changed_topic_configs_hold_from_the_next_append_on(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        node.log.append(key, batch("x" * 600), acks=1)
        changed = await stage.cluster.metadata.alter_topic_configs(
            topic.topic_id, set_configs={"max.message.bytes": "500"}
        )
        node.log.configure(changed)
        led = node.log.partition(key)
        assert led is not None
        assert led.config.max_message_bytes == 500, "by which the broker judges the next batch"


async def test_a_flush_of_a_partition_that_is_not_led_here_is_refused(tmp_path: Path) -> None:
    """Else a flush request would be answered "done" while its records are held in the WAL."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=2), await stage.node()
        await node.lead(topic, 0)
        with pytest.raises(NotLeader):
            await node.log.flush(topic.partition_keys())
        await node.log.flush()


async def test_waiting_for_a_partition_ends_when_it_is_served(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=2), await stage.node()
        first, second = topic.partition_keys()
        waiting = asyncio.create_task(node.log.wait_open([first, second]))
        await node.lead(topic, 0)
        await settle()
        assert not waiting.done()
        await node.lead(topic, 1)
        await settle()
        assert waiting.done()
        assert node.log.led_keys() == {first, second}


async def test_r13_behind_a_barrier_a_partition_is_led_and_takes_no_write_until_its_end(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        led = node.log.partition(key)
        assert led is not None
        with node.log.barrier(led):
            assert node.log.is_behind_barrier(key)
            assert node.log.led_keys() == {key}
            with pytest.raises(BackPressureRejected, match="send again"):
                node.log.append(key, batch("a"), acks=1)
            writable = asyncio.create_task(node.log.wait_writable(key, 10))
            opened = asyncio.create_task(node.log.wait_open([key]))
            await settle()
            assert not writable.done()
            assert not opened.done()
        await settle()
        assert writable.done()
        assert opened.done()
        assert node.log.append(key, batch("a"), acks=1).base_offset == 0


async def test_r13_a_leadership_that_ends_behind_its_barrier_stays_ended(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        led = node.log.partition(key)
        assert led is not None
        with node.log.barrier(led):
            node.log.give_up(key, "the lease ran out")
        assert node.log.partition(key) is None
        assert (led.phase, node.dropped) == (Phase.DROPPED, [(key, "the lease ran out")])


async def test_a_wait_for_room_ends_with_its_time(tmp_path: Path) -> None:
    """The append that follows says what is missing."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node(max_buffer_bytes=2000)
        (key,) = topic.partition_keys()
        await node.lead(topic)
        node.log.append(key, batch("a" * 1000), acks=1)
        await node.log.wait_writable(key, 1000, timeout_s=0)
        with pytest.raises(BackPressureRejected):
            node.log.append(key, batch("b" * 1000), acks=1)


async def test_a_new_leadership_of_the_same_partition_ends_the_one_before_it(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        await node.lead(topic)
        former = node.log.partition(key)
        assert former is not None
        waiting = node.log.append(key, batch("a"), acks=1)
        stage.cluster.clock.advance(40_000)
        await node.lead(topic)
        with pytest.raises(NotLeader, match="a new leadership begins"):
            await waiting.done
        assert former.phase is Phase.DROPPED
        assert await stage.cluster.high_watermark(key) == 1, "what it had taken was replayed"
