"""What a new topic must be, wherever it is created: for a client (topics.py) or beside a table (spark/tables/).

Pure, and the only module of the broker that spark/ imports: Spark's driver runs without an agent.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamhouse.core import topic_config
from streamhouse.core.errors import InvalidPartitions
from streamhouse.core.ids import TopicId, check_topic_name
from streamhouse.core.limits import MAX_PARTITIONS_PER_TOPIC
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import NewTopic, WriteMode


def new_topic(name: str, partition_count: int, configs: Mapping[str, str], *, randomness: Randomness) -> NewTopic:
    """What the metadata store is asked to create. The config ``diskless.enable`` decides the write mode.

    Raises InvalidTopicName, InvalidPartitions, InvalidTopicConfig.
    """
    check_topic_name(name)
    check_partition_count(partition_count)
    checked = topic_config.validate(configs)
    leaderless = topic_config.effective(checked).diskless_enable
    return NewTopic(
        topic_id=TopicId(randomness.uuid()),
        name=name,
        partition_count=partition_count,
        configs=checked,
        write_mode=WriteMode.LEADERLESS if leaderless else WriteMode.LEASED,
    )


def check_partition_count(count: int) -> None:
    """Raises InvalidPartitions."""
    if not 1 <= count <= MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitions(f"a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {count}")
