"""What Kafka's tools ask besides: answered so that they work, or refused so that they say why."""

from __future__ import annotations

import pytest
from admin_ground import DESCRIBE_LOG_DIRS, KafkaPort

ELECT_LEADERS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 43, 45, 46
CLIENT_QUOTAS, SCRAM_CREDENTIALS, DESCRIBE_QUORUM, LIST_TRANSACTIONS = 48, 50, 55, 66
LIST_CONFIG_RESOURCES, DESCRIBE_TOPIC_PARTITIONS = 74, 75
SASL_HANDSHAKE, DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, ALTER_LOG_DIRS, SASL_AUTHENTICATE = 17, 29, 30, 31, 34, 36


@pytest.mark.parametrize("version", range(3))
def test_elections_are_never_needed(port: KafkaPort, version: int) -> None:
    name = port.new_topic(2)
    asked = [{"topic": name, "partitions": [0, 1, 2]}, {"topic": "never-there", "partitions": [0]}]
    answer = port.ask(ELECT_LEADERS, version, topic_partitions=asked)
    codes = {
        topic.topic: [each.error_code for each in topic.partition_result] for topic in answer.replica_election_results
    }
    assert codes == {name: [84, 84, 3], "never-there": [3]}
    assert port.ask(ELECT_LEADERS, version, topic_partitions=None).replica_election_results == []


@pytest.mark.parametrize("version", range(2))
def test_a_reassignment_to_the_leader_is_done_others_are_refused_and_none_is_in_progress(
    port: KafkaPort, version: int
) -> None:
    name, here = port.new_topic(), port.metadata().brokers[0].node_id
    partitions = [
        {"partition_index": 0, "replicas": [here, 2]},
        {"partition_index": 0, "replicas": None},
        {"partition_index": 7, "replicas": [here]},
        {"partition_index": 0, "replicas": [here]},
        {"partition_index": 0, "replicas": []},
        {"partition_index": 0, "replicas": [4711]},
    ]
    answer = port.ask(ALTER_REASSIGNMENTS, version, topics=[{"name": name, "partitions": partitions}])
    results = answer.responses[0].partitions
    assert [each.error_code for each in results] == [39, 85, 3, 0, 39, 39]
    assert f"broker {here} leads" in results[0].error_message
    listed = port.ask(LIST_REASSIGNMENTS, 0, topics=None)
    assert (listed.error_code, listed.topics) == (0, [])


@pytest.mark.parametrize("version", range(2))
def test_there_are_no_quotas(port: KafkaPort, version: int) -> None:
    answer = port.ask(CLIENT_QUOTAS, version, components=[], strict=False)
    assert (answer.error_code, answer.entries) == (0, [])


def test_nobody_has_credentials(port: KafkaPort) -> None:
    assert port.ask(SCRAM_CREDENTIALS, 0, users=None).results == []
    results = port.ask(SCRAM_CREDENTIALS, 0, users=[{"name": "a"}, {"name": "b"}, {"name": "b"}]).results
    assert [(each.user, each.error_code) for each in results] == [("a", 91), ("b", 92)]


@pytest.mark.parametrize("version", range(3))
def test_the_quorum_is_the_controller(port: KafkaPort, version: int) -> None:
    asked = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]},
        {"topic_name": "other", "partitions": [{"partition_index": 0}]},
    ]
    answer = port.ask(DESCRIBE_QUORUM, version, topics=asked)
    controller = port.metadata().controller_id
    known, unknown = (topic.partitions[0] for topic in answer.topics)
    assert (known.error_code, known.leader_id) == (0, controller)
    assert [voter.replica_id for voter in known.current_voters] == [controller]
    assert unknown.error_code == 3
    if version >= 2:
        assert [node.node_id for node in answer.nodes] == [controller]


@pytest.mark.parametrize("version", range(3))
def test_there_are_no_transactions(port: KafkaPort, version: int) -> None:
    answer = port.ask(LIST_TRANSACTIONS, version, state_filters=["Ongoing", "Whatever"], producer_id_filters=[])
    assert (answer.error_code, answer.unknown_state_filters, answer.transaction_states) == (0, ["Whatever"], [])


