"""What a new topic must be, for a client and for a table's dead letters alike."""

from __future__ import annotations

import pytest

from streamhouse.broker.new_topics import check_partition_count, new_topic
from streamhouse.core.errors import InvalidPartitions, InvalidTopicConfig, InvalidTopicName
from streamhouse.core.limits import MAX_PARTITIONS_PER_TOPIC
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import NewTopic, WriteMode


def made(name: str = "t", partition_count: int = 1, **configs: str) -> NewTopic:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return new_topic(name, partition_count, named, randomness=SeededRandomness(1))


def test_the_write_mode_follows_from_the_configs() -> None:
    assert made(diskless_enable="TRUE").write_mode is WriteMode.LEADERLESS
    assert made(diskless_enable="false").write_mode is WriteMode.LEASED
    assert made().write_mode is WriteMode.LEASED


def test_configs_are_stored_in_their_one_spelling() -> None:
    assert made(retention_ms="05").configs == {"retention.ms": "5"}


@pytest.mark.parametrize("name", ["", "a/b", "x" * 250, ".."])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidTopicName):
        made(name)


@pytest.mark.parametrize("count", [-1, 0, MAX_PARTITIONS_PER_TOPIC + 1])
def test_a_count_outside_of_the_limits_is_refused(count: int) -> None:
    with pytest.raises(InvalidPartitions, match=f"not {count}"):
        made(partition_count=count)
    with pytest.raises(InvalidPartitions):
        check_partition_count(count)


def test_a_config_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidTopicConfig):
        made(retention_hours="1")
