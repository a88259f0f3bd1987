"""CreateTopics, DeleteTopics, CreatePartitions and InitProducerId over a socket."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from admin_ground import CREATE_PARTITIONS, DELETE_TOPICS, INIT_PRODUCER_ID, KafkaPort

from streamhouse.gateway.kafka.wire.message import Message


def grow(port: KafkaPort, name: str, count: int, *, version: int = 3, **more: Any) -> Message:
    topic = {"name": name, "count": count, "assignments": None, **more.pop("topic", {})}
    (result,) = port.ask(CREATE_PARTITIONS, version, topics=[topic], timeout=10_000, **more).results
    return result


def delete(port: KafkaPort, *topics: dict[str, Any]) -> list[Message]:
    found: list[Message] = port.ask(DELETE_TOPICS, 6, topics=list(topics), timeout=10_000).responses
    return found


def partition_count(port: KafkaPort, name: str) -> int:
    return len(port.metadata(name).topics[0].partitions)


# Creating.


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_creates_a_topic_that_is_led_when_it_answers(port: KafkaPort, version: int) -> None:
    name = port.new_name()
    (made,) = port.create({"name": name, "num_partitions": 3, "configs": {"retention.ms": "60000"}}, version=version)
    assert (made.error_code, made.error_message) == (0, None)
    (topic,) = port.metadata(name).topics
    assert [partition.error_code for partition in topic.partitions] == [0, 0, 0]
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        configs = {row.name: row for row in made.configs}
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("60000", 1)
        assert configs["cleanup.policy"].config_source == 5
    if version >= 7:
        assert made.topic_id == topic.topic_id


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
    [
        ({"name": "a/b"}, 17, "not allowed"),
        ({"num_partitions": 0}, 37, "1 to"),
        ({"num_partitions": -2}, 37, "1 to"),
        ({"num_partitions": 100_001}, 37, "1 to 100000"),
        ({"replication_factor": 0}, 38, "replication factor 0"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [4711]}]}, 39, "broker 1 leads"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1, 4711]}]}, 39, "broker 1 leads"),
        ({"assignments": [{"partition_index": 0, "broker_ids": []}]}, 39, "broker 1 leads"),
        ({"assignments": [{"partition_index": 1, "broker_ids": [1]}]}, 39, "partitions 0 to 0"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}] * 2}, 39, "named twice"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}], "num_partitions": 1}, 42, "-1"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [1]}], "replication_factor": 1}, 42, "-1"),
        ({"configs": {"retention.ms": "soon"}}, 40, "retention.ms"),
        ({"configs": {"retention.mss": "1"}}, 40, "did you mean retention.ms"),
        ({"configs": {"compression.type": "none"}}, 40, "one of uncompressed, zstd"),
        ({"configs": {"retention.ms": None}}, 40, "set to nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_with_kafkas_code_and_clear_words(
    port: KafkaPort, wanted: dict[str, Any], code: int, words: str
) -> None:
    name = port.new_name()
    (refused,) = port.create({"name": name, **wanted})
    assert refused.error_code == code
    assert words in refused.error_message
    assert (refused.num_partitions, refused.configs) == (-1, [])
    assert port.metadata(name).topics[0].error_code == 3


def test_a_placement_that_names_the_leaders_is_accepted(port: KafkaPort) -> None:
    name, here = port.new_name(), port.metadata().brokers[0].node_id
    placed = [{"partition_index": index, "broker_ids": [here]} for index in (1, 0, 2)]
    for validate_only in (True, False):
        (made,) = port.create({"name": name, "assignments": placed}, validate_only=validate_only)
        assert (made.error_code, made.error_message, made.num_partitions) == (0, None, 3)
    assert [each.replica_nodes for each in port.metadata(name).topics[0].partitions] == [[here]] * 3
    grown = grow(port, name, 5, topic={"assignments": [{"broker_ids": [here]}] * 2})
    assert (grown.error_code, partition_count(port, name)) == (0, 5)


def test_any_replication_factor_from_1_on_is_accepted_and_reported_as_1(port: KafkaPort) -> None:
    made = port.create(*({"name": port.new_name(), "replication_factor": factor} for factor in (-1, 1, 3)))
    assert [(each.error_code, each.replication_factor) for each in made] == [(0, 1)] * 3


def test_an_existing_name_is_error_36_and_a_name_twice_in_a_request_42(port: KafkaPort) -> None:
    taken, twice, fine = port.new_topic(), port.new_name(), port.new_name()
    made = port.create({"name": taken}, {"name": twice}, {"name": fine}, {"name": twice})
    assert {each.name: each.error_code for each in made} == {taken: 36, fine: 0, twice: 42}
    assert port.metadata(twice).topics[0].error_code == 3


def test_validate_only_says_the_same_and_creates_nothing(port: KafkaPort) -> None:
    name, taken = port.new_name(), port.new_topic()
    fine, exists, wrong = port.create(
        {"name": name, "num_partitions": 2}, {"name": taken}, {"name": "a b"}, validate_only=True
    )
    assert (fine.error_code, fine.num_partitions) == (0, 2)
    assert (exists.error_code, wrong.error_code) == (36, 17)
    assert port.metadata(name).topics[0].error_code == 3


def test_every_topic_config_of_kafka_is_accepted_inert_ones_too(port: KafkaPort) -> None:
    name = port.new_topic(**{"min.insync.replicas": "2", "segment.bytes": "1048576", "flush.messages": "7"})
    rows = port.configs(2, name, include_documentation=True)
    assert rows["min.insync.replicas"].value == "2"
    assert "No effect here" in rows["min.insync.replicas"].documentation


def test_a_diskless_topic_can_be_created(port: KafkaPort) -> None:
    name = port.new_topic(2, **{"diskless.enable": "true"})
    for partition in port.metadata(name).topics[0].partitions:
        assert (partition.error_code, partition.leader_epoch) == (0, 0)


# Deleting.


@pytest.mark.parametrize("version", range(1, 6))
def test_every_version_deletes_by_name(port: KafkaPort, version: int) -> None:
    name = port.new_topic()
    answer = port.ask(DELETE_TOPICS, version, topic_names=[name, "never-there"], timeout=10_000)
    assert {each.name: each.error_code for each in answer.responses} == {name: 0, "never-there": 3}
    assert port.metadata(name).topics[0].error_code == 3


def test_a_topic_is_deleted_by_its_id_and_a_recreated_one_is_another(port: KafkaPort) -> None:
    name = port.new_topic()
    first = port.metadata(name).topics[0].topic_id
    (deleted,) = delete(port, {"name": None, "topic_id": first})
    assert (deleted.error_code, deleted.name, deleted.topic_id) == (0, name, first)
    (again,) = delete(port, {"name": None, "topic_id": first})
    assert (again.error_code, again.name) == (100, None)
    (made,) = port.create({"name": name})
    assert made.topic_id != first
    (topic,) = port.metadata(name).topics
    assert topic.topic_id == made.topic_id
    assert topic.partitions[0].leader_epoch > 1


def test_a_topic_by_name_and_id_or_twice_is_refused_and_stays(port: KafkaPort) -> None:
    name = port.new_topic()
    topic_id = port.metadata(name).topics[0].topic_id
    (both,) = delete(port, {"name": name, "topic_id": topic_id})
    assert both.error_code == 42
    (twice,) = delete(port, {"name": name}, {"name": name})
    assert twice.error_code == 42
    (missing,) = delete(port, {"name": None, "topic_id": uuid.uuid4()})
    assert missing.error_code == 100
    assert port.metadata(name).topics[0].error_code == 0


# Growing.


@pytest.mark.parametrize("version", range(4))
def test_every_version_grows_a_topic(port: KafkaPort, version: int) -> None:
    name = port.new_topic(1)
    assert grow(port, name, 3, version=version).error_code == 0
    assert [
        partition.leader_id for partition in port.metadata(name).topics[0].partitions if partition.leader_id < 0
    ] == []
    assert partition_count(port, name) == 3


@pytest.mark.parametrize(
    ("count", "more", "code", "words"),
    [
        (2, {}, 37, "already has 2"),
        (1, {}, 37, "would not be an increase"),
        (100_001, {}, 37, "1 to 100000"),
        (3, {"topic": {"assignments": [{"broker_ids": [4711]}]}}, 39, "broker 1 leads"),
        (4, {"topic": {"assignments": [{"broker_ids": [1]}]}}, 39, "2 new partitions, 1 are placed"),
    ],
)
def test_growth_that_is_none_is_refused(
    port: KafkaPort, count: int, more: dict[str, Any], code: int, words: str
) -> None:
    name = port.new_topic(2)
    refused = grow(port, name, count, **more)
    assert refused.error_code == code
    assert words in refused.error_message
    assert partition_count(port, name) == 2


def test_growing_only_to_check_changes_nothing_and_unknown_topics_are_error_3(port: KafkaPort) -> None:
    name = port.new_topic(2)
    assert grow(port, name, 5, validate_only=True).error_code == 0
    assert partition_count(port, name) == 2
    assert grow(port, "never-there", 5).error_code == 3


# Producer ids.


@pytest.mark.parametrize("version", range(6))
def test_every_version_gives_an_id_that_nobody_had(port: KafkaPort, version: int) -> None:
    given = [port.ask(INIT_PRODUCER_ID, version, transactional_id=None, transaction_timeout=1) for _ in range(3)]
    assert [(each.error_code, each.producer_epoch) for each in given] == [(0, 0)] * 3
    assert len({each.producer_id for each in given}) == 3


def test_a_producer_that_asks_again_gets_a_new_id_as_from_kafka(port: KafkaPort) -> None:
    first = port.ask(INIT_PRODUCER_ID, 4, transactional_id=None)
    again = port.ask(
        INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=first.producer_id, producer_epoch=first.producer_epoch
    )
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first.producer_id
    half = port.ask(INIT_PRODUCER_ID, 4, transactional_id=None, producer_id=first.producer_id, producer_epoch=-1)
    assert (half.error_code, half.producer_id, half.producer_epoch) == (42, -1, -1)


@pytest.mark.parametrize(("transactional_id", "code"), [("tx", 53), ("", 42)])
def test_transactional_ids_are_refused_until_there_are_transactions(
    port: KafkaPort, transactional_id: str, code: int
) -> None:
    refused = port.ask(INIT_PRODUCER_ID, 4, transactional_id=transactional_id, transaction_timeout=1000)
    assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (code, -1, -1)
