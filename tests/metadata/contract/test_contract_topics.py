"""Topics, configs, partitions (S1.3, S3.2)."""

from __future__ import annotations

import asyncio

import pytest
from builders import batch, leaderless_slice, leased_slice
from harness import Backend

from streamhouse.core.errors import (
    Conflict,
    InvalidPartitions,
    InvalidRequest,
    InvalidTopicName,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_PARTITIONS_PER_TOPIC
from streamhouse.metadata.contract import LogState, NewTopic, Verdict, WriteMode


async def test_s1_3_create_topic_makes_every_partition_at_offset_0(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=3, configs={"retention.ms": "1000"})
    assert (topic.name, topic.partition_count, topic.write_mode) == ("orders", 3, WriteMode.LEASED)
    assert topic.configs == {"retention.ms": "1000"}
    assert topic.created_at_ms == backend.now_ms
    states = await backend.store.get_partitions(topic.partition_keys())
    assert [state.key.partition for state in states] == [0, 1, 2]
    for state in states:
        assert (state.high_watermark, state.log_start_offset, state.last_stable_offset) == (0, 0, 0)
        assert (state.leader_epoch, state.compaction_cursor, state.gc_horizon_ms) == (0, 0, 0)
        assert (state.log_state, state.write_mode) == (LogState.OPEN, WriteMode.LEASED)


async def test_topics_are_found_by_name_and_by_id_from_every_process(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=2, configs={"a": "1"})
    other = await backend.open_another()
    assert await backend.store.get_topic("orders") == topic
    assert await other.get_topic("orders") == topic
    assert await other.get_topic_by_id(topic.topic_id) == topic


async def test_an_unknown_topic_is_not_found(backend: Backend) -> None:
    with pytest.raises(TopicNotFound):
        await backend.store.get_topic("nothing")
    with pytest.raises(TopicNotFound):
        await backend.store.get_topic_by_id(TopicId(backend.uuid()))


async def test_list_topics_is_ordered_by_name(backend: Backend) -> None:
    for name in ("orders", "Zebra", "metrics", "_internal", "a.b", "a-b"):
        await backend.topic(name)
    names = [topic.name for topic in await backend.store.list_topics()]
    assert names == sorted(names)
    assert len(names) == 6


async def test_a_repeated_create_returns_the_topic_as_it_stands(backend: Backend) -> None:
    new = NewTopic(topic_id=TopicId(backend.uuid()), name="orders", partition_count=2, configs={"a": "1"})
    first = await backend.store.create_topic(new)
    assert await backend.store.create_topic(new) == first
    altered = await backend.store.alter_topic_configs(first.topic_id, set_configs={"b": "2"})
    assert await backend.store.create_topic(new) == altered


async def test_another_topic_under_a_taken_name_is_refused(backend: Backend) -> None:
    topic = await backend.topic("orders")
    with pytest.raises(TopicExists):
        await backend.topic("orders")
    assert await backend.store.get_topic("orders") == topic


async def test_one_of_many_concurrent_creates_wins(backend: Backend) -> None:
    other = await backend.open_another()
    news = [
        NewTopic(topic_id=TopicId(backend.uuid()), name="orders", partition_count=1 + turn, configs={})
        for turn in range(8)
    ]
    answers = await asyncio.gather(
        *((backend.store, other)[turn % 2].create_topic(new) for turn, new in enumerate(news)), return_exceptions=True
    )
    winners = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(answer, TopicExists) for answer in answers if isinstance(answer, BaseException))
    assert await backend.store.list_topics() == winners
    assert len(await backend.store.get_partitions(winners[0].partition_keys())) == winners[0].partition_count


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\0", "x" * 250])
async def test_a_bad_topic_name_is_refused(backend: Backend, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        await backend.topic(name)
    assert await backend.store.list_topics() == []


@pytest.mark.parametrize("count", [0, -1, MAX_PARTITIONS_PER_TOPIC + 1])
async def test_a_bad_partition_count_is_refused(backend: Backend, count: int) -> None:
    with pytest.raises(InvalidPartitions):
        await backend.topic("orders", partitions=count)
    topic = await backend.topic("orders")
    with pytest.raises(InvalidPartitions):
        await backend.store.grow_topic(topic.topic_id, count)


async def test_configs_that_cannot_be_stored_are_refused(backend: Backend) -> None:
    with pytest.raises(InvalidRequest):
        await backend.topic("orders", configs={"note": "a\0b"})
    topic = await backend.topic("orders")
    with pytest.raises(InvalidRequest):
        await backend.store.alter_topic_configs(topic.topic_id, set_configs={"note": "a\0b"})


async def test_s3_2_configs_are_merged_and_deleted(backend: Backend) -> None:
    topic = await backend.topic("orders", configs={"a": "1", "b": "2", "c": "3"})
    altered = await backend.store.alter_topic_configs(
        topic.topic_id, set_configs={"b": "20", "d": "4"}, delete_configs=["c", "never-there"]
    )
    assert altered.configs == {"a": "1", "b": "20", "d": "4"}
    assert altered.version == topic.version + 1
    assert await backend.store.get_topic("orders") == altered


async def test_an_alter_that_changes_nothing_is_a_repeat(backend: Backend) -> None:
    topic = await backend.topic("orders", configs={"a": "1"})
    altered = await backend.store.alter_topic_configs(
        topic.topic_id, set_configs={"b": "2"}, delete_configs=["a"], expected_version=topic.version
    )
    again = await backend.store.alter_topic_configs(
        topic.topic_id, set_configs={"b": "2"}, delete_configs=["a"], expected_version=topic.version
    )
    assert again == altered


async def test_an_alter_of_another_version_is_a_conflict(backend: Backend) -> None:
    topic = await backend.topic("orders")
    current = await backend.store.alter_topic_configs(topic.topic_id, set_configs={"a": "1"})
    with pytest.raises(Conflict):
        await backend.store.alter_topic_configs(topic.topic_id, set_configs={"a": "2"}, expected_version=topic.version)
    assert await backend.store.get_topic("orders") == current
    await backend.store.alter_topic_configs(topic.topic_id, set_configs={"a": "2"}, expected_version=current.version)


async def test_concurrent_alters_lose_nothing(backend: Backend) -> None:
    topic = await backend.topic("orders")
    other = await backend.open_another()
    await asyncio.gather(
        *(
            (backend.store, other)[turn % 2].alter_topic_configs(topic.topic_id, set_configs={f"c{turn}": "x"})
            for turn in range(8)
        )
    )
    found = await backend.store.get_topic("orders")
    assert found.configs == {f"c{turn}": "x" for turn in range(8)}
    assert found.version == topic.version + 8


async def test_altering_or_growing_an_unknown_topic(backend: Backend) -> None:
    with pytest.raises(TopicNotFound):
        await backend.store.alter_topic_configs(TopicId(backend.uuid()), set_configs={"a": "1"})
    with pytest.raises(TopicNotFound):
        await backend.store.grow_topic(TopicId(backend.uuid()), 2)


async def test_s3_2_a_topic_grows_and_keeps_what_it_has(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=1)
    lease = await backend.lead(topic.partition_keys()[0])
    await backend.store.commit_leased(
        backend.append_id(),
        [leased_slice(topic.partition_keys()[0], backend.object(), batch(5), epoch=lease.epoch, base=0)],
    )
    grown = await backend.store.grow_topic(topic.topic_id, 3)
    assert (grown.partition_count, grown.version) == (3, topic.version + 1)
    states = await backend.store.get_partitions(grown.partition_keys())
    assert [state.high_watermark for state in states] == [5, 0, 0]
    assert [state.leader_epoch for state in states] == [1, 0, 0]


async def test_growing_to_the_present_size_is_a_repeat(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=2)
    grown = await backend.store.grow_topic(topic.topic_id, 4)
    assert await backend.store.grow_topic(topic.topic_id, 4) == grown
    with pytest.raises(InvalidPartitions):
        await backend.store.grow_topic(topic.topic_id, 3)
    assert await backend.store.get_topic("orders") == grown


async def test_concurrent_growth_makes_every_partition_once(backend: Backend) -> None:
    topic = await backend.topic("orders", partitions=1)
    other = await backend.open_another()
    await asyncio.gather(
        *((backend.store, other)[turn % 2].grow_topic(topic.topic_id, 6) for turn in range(6)), return_exceptions=True
    )
    found = await backend.store.get_topic("orders")
    assert (found.partition_count, found.version) == (6, topic.version + 1)
    assert len(await backend.store.get_partitions(found.partition_keys())) == 6


async def test_r16_partitions_come_fresh_in_the_order_asked_without_the_missing(backend: Backend) -> None:
    one, two = await backend.topic("one", partitions=2), await backend.topic("two", partitions=2)
    asked = [
        two.partition_keys()[1],
        PartitionKey(one.topic_id, 99),
        one.partition_keys()[0],
        PartitionKey(TopicId(backend.uuid()), 0),
        PartitionKey(one.topic_id, -1),
        PartitionKey(one.topic_id, 2**31 - 1),
        two.partition_keys()[0],
    ]
    found = await backend.store.get_partitions(asked)
    assert [state.key for state in found] == [two.partition_keys()[1], one.partition_keys()[0], two.partition_keys()[0]]
    assert await backend.store.get_partitions([]) == []


async def test_s2_33_a_fenced_log_refuses_every_commit_until_opened_again(backend: Backend) -> None:
    led = await backend.led("leased")
    blobs = await backend.partition("leaderless", leaderless=True)
    for key in (led.key, blobs):
        state = await backend.store.set_log_state(key, LogState.FENCED)
        assert (state.key, state.log_state) == (key, LogState.FENCED)
    piece = leased_slice(led.key, backend.object(), epoch=led.epoch, base=0)
    append = backend.append_id()
    (refused,) = await backend.store.commit_leased(append, [piece])
    assert (refused.verdict, refused.high_watermark, refused.leader_epoch) == (Verdict.FENCED, 0, led.epoch)
    (refused,) = await backend.store.commit_leaderless(backend.append_id(), backend.object(), [leaderless_slice(blobs)])
    assert refused.verdict is Verdict.FENCED
    await backend.store.set_log_state(led.key, LogState.OPEN)
    await backend.store.set_log_state(led.key, LogState.OPEN)
    (outcome,) = await backend.store.commit_leased(append, [piece])
    assert outcome.verdict is Verdict.COMMITTED


async def test_the_log_state_of_an_unknown_partition(backend: Backend) -> None:
    topic = await backend.topic()
    with pytest.raises(PartitionNotFound):
        await backend.store.set_log_state(PartitionKey(topic.topic_id, 1), LogState.FENCED)
