"""Something for every lease: partitions by topic, so that all of one topic are found without their keys; and slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import LeaseKey, SlotKey

V = TypeVar("V")


class LeaseMap(Generic[V]):
    def __init__(self) -> None:
        self._topics: dict[TopicId, dict[int, V]] = {}
        self._slots: dict[SlotKey, V] = {}

    def get(self, key: LeaseKey) -> V | None:
        if isinstance(key, PartitionKey):
            topic = self._topics.get(key.topic_id)
            return None if topic is None else topic.get(key.partition)
        return self._slots.get(key)

    def of_topic(self, topic_id: TopicId) -> Mapping[int, V]:
        """By partition."""
        return self._topics.get(topic_id) or {}

    def put(self, key: LeaseKey, value: V) -> None:
        if isinstance(key, PartitionKey):
            self._topics.setdefault(key.topic_id, {})[key.partition] = value
        else:
            self._slots[key] = value

    def pop(self, key: LeaseKey) -> V | None:
        if not isinstance(key, PartitionKey):
            return self._slots.pop(key, None)
        topic = self._topics.get(key.topic_id)
        if topic is None:
            return None
        value = topic.pop(key.partition, None)
        if not topic:
            del self._topics[key.topic_id]
        return value

    def drop_topic(self, topic_id: TopicId) -> None:
        self._topics.pop(topic_id, None)

    def __contains__(self, key: LeaseKey) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[LeaseKey]:
        for topic_id, partitions in self._topics.items():
            for partition in partitions:
                yield PartitionKey(topic_id, partition)
        yield from self._slots
