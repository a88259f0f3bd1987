"""Metadata and DescribeCluster over a socket: what kafka.md says about the cluster, line by line."""

from __future__ import annotations

import uuid

import pytest
from admin_ground import DESCRIBE_CLUSTER, METADATA, KafkaPort, kafka_port

from streamhouse.core.errors import MetadataUnavailable


@pytest.mark.parametrize("version", range(14))
def test_every_version_names_brokers_topics_and_leaders(port: KafkaPort, version: int) -> None:
    name = port.new_topic(3)
    answer = port.metadata(name, version=version)
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == port.address
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, name, 3)
    for index, partition in enumerate(topic.partitions):
        assert (partition.error_code, partition.partition_index) == (0, index)
        assert partition.leader_id == broker.node_id
        assert partition.replica_nodes == partition.isr_nodes == [broker.node_id]
        if version >= 7:
            assert partition.leader_epoch >= 1
    if version >= 1:
        assert answer.controller_id == broker.node_id
    if version >= 2:
        assert len(answer.cluster_id) == 22


def test_no_topics_named_means_all_of_them_and_an_empty_list_none(port: KafkaPort) -> None:
    name = port.new_topic()
    assert name in [topic.name for topic in port.ask(METADATA, 12, topics=None).topics]
    assert name in [topic.name for topic in port.ask(METADATA, 0, topics=[]).topics]
    assert port.ask(METADATA, 1, topics=[]).topics == []
    assert port.ask(METADATA, 13, topics=[]).topics == []


def test_librdkafkas_request_for_all_topics_is_read_over_its_three_bytes_too_many(port: KafkaPort) -> None:
    """A placeholder of four bytes for an array whose null takes one; Apache Kafka leaves what is left over alone."""
    name = port.new_topic()
    answer = port.ask_bytes(METADATA, 12, b"\0\0\0\0" + b"\1\0\0")
    assert name in [topic.name for topic in answer.topics]


def test_a_topic_is_found_by_its_id_and_an_unknown_id_is_error_100(port: KafkaPort) -> None:
    name = port.new_topic()
    (known,) = port.metadata(name).topics
    stranger = uuid.uuid4()
    asked = [{"name": None, "topic_id": known.topic_id}, {"name": None, "topic_id": stranger}]
    by_id, unknown = port.ask(METADATA, 13, topics=asked).topics
    assert (by_id.name, by_id.topic_id) == (name, known.topic_id)
    assert (unknown.error_code, unknown.name, unknown.topic_id) == (100, None, stranger)


def test_an_id_counts_before_the_empty_name_that_the_java_client_sends_with_it(port: KafkaPort) -> None:
    name = port.new_topic()
    (known,) = port.metadata(name).topics
    (found,) = port.ask(METADATA, 12, topics=[{"name": "", "topic_id": known.topic_id}]).topics
    assert (found.error_code, found.name, found.topic_id) == (0, name, known.topic_id)


def test_a_topic_is_created_only_when_the_client_allows_it(port: KafkaPort) -> None:
    name = port.new_name()
    assert [topic.error_code for topic in port.metadata(name).topics] == [3]
    (made,) = port.metadata(name, create=True).topics
    assert (made.error_code, len(made.partitions)) == (0, 1)
    assert made.partitions[0].leader_id >= 0
    assert [topic.topic_id for topic in port.metadata(name).topics] == [made.topic_id]


def test_a_name_that_is_not_allowed_is_error_17_and_kafkas_own_topics_are_never_made(port: KafkaPort) -> None:
    codes = [topic.error_code for topic in port.metadata("a/b", "..", "x" * 250, "ok-not-there").topics]
    assert codes == [17, 17, 17, 3]
    assert [topic.error_code for topic in port.metadata("__consumer_offsets", create=True).topics] == [3]


def test_many_unknown_topics_are_looked_up_together(port: KafkaPort) -> None:
    name = port.new_topic()
    port.on_view(lambda view: view.forgot(view.topic(name)))  # as if another agent had made it a moment ago
    names = [f"nobody-{number}" for number in range(200)]
    found = {topic.name: topic.error_code for topic in port.metadata(*names, name).topics}
    assert found == {**dict.fromkeys(names, 3), name: 0}


