"""Topics through the broker: created, grown, deleted, placed; what is refused, and what is only checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.broker import Broker
from streamhouse.broker.caller import Caller
from streamhouse.broker.topics import WantedTopic
from streamhouse.core.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicConfig,
    NoReassignment,
    PartitionNotFound,
    StreamHouseError,
    TopicExists,
    TopicNotFound,
    UnknownTopicId,
)
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import MAX_PARTITIONS_PER_TOPIC
from streamhouse.metadata.contract import WriteMode

CALLER = Caller(protocol="test")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB", kafka_num_partitions=3) as sh:
        await sh.broker.topics.create(WantedTopic(name="t", partition_count=1, configs={}), caller=CALLER)
        yield sh.broker


def me(broker: Broker) -> int:
    return broker.view.node_id


async def test_a_new_topic_is_led_when_create_returns_and_has_the_default_partition_count(broker: Broker) -> None:
    topic = await broker.topics.create(WantedTopic(name="u", configs={}), caller=CALLER)
    assert topic.partition_count == 3
    leaders = [broker.view.leader(key) for key in topic.partition_keys()]
    assert [leader and leader.node.node_id for leader in leaders] == [me(broker)] * 3


async def test_the_write_mode_follows_from_the_configs(broker: Broker) -> None:
    topic = await broker.topics.create(WantedTopic(name="u", configs={"diskless.enable": "TRUE"}), caller=CALLER)
    assert topic.write_mode is WriteMode.LEADERLESS
    assert topic.configs == {"diskless.enable": "true"}
    assert (await broker.topics.fresh("t", caller=CALLER)).write_mode is WriteMode.LEASED


async def test_a_check_answers_as_create_would_and_creates_nothing(broker: Broker) -> None:
    new = await broker.topics.check(WantedTopic(name="u", configs={"retention.ms": "05"}), caller=CALLER)
    assert (new.name, new.partition_count, new.configs) == ("u", 3, {"retention.ms": "5"})
    with pytest.raises(TopicNotFound):
        await broker.topics.fresh("u", caller=CALLER)
    with pytest.raises(TopicExists):
        await broker.topics.check(WantedTopic(name="t", configs={}), caller=CALLER)


async def test_what_a_topic_cannot_be(broker: Broker) -> None:
    with pytest.raises(InvalidReplicationFactor):
        await broker.topics.create(WantedTopic(name="u", replication_factor=0, configs={}), caller=CALLER)
    with pytest.raises(InvalidReplicaAssignment):
        await broker.topics.create(WantedTopic(name="u", brokers={0: [99]}, configs={}), caller=CALLER)
    with pytest.raises(TopicNotFound):
        await broker.topics.fresh("u", caller=CALLER)
    with pytest.raises(UnknownTopicId):
        await broker.topics.fresh_by_id(TopicId(UUID(int=99)), caller=CALLER)


CONTRADICTIONS: list[tuple[WantedTopic, type[StreamHouseError]]] = [
    (WantedTopic(name="u", partition_count=2, brokers={0: [1]}, configs={}), InvalidRequest),
    (WantedTopic(name="u", replication_factor=1, brokers={0: [1]}, configs={}), InvalidRequest),
    (WantedTopic(name="u", brokers={0: [1], 2: [1]}, configs={}), InvalidReplicaAssignment),
    (WantedTopic(name="u", brokers={1: [1]}, configs={}), InvalidReplicaAssignment),
    (WantedTopic(name="u", brokers={}, configs={}), InvalidPartitions),
    (WantedTopic(name="u", partition_count=MAX_PARTITIONS_PER_TOPIC + 1, configs={}), InvalidPartitions),
    (WantedTopic(name="u", configs={"retention.msec": "1"}), InvalidTopicConfig),
]


async def test_a_wish_that_contradicts_itself_is_refused(broker: Broker) -> None:
    for wanted, error in CONTRADICTIONS:
        with pytest.raises(error):
            await broker.topics.check(wanted, caller=CALLER)


async def test_a_topic_that_is_placed_by_hand_has_as_many_partitions_as_are_placed(broker: Broker) -> None:
    placed = {0: [me(broker)], 1: [me(broker)]}
    topic = await broker.topics.create(WantedTopic(name="u", brokers=placed, configs={}), caller=CALLER)
    assert topic.partition_count == 2


async def test_a_topic_grows_and_never_shrinks(broker: Broker) -> None:
    assert (await broker.topics.grow("t", 3, caller=CALLER)).partition_count == 3
    for count in (3, 2, 0):
        with pytest.raises(InvalidPartitions):
            await broker.topics.grow("t", count, caller=CALLER)
    with pytest.raises(InvalidReplicaAssignment):
        await broker.topics.grow("t", 4, caller=CALLER, brokers=[[99]])
    assert (await broker.topics.fresh("t", caller=CALLER)).partition_count == 3


async def test_growth_that_is_only_checked_or_badly_placed_changes_nothing(broker: Broker) -> None:
    assert (await broker.topics.grow("t", 3, caller=CALLER, validate_only=True)).partition_count == 1
    with pytest.raises(InvalidReplicaAssignment, match="gets 2 new partitions, 1 are placed"):
        await broker.topics.grow("t", 3, caller=CALLER, brokers=[[me(broker)]])
    with pytest.raises(TopicNotFound):
        await broker.topics.grow("other", 3, caller=CALLER)
    assert (await broker.topics.fresh("t", caller=CALLER)).partition_count == 1
    grown = await broker.topics.grow("t", 3, caller=CALLER, brokers=[[me(broker)]] * 2)
    assert grown.partition_count == 3


async def test_a_topic_is_deleted_once_and_not_found_afterwards(broker: Broker) -> None:
    topic = await broker.topics.fresh("t", caller=CALLER)
    await broker.topics.delete(topic, caller=CALLER)
    with pytest.raises(TopicNotFound, match="does not exist any more"):
        await broker.topics.delete(topic, caller=CALLER)
    assert broker.view.topic("t") is None
    with pytest.raises(UnknownTopicId):
        await broker.topics.fresh_by_id(topic.topic_id, caller=CALLER)


async def test_a_partition_can_only_be_moved_to_where_it_is(broker: Broker) -> None:
    await broker.topics.check_reassignment("t", 0, [me(broker)], caller=CALLER)
    with pytest.raises(InvalidReplicaAssignment, match="t/0"):
        await broker.topics.check_reassignment("t", 0, [me(broker) + 1], caller=CALLER)
    with pytest.raises(NoReassignment, match="t/0"):
        await broker.topics.check_cancellation("t", 0, caller=CALLER)
    for question in (
        broker.topics.check_reassignment("t", 1, [], caller=CALLER),
        broker.topics.check_cancellation("t", 1, caller=CALLER),
    ):
        with pytest.raises(PartitionNotFound, match="partitions 0 to 0, not 1"):
            await question
    with pytest.raises(TopicNotFound):
        await broker.topics.check_cancellation("other", 0, caller=CALLER)


async def test_a_topic_is_created_on_demand_once_and_never_for_kafkas_own_state(broker: Broker) -> None:
    admin = broker.topics
    made = await asyncio.gather(*(admin.create_on_demand("wanted", caller=CALLER) for _ in range(3)))
    assert len({topic.topic_id for topic in made if topic is not None}) == 1
    assert await admin.create_on_demand("__consumer_offsets", caller=CALLER) is None


async def test_no_topic_is_created_on_demand_where_the_settings_forbid_it(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB", kafka_auto_create_topics=False) as sh:
        assert await sh.broker.topics.create_on_demand("wanted", caller=CALLER) is None
