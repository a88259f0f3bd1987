"""Which agent holds which lease, as this agent knows it. Pure; what it answers may be a moment old.

    own       held and open here, as their owner (app/ownership.py) says
    leaving   closed here and not yet held elsewhere: this agent's until the store names another
    others    held elsewhere, as the metadata store says

What this agent itself holds is never taken from the store: the owner knows it better, and sooner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Lease, LeaseKey, SlotKey

V = TypeVar("V")

Holding = tuple[str, int]
"""An agent's id, and the lease's epoch."""


class LeaseMap(Generic[V]):
    """A value for every lease. Partitions are kept by topic, so that all of one topic are found without their keys."""

    def __init__(self) -> None:
        self._topics: dict[TopicId, dict[int, V]] = {}
        self._slots: dict[SlotKey, V] = {}

    def get(self, key: LeaseKey) -> V | None:
        if isinstance(key, PartitionKey):
            topic = self._topics.get(key.topic_id)
            return None if topic is None else topic.get(key.partition)
        return self._slots.get(key)

    def of_topic(self, topic_id: TopicId) -> Mapping[int, V]:
        """The values of a topic's partitions."""
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


class KnownLeases:
    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._own: LeaseMap[int] = LeaseMap()
        self._leaving: LeaseMap[int] = LeaseMap()
        self._others: LeaseMap[Holding] = LeaseMap()

    def holding(self, key: LeaseKey) -> Holding | None:
        """One that is being handed over is still this agent's."""
        epoch = self._own.get(key) or self._leaving.get(key)
        return self._others.get(key) if epoch is None else (self._agent_id, epoch)

    def of_topic(self, topic_id: TopicId) -> tuple[Mapping[int, int], Mapping[int, Holding]]:
        """Return, by partition, the epochs of what this agent holds, and what other agents hold."""
        own = self._own.of_topic(topic_id)
        if leaving := self._leaving.of_topic(topic_id):
            own = {**leaving, **own}
        return own, self._others.of_topic(topic_id)

    def is_own(self, key: LeaseKey) -> bool:
        return key in self._own

    def leaving(self) -> Iterator[LeaseKey]:
        return iter(self._leaving)

    def leaving_epoch(self, key: LeaseKey) -> int | None:
        return self._leaving.get(key)

    # What their owner tells.

    def gained(self, lease: Lease) -> None:
        self._own.put(lease.key, lease.epoch)
        self._leaving.pop(lease.key)
        self._others.pop(lease.key)

    def leave(self, key: LeaseKey) -> bool:
        """Whether it was held here."""
        epoch = self._own.pop(key)
        if epoch is not None:
            self._leaving.put(key, epoch)
        return epoch is not None

    def ended(self, key: LeaseKey) -> bool:
        """Whether it was this agent's until now."""
        left = self._leaving.pop(key)
        return self._own.pop(key) is not None or left is not None

    # What the store tells.

    def take(self, leases: Sequence[Lease], *, asked: Sequence[LeaseKey] | None = None) -> list[LeaseKey]:
        """``asked``: the keys that these are the answer to; None for all there are. Returns whose holder changed."""
        found = {
            lease.key: (lease.agent_id, lease.epoch)
            for lease in leases
            if not lease.expired and lease.agent_id != self._agent_id and lease.key not in self._own
        }
        still_mine = {
            lease.key
            for lease in leases
            if lease.agent_id == self._agent_id and not lease.expired and lease.epoch == self._leaving.get(lease.key)
        }
        looked_at: Iterable[LeaseKey] = {*self._others, *self._leaving, *found} if asked is None else asked
        changed: list[LeaseKey] = []
        for key in looked_at:
            before, now = self._others.get(key), found.get(key)
            moved = key not in still_mine and self._leaving.pop(key) is not None
            if before == now and not moved:
                continue
            if now is None:
                self._others.pop(key)
            else:
                self._others.put(key, now)
            changed.append(key)
        return changed

    def forget_topic(self, topic_id: TopicId) -> None:
        """It was deleted. What is open here stays until its owner has closed it."""
        self._others.drop_topic(topic_id)
        self._leaving.drop_topic(topic_id)
