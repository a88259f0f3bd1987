"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs over a socket."""

from __future__ import annotations

from typing import Any

import pytest
from admin_ground import (
    ALTER_CONFIGS,
    BROKER,
    BROKER_LOGGER,
    DESCRIBE_CONFIGS,
    GROUP,
    INCREMENTAL_ALTER_CONFIGS,
    TOPIC,
    KafkaPort,
)

from streamhouse.core.settings import SCHEMA
from streamhouse.core.topic_config import TOPIC_CONFIGS
from streamhouse.gateway.kafka.wire.message import Message

SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(port: KafkaPort, name: str, *changes: tuple[str, int, str | None], **more: Any) -> Message:
    resource = {
        "resource_type": more.pop("resource_type", TOPIC),
        "resource_name": name,
        "configs": [{"name": key, "config_operation": how, "value": value} for key, how, value in changes],
    }
    (response,) = port.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], **more).responses
    return response


def replace(port: KafkaPort, name: str, configs: dict[str, str | None], **more: Any) -> Message:
    resource = {
        "resource_type": more.pop("resource_type", TOPIC),
        "resource_name": name,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    (response,) = port.ask(ALTER_CONFIGS, more.pop("version", 2), resources=[resource], **more).responses
    return response


def chosen(port: KafkaPort, name: str) -> dict[str, str]:
    return {row.name: row.value for row in port.configs(TOPIC, name).values() if row.config_source == 1}


def refusal(port: KafkaPort, resource_type: int, name: str) -> Message:
    resource = {"resource_type": resource_type, "resource_name": name, "configuration_keys": None}
    (found,) = port.ask(DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert found.configs == []
    return found


def node_id(port: KafkaPort) -> str:
    return str(port.metadata().brokers[0].node_id)


# Describing.


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version_describes_every_topic_config(port: KafkaPort, version: int) -> None:
    name = port.new_topic(**{"retention.ms": "1000"})
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
    (found,) = port.ask(DESCRIBE_CONFIGS, version, resources=[resource]).results
    assert [row.name for row in found.configs] == list(TOPIC_CONFIGS)
    rows = {row.name: row for row in found.configs}
    assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("1000", 1)
    assert rows["max.message.bytes"].config_source == 5
    if version >= 3:
        assert {rows[key].config_type for key in ("retention.ms", "preallocate", "cleanup.policy")} == {5, 1, 7}


def test_synonyms_and_documentation_come_when_asked_for(port: KafkaPort) -> None:
    name = port.new_topic(**{"retention.ms": "1000"})
    plain = port.configs(TOPIC, name)["retention.ms"]
    assert (plain.synonyms, plain.documentation) == ([], None)
    full = port.configs(TOPIC, name, include_synonyms=True, include_documentation=True)["retention.ms"]
    assert [(each.name, each.value, each.source) for each in full.synonyms] == [
        ("retention.ms", "1000", 1),
        ("log.retention.ms", "86400000", 5),
    ]
    assert "24 hours" in full.documentation


def test_a_resource_that_is_named_a_thousand_times_is_described_once(port: KafkaPort) -> None:
    resource = {"resource_type": TOPIC, "resource_name": port.new_topic(), "configuration_keys": None}
    assert len(port.ask(DESCRIBE_CONFIGS, 4, resources=[resource] * 1000).results) == 1


def test_only_the_configs_asked_for_are_described(port: KafkaPort) -> None:
    keys = ["retention.ms", "no.such.config"]
    resource = {"resource_type": TOPIC, "resource_name": port.new_topic(), "configuration_keys": keys}
    (found,) = port.ask(DESCRIBE_CONFIGS, 4, resources=[resource]).results
    assert [row.name for row in found.configs] == ["retention.ms"]


def test_a_broker_has_kafkas_names_and_every_setting_read_only_without_secrets(port: KafkaPort) -> None:
    rows = port.configs(BROKER, node_id(port), include_documentation=True)
    assert rows["node.id"].value == node_id(port)
    assert rows["advertised.listeners"].value == f"PLAINTEXT://{port.address}"
    assert rows["num.partitions"].value == "1"
    assert rows["log.retention.ms"].value == "86400000"
    assert all(row.read_only for row in rows.values())
    for setting in SCHEMA:
        row = rows[f"streamhouse.{setting.key}"]
        assert row.is_sensitive == setting.declaration.secret
        assert row.documentation == setting.declaration.doc
    assert rows["streamhouse.store.secret_access_key"].value is None
    assert rows["streamhouse.kafka.listen"].config_source == 4
    assert rows["streamhouse.lease.ttl"].config_source == 5
    assert port.configs(BROKER, "") == {}


def test_a_group_has_the_settings_that_hold_for_all_groups(port: KafkaPort) -> None:
    rows = port.configs(GROUP, "any")
    assert rows["consumer.session.timeout.ms"].value == "45000"


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [(TOPIC, "never-there", 3), (TOPIC, "a/b", 17), (BROKER, "4711", 42), (BROKER_LOGGER, "1", 42), (99, "x", 42)],
)
def test_what_cannot_be_described_is_refused_one_by_one(
    port: KafkaPort, resource_type: int, name: str, code: int
) -> None:
    refused = refusal(port, resource_type, name)
    assert refused.error_code == code
    assert refused.error_message


# Changing.


@pytest.mark.parametrize("version", range(2))
def test_single_configs_are_set_and_deleted(port: KafkaPort, version: int) -> None:
    name = port.new_topic(**{"retention.ms": "1000", "segment.ms": "5"})
    changes = [
        {"name": "retention.ms", "config_operation": SET, "value": " 2000 "},
        {"name": "segment.ms", "config_operation": DELETE, "value": None},
        {"name": "flush.ms", "config_operation": DELETE, "value": None},
    ]
    resource = {"resource_type": TOPIC, "resource_name": name, "configs": changes}
    (response,) = port.ask(INCREMENTAL_ALTER_CONFIGS, version, resources=[resource]).responses
    assert (response.error_code, response.resource_name) == (0, name)
    assert chosen(port, name) == {"retention.ms": "2000"}


def test_a_list_is_appended_to_and_subtracted_from(port: KafkaPort) -> None:
    name = port.new_topic()
    assert alter(port, name, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert chosen(port, name) == {"cleanup.policy": "delete,compact"}
    assert alter(port, name, ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert alter(port, name, ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert chosen(port, name) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([("retention.ms", APPEND, "1")], 40, "no list"),
        ([("retention.ms", SET, None)], 42, "set to nothing"),
        ([("retention.ms", 9, "1")], 42, "no way to change"),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], 42, "twice"),
        ([("retention.ms", SET, "5"), ("flush.ms", SET, "never")], 40, "flush.ms"),
        ([("no.such.config", SET, "5")], 40, "no topic config"),
        ([("diskless.enable", SET, "true")], 40, "fixed when the topic is created"),
        ([("compression.type", SET, "deflate")], 40, "one of uncompressed, zstd"),
    ],
)
def test_a_change_is_made_whole_or_refused_whole(
    port: KafkaPort, changes: list[tuple[str, int, str | None]], code: int, words: str
) -> None:
    name = port.new_topic(**{"retention.ms": "1000"})
    refused = alter(port, name, *changes)
    assert refused.error_code == code
    assert words in refused.error_message
    assert chosen(port, name) == {"retention.ms": "1000"}