def test_while_the_store_is_away_clients_are_told_what_is_known_and_not_cut_off(
    port: KafkaPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> object:
        raise MetadataUnavailable("the store does not answer")

    name = port.new_topic()
    stranger = {"name": None, "topic_id": uuid.uuid4()}
    with monkeypatch.context() as patched:
        store = port.on_view(lambda view: view._metadata)
        for question in ("list_topics", "get_topic", "get_topic_by_id"):
            patched.setattr(store, question, away)
        assert name in [topic.name for topic in port.ask(METADATA, 12, topics=None).topics]
        assert [topic.error_code for topic in port.metadata(name, "nobody-knows").topics] == [0, 56]
        many = [f"nobody-{number}" for number in range(200)]
        assert port.metadata(*many, name).topics[-1].error_code == 0
        assert [topic.error_code for topic in port.ask(METADATA, 13, topics=[stranger]).topics] == [56]
    assert [topic.error_code for topic in port.ask(METADATA, 13, topics=[stranger]).topics] == [100]


def test_a_topic_named_twice_is_answered_once(port: KafkaPort) -> None:
    name = port.new_topic()
    assert [topic.name for topic in port.metadata(name, name).topics] == [name]


def test_what_a_client_may_do_is_told_when_asked(port: KafkaPort) -> None:
    name = port.new_topic()
    asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    silent = port.ask(METADATA, 8, **asked)
    assert silent.topics[0].topic_authorized_operations == silent.cluster_authorized_operations == -(2**31)
    told = port.ask(
        METADATA,
        8,
        **asked,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert told.topics[0].topic_authorized_operations == 3576
    assert told.cluster_authorized_operations == 8096


def test_a_topic_that_grew_or_went_is_told_at_once(port: KafkaPort) -> None:
    name = port.new_topic()
    assert len(port.metadata(name).topics[0].partitions) == 1
    port.ask(37, 3, topics=[{"name": name, "count": 4, "assignments": None}], timeout=10_000)
    grown = port.metadata(name).topics[0].partitions
    assert [partition.leader_id >= 0 for partition in grown] == [True] * 4
    port.ask(20, 6, topics=[{"name": name}], timeout=10_000)
    assert port.metadata(name).topics[0].error_code == 3


def test_a_leader_that_changes_is_told_at_once_whatever_was_answered_before(port: KafkaPort) -> None:
    name = port.new_topic(2)
    key = port.on_view(lambda view: view.topic(name).partition_keys()[1])
    (lease,) = port.platform.run(port.platform.api.stores.metadata.list_leases(keys=[key]))

    def leaders() -> list[tuple[int, int, int]]:
        partitions = port.metadata(name).topics[0].partitions
        return [(each.error_code, each.leader_id, each.leader_epoch) for each in partitions]

    first, led = leaders()
    assert (led[0], led[2]) == (0, lease.epoch)
    port.on_view(lambda view: view.ended(key))
    assert leaders() == [first, (5, -1, -1)]
    port.on_view(lambda view: view.gained(lease))
    assert leaders() == [first, led]


def test_many_partitions_are_told_whole(port: KafkaPort) -> None:
    name = port.new_topic(2_000)
    for _ in range(2):  # the second from what was kept
        (topic,) = port.metadata(name).topics
        assert [partition.partition_index for partition in topic.partitions] == list(range(2_000))
        assert {partition.error_code for partition in topic.partitions} == {0}
    port.ask(20, 6, topics=[{"name": name}], timeout=10_000)


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster_agrees_with_metadata(port: KafkaPort, version: int) -> None:
    metadata, cluster = port.metadata(), port.ask(DESCRIBE_CLUSTER, version)
    assert (cluster.cluster_id, cluster.controller_id) == (metadata.cluster_id, metadata.controller_id)
    assert [(each.broker_id, each.host, each.port, each.rack) for each in cluster.brokers] == [
        (each.node_id, each.host, each.port, each.rack) for each in metadata.brokers
    ]


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (9, 115)])
def test_describe_cluster_of_controllers_is_refused_as_by_a_broker(
    port: KafkaPort, endpoint_type: int, code: int
) -> None:
    assert port.ask(DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type).error_code == code


def test_each_listener_tells_its_own_address(tmp_path_factory: pytest.TempPathFactory) -> None:
    from admin_ground import KafkaPort as Port

    listen = "127.0.0.1:0,127.0.0.1:0"
    with kafka_port(tmp_path_factory.mktemp("two"), kafka_listen=listen) as first:
        _, address = first.platform.api.kafka_addresses
        second = Port(first.platform, address)
        for door in (first, second):
            (broker,) = door.metadata().brokers
            assert f"{broker.host}:{broker.port}" == door.address
        assert first.address != second.address
        second.close()


def test_auto_creation_can_be_turned_off_and_partitions_by_default_chosen(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with kafka_port(tmp_path_factory.mktemp("off"), kafka_auto_create_topics=False, kafka_num_partitions=3) as door:
        assert [topic.error_code for topic in door.metadata("wanted", create=True).topics] == [3]
        (made,) = door.create({"name": "wanted"})
        assert (made.error_code, made.num_partitions) == (0, 3)