def test_config_resources_are_topics_and_brokers(port: KafkaPort) -> None:
    name, broker = port.new_topic(), str(port.metadata().brokers[0].node_id)
    found = {
        (each.resource_type, each.resource_name)
        for each in port.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[]).config_resources
    }
    assert {(2, name), (4, broker)} <= found
    assert {each.resource_type for each in port.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[4]).config_resources} == {
        4
    }
    assert port.ask(LIST_CONFIG_RESOURCES, 0).config_resources == []
    assert port.ask(LIST_CONFIG_RESOURCES, 1, resource_types=[77]).error_code == 35


@pytest.mark.parametrize("version", range(1, 5))
def test_log_dirs_list_what_is_led_here(port: KafkaPort, version: int) -> None:
    name = port.new_topic(2)
    (everything,) = port.ask(DESCRIBE_LOG_DIRS, version, topics=None).results
    assert {each.name: len(each.partitions) for each in everything.topics}[name] == 2
    assert everything.log_dir.endswith("wal")
    asked = [{"topic": name, "partitions": [1, 9]}, {"topic": "never-there", "partitions": [0]}]
    (some,) = port.ask(DESCRIBE_LOG_DIRS, version, topics=asked).results
    assert [(each.name, [one.partition_index for one in each.partitions]) for each in some.topics] == [(name, [1])]


def test_topic_partitions_come_page_by_page_in_name_order(port: KafkaPort) -> None:
    names = sorted([port.new_topic(3), port.new_topic(2)])
    counts = {name: len(port.metadata(name).topics[0].partitions) for name in names}
    asked = [{"name": name} for name in [*names, "zz-never-there", "zz/wrong"]]
    seen: list[tuple[str, int]] = []
    missing: list[tuple[str, int]] = []
    cursor, pages = None, 0
    while True:
        page = port.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=asked, response_partition_limit=2, cursor=cursor)
        pages += 1
        for topic in page.topics:
            missing += [(topic.name, topic.error_code)] if topic.error_code else []
            seen += [(topic.name, partition.partition_index) for partition in topic.partitions]
            assert all(partition.leader_id >= 0 for partition in topic.partitions)
        if page.next_cursor is None:
            break
        cursor = {"topic_name": page.next_cursor.topic_name, "partition_index": page.next_cursor.partition_index}
    assert seen == [(name, index) for name in names for index in range(counts[name])]
    assert missing == [("zz-never-there", 3), ("zz/wrong", 17)]
    assert pages == 3
    everything = port.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=2000, cursor=None)
    assert set(names) <= {topic.name for topic in everything.topics}


def test_sasl_is_refused_with_34_and_the_connection_goes_on(port: KafkaPort) -> None:
    for version in range(2):
        answer = port.ask(SASL_HANDSHAKE, version, mechanism="PLAIN")
        assert (answer.error_code, answer.mechanisms) == (34, [])
    for version in range(3):
        refused = port.ask(SASL_AUTHENTICATE, version, auth_bytes=b"\0user\0secret")
        assert (refused.error_code, refused.auth_bytes) == (34, b"")
        assert "PLAINTEXT" in refused.error_message


@pytest.mark.parametrize("version", range(1, 4))
def test_acls_are_refused_with_54(port: KafkaPort, version: int) -> None:
    what = {"principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}
    any_acl = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    described = port.ask(DESCRIBE_ACLS, version, **any_acl)
    assert (described.error_code, described.resources) == (54, [])
    assert "no access control" in described.error_message
    acl = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, **what}
    created = port.ask(CREATE_ACLS, version, creations=[acl, acl]).results
    assert [each.error_code for each in created] == [54, 54]
    deleted = port.ask(DELETE_ACLS, version, filters=[any_acl, any_acl]).filter_results
    assert [(each.error_code, each.matching_acls) for each in deleted] == [(54, []), (54, [])]


@pytest.mark.parametrize("version", range(1, 3))
def test_a_partition_stays_in_the_only_log_dir_and_another_is_not_found(port: KafkaPort, version: int) -> None:
    name = port.new_topic()
    (ours,) = port.ask(DESCRIBE_LOG_DIRS, version, topics=[]).results
    for path, codes in (
        (ours.log_dir, {name: [0, 3], "never-there": [3]}),
        ("/x", {name: [57, 57], "never-there": [57]}),
    ):
        topics = [{"name": name, "partitions": [0, 7]}, {"name": "never-there", "partitions": [0]}]
        results = port.ask(ALTER_LOG_DIRS, version, dirs=[{"path": path, "topics": topics}]).results
        assert {each.topic_name: [one.error_code for one in each.partitions] for each in results} == codes
    assert port.ask(ALTER_LOG_DIRS, version, dirs=[]).results == []
