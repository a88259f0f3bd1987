"""The partitions that a service looks after, and which kind of compaction each of them has. Pure.

The first discovery finds the partitions that exist at the start. Each later one adds what was created since: topics,
and partitions of topics that grew. Nothing that is known leaves, except the partitions of a topic that was deleted. A
topic of the same name that is created again is another topic, with another id (R19), and is discovered as one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamhouse.core import topic_config
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import Randomness
from streamhouse.core.topic_config import TopicConfig
from streamhouse.metadata.contract import Topic


class TaskKind(StrEnum):
    SMALL_OBJECTS = "small_objects"
    """Small entries become one object; batches stay as they are."""
    KEYS = "keys"
    """Only the newest record of each key stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTarget:
    key: PartitionKey
    topic: str
    kind: TaskKind
    config: TopicConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    new: int
    """Partitions that were not known before."""
    changed: frozenset[PartitionKey]
    """Partitions whose kind of compaction is another one now, because their topic's configs were altered."""


class Targets:
    def __init__(self, names: Collection[str] | None) -> None:
        """``names``: the topics to look after. None: all topics."""
        self._names = None if names is None else frozenset(names)
        self._known: dict[PartitionKey, CompactionTarget] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def topics(self) -> int:
        return len({key.topic_id for key in self._known})

    def discover(self, topics: Sequence[Topic]) -> Discovered:
        """``topics``: all that exist."""
        found = {target.key: target for topic in topics if self.wants(topic) for target in targets_of(topic)}
        known, self._known = self._known, found
        both = found.keys() & known.keys()
        return Discovered(
            new=len(found) - len(both),
            changed=frozenset(key for key in both if found[key].kind is not known[key].kind),
        )

    def wants(self, topic: Topic, partition: int = 0) -> bool:
        """Whether this service looks after the topic, with all of its partitions."""
        return self._names is None or topic.name in self._names

    def get(self, key: PartitionKey) -> CompactionTarget | None:
        return self._known.get(key)

    def name_of(self, topic_id: TopicId) -> str | None:
        target = self._known.get(PartitionKey(topic_id, 0))
        return None if target is None else target.topic

    def count(self, kind: TaskKind) -> int:
        return sum(target.kind is kind for target in self._known.values())

    def shuffled(self, randomness: Randomness) -> list[CompactionTarget]:
        """All targets in an order that differs each time, so that several services do not follow each other."""
        drawn = {key: randomness.uniform(0, 1) for key in self._known}
        return [self._known[key] for key in sorted(drawn, key=drawn.__getitem__)]


def targets_of(topic: Topic) -> list[CompactionTarget]:
    """The partitions of a topic. None of a topic whose stored configs cannot be read: nothing may be rewritten then."""
    try:
        config = topic_config.effective(topic.configs)
    except StreamHouseError:
        return []
    kind = TaskKind.KEYS if config.compacts else TaskKind.SMALL_OBJECTS
    return [CompactionTarget(key=key, topic=topic.name, kind=kind, config=config) for key in topic.partition_keys()]
