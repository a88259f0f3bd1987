"""Which of the two compactions looks after a topic: that of small objects, or that of keys, which merges them too."""

from __future__ import annotations

from collections.abc import Iterable

from streamhouse.core import topic_config
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.core.topic_config import TopicConfig
from streamhouse.metadata.contract import Topic


def small_object_logs(topics: Iterable[Topic]) -> list[PartitionKey]:
    """The partitions whose batches are copied as they are. Not those of a topic whose configs cannot be read: what may
    become of its records is not known."""
    return [
        key
        for topic in topics
        if (config := _config_of(topic)) is not None and not config.compacts
        for key in topic.partition_keys()
    ]


def compacted_logs(topics: Iterable[Topic]) -> dict[PartitionKey, TopicConfig]:
    """The partitions of which only the newest record of each key stays, each with the configs of its topic."""
    return {
        key: config
        for topic in topics
        if (config := _config_of(topic)) is not None and config.compacts
        for key in topic.partition_keys()
    }


def _config_of(topic: Topic) -> TopicConfig | None:
    try:
        return topic_config.effective(topic.configs)
    except StreamHouseError:
        return None