def test_a_topic_gets_a_codec_of_its_own_and_shows_it(port: KafkaPort) -> None:
    name = port.new_topic(**{"compression.type": "zstd", "compression.zstd.level": "9"})
    assert chosen(port, name) == {"compression.type": "zstd", "compression.zstd.level": "9"}
    assert alter(port, name, ("compression.type", SET, "uncompressed")).error_code == 0
    assert chosen(port, name)["compression.type"] == "uncompressed"
    assert replace(port, name, {"compression.type": "lz4"}).error_code == 0
    rows = port.configs(TOPIC, name, include_documentation=True)
    assert rows["compression.type"].value == "lz4"
    assert "No effect" not in rows["compression.lz4.level"].documentation


def test_validate_only_changes_nothing(port: KafkaPort) -> None:
    name = port.new_topic()
    assert alter(port, name, ("retention.ms", SET, "5"), validate_only=True).error_code == 0
    assert alter(port, name, ("retention.ms", SET, "x"), validate_only=True).error_code == 40
    assert replace(port, name, {"retention.ms": "5"}, validate_only=True).error_code == 0
    assert chosen(port, name) == {}


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_of_them(port: KafkaPort, version: int) -> None:
    name = port.new_topic(**{"retention.ms": "1000", "segment.ms": "5"})
    assert replace(port, name, {"flush.ms": "7"}, version=version).error_code == 0
    assert chosen(port, name) == {"flush.ms": "7"}
    assert replace(port, name, {"flush.ms": None}, version=version).error_code == 42
    assert replace(port, "never-there", {}, version=version).error_code == 3


def test_brokers_and_groups_cannot_be_changed_while_they_run(port: KafkaPort) -> None:
    for resource_type, name in ((BROKER, node_id(port)), (BROKER, ""), (GROUP, "g"), (BROKER_LOGGER, "1")):
        for outcome in (
            alter(port, name, ("num.partitions", SET, "3"), resource_type=resource_type),
            replace(port, name, {"num.partitions": "3"}, resource_type=resource_type),
        ):
            assert outcome.error_code == 42
            assert outcome.error_message


def test_a_resource_named_twice_is_not_touched(port: KafkaPort) -> None:
    name = port.new_topic()
    resource = {
        "resource_type": TOPIC,
        "resource_name": name,
        "configs": [{"name": "retention.ms", "config_operation": SET, "value": "5"}],
    }
    responses = port.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource, resource]).responses
    assert [each.error_code for each in responses] == [42, 42]
    assert chosen(port, name) == {}
