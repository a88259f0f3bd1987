"""Topics: create, delete, grow, for every front end. The metadata store keeps the topics.

A topic that is created is in the store before ``create`` returns, so that every agent finds it; and led, so that a
producer's first request does not meet a partition without a leader, unless that takes too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView, TopicRef
from streamhouse.broker.new_topics import check_partition_count, new_topic
from streamhouse.broker.placement import check_brokers
from streamhouse.core.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    NoReassignment,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
    UnknownTopicId,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import MetadataStore, NewTopic, Topic, WriteMode

__all__ = ["DEFAULT", "REPLICATION_FACTOR", "Topic", "TopicAdmin", "WantedTopic"]

DEFAULT: Final = -1
"""A partition count or replication factor that the platform is to choose."""
REPLICATION_FACTOR: Final = 1
"""What clients are told: one leader, and no followers beside the object store."""
_LEAD_TIMEOUT_S: Final = 10.0
_NEVER_CREATED: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka keeps its own state in these; here it is in the metadata store, and a topic of that name would only mislead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    """Accepted for the sake of existing scripts, without effect."""
    brokers: Mapping[int, Sequence[int]] | None = None
    """Placed by hand: the brokers of each partition. The counts above are DEFAULT then."""
    configs: Mapping[str, str]


class TopicAdmin:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        view: ClusterView,
        randomness: Randomness,
        default_partition_count: int,
        auto_create: bool = False,
    ) -> None:
        self._metadata = metadata
        self._view = view
        self._randomness = randomness
        self._default_partition_count = default_partition_count
        self._auto_create = auto_create

    async def find(self, ref: TopicRef, *, caller: Caller) -> Topic | None:
        """Return the topic with this name or id. Reads the store if this agent does not know it."""
        return await self._view.look_up(ref)

    async def all(self, *, caller: Caller) -> list[Topic]:
        """Return all topics as the store has them now, by name."""
        return await self._view.all_topics()

    async def fresh(self, name: str, *, caller: Caller) -> Topic:
        """Return the topic as the store has it now. Raises TopicNotFound."""
        topic = await self._metadata.get_topic(name)
        self._view.learned(topic)
        return topic

    async def fresh_by_id(self, topic_id: TopicId, *, caller: Caller) -> Topic:
        """Raises UnknownTopicId."""
        try:
            topic = await self._metadata.get_topic_by_id(topic_id)
        except TopicNotFound as error:
            raise UnknownTopicId(error.message, hint=error.hint) from error
        self._view.learned(topic)
        return topic

    async def check(self, wanted: WantedTopic, *, caller: Caller) -> NewTopic:
        """What ``create`` would make of it, or why not. Raises as ``create`` does."""
        new = await self._new(wanted)
        try:
            await self._metadata.get_topic(new.name)
        except TopicNotFound:
            return new
        raise TopicExists(f"topic {new.name} already exists")

    async def create(self, wanted: WantedTopic, *, caller: Caller, timeout_s: float = _LEAD_TIMEOUT_S) -> Topic:
        """Returns when every partition is led, or after ``timeout_s``; the topic exists either way.

        Raises TopicExists, InvalidTopicName, InvalidPartitions, InvalidReplicationFactor, InvalidReplicaAssignment,
        InvalidTopicConfig.
        """
        topic = await self._metadata.create_topic(await self._new(wanted))
        self._view.learned(topic)
        await self._wait_led(topic, timeout_s)
        return topic

    async def create_on_demand(self, name: str, *, caller: Caller) -> Topic | None:
        """Create a topic with defaults because a client wants to use it. None where the settings do not allow that."""
        if not self._auto_create or name in _NEVER_CREATED:
            return None
        try:
            return await self.create(WantedTopic(name=name, configs={}), caller=caller)
        except TopicExists:  # another client was quicker
            return await self.fresh(name, caller=caller)

    async def delete(self, topic: Topic, *, caller: Caller) -> None:
        """Raises TopicNotFound when it is gone already. Its objects go later, when nothing can need them any more."""
        deleted = await self._metadata.delete_topic(topic.topic_id)
        self._view.forgot(topic)
        if not deleted:
            raise TopicNotFound(f"topic {topic.name} does not exist any more")

    async def grow(
        self,
        name: str,
        partition_count: int,
        *,
        caller: Caller,
        brokers: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout_s: float = _LEAD_TIMEOUT_S,
    ) -> Topic:
        """``brokers``: of each new partition, if they are placed by hand.

        Raises TopicNotFound, InvalidPartitions, InvalidReplicaAssignment.
        """
        topic = await self.fresh(name, caller=caller)
        if partition_count == topic.partition_count:
            raise InvalidPartitions(f"topic {name} already has {partition_count} partitions")
        if partition_count < topic.partition_count:
            raise InvalidPartitions(
                f"topic {name} has {topic.partition_count} partitions; {partition_count} would not be an increase",
                hint="create a new topic with fewer and copy the records",
            )
        check_partition_count(partition_count)
        if brokers:
            added = partition_count - topic.partition_count
            if len(brokers) != added:
                raise InvalidReplicaAssignment(f"topic {name} gets {added} new partitions, {len(brokers)} are placed")
            placed = dict(enumerate(brokers, topic.partition_count))
            await self._check_placement(replace(topic, partition_count=partition_count), placed)
        if validate_only:
            return topic
        grown = await self._metadata.grow_topic(topic.topic_id, partition_count)
        self._view.learned(grown)
        await self._wait_led(grown, timeout_s)
        return grown

    async def check_reassignment(self, name: str, partition: int, brokers: Sequence[int], *, caller: Caller) -> None:
        """Returns if the partition is already where ``brokers`` want it: its leader alone.

        Raises TopicNotFound, PartitionNotFound, InvalidReplicaAssignment.
        """
        topic = await self._partition(name, partition)
        key = PartitionKey(topic.topic_id, partition)
        if self._view.leader(key) is None:
            await self._view.find_leaders([topic])
        leader = self._view.leader(key)
        check_brokers(f"{name}/{partition}", brokers, None if leader is None else leader.node.node_id)

    async def check_cancellation(self, name: str, partition: int, *, caller: Caller) -> None:
        """Raises NoReassignment, because partitions are never being reassigned; TopicNotFound, PartitionNotFound."""
        await self._partition(name, partition)
        raise NoReassignment(f"{name}/{partition} is not being reassigned")

    async def _partition(self, name: str, partition: int) -> Topic:
        topic = await self._view.find_topic(name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}")
        if not 0 <= partition < topic.partition_count:
            raise PartitionNotFound(f"{name} has partitions 0 to {topic.partition_count - 1}, not {partition}")
        return topic

    async def _check_placement(self, topic: Topic, placed: Mapping[int, Sequence[int]]) -> None:
        """``topic`` as it will be. Raises InvalidReplicaAssignment."""
        leaders = await self._view.leaders_to_be(topic)
        for partition, brokers in sorted(placed.items()):
            check_brokers(f"{topic.name}/{partition}", brokers, leaders[partition])

    async def _new(self, wanted: WantedTopic) -> NewTopic:
        if wanted.brokers is not None:
            wanted = _counted(wanted, wanted.brokers)
        if wanted.replication_factor != DEFAULT and wanted.replication_factor < 1:
            raise InvalidReplicationFactor(f"replication factor {wanted.replication_factor} makes no sense")
        count = wanted.partition_count
        if count == DEFAULT:
            count = self._default_partition_count
        new = new_topic(wanted.name, count, wanted.configs, randomness=self._randomness)
        if wanted.brokers is not None:
            topic = Topic(
                topic_id=new.topic_id,
                name=new.name,
                partition_count=new.partition_count,
                configs=new.configs,
                write_mode=new.write_mode,
                created_at_ms=0,
                version=0,
            )
            await self._check_placement(topic, wanted.brokers)
        return new

    async def _wait_led(self, topic: Topic, timeout_s: float) -> None:
        if topic.write_mode is WriteMode.LEASED and self._view.has_agents:
            await self._view.wait_led(topic.partition_keys(), timeout_s=min(timeout_s, _LEAD_TIMEOUT_S))


def _counted(wanted: WantedTopic, brokers: Mapping[int, Sequence[int]]) -> WantedTopic:
    """A topic that is placed by hand, with as many partitions as are placed."""
    if (wanted.partition_count, wanted.replication_factor) != (DEFAULT, DEFAULT):
        raise InvalidRequest(
            f"partitions of {wanted.name} are placed by hand, and partition count or replication factor is given too",
            hint="set both to -1",
        )
    if sorted(brokers) != list(range(len(brokers))):
        raise InvalidReplicaAssignment(
            f"{len(brokers)} partitions of {wanted.name} are placed: these must be partitions 0 to {len(brokers) - 1}"
        )
    return replace(wanted, partition_count=len(brokers))
