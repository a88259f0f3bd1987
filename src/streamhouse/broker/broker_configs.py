"""What a Kafka tool is shown as an agent's or a group's configs. Read-only: settings are given when a process starts.

Three kinds of rows: Kafka's own names where this agent has the same thing, the broker-wide defaults of topic configs
under the names Kafka has for them, and every setting under its own key with ``streamhouse.`` in front.
"""

from __future__ import annotations

from typing import Any, Final

from streamhouse.core.limits import COORDINATOR_SLOTS
from streamhouse.core.settings import SCHEMA, Setting, Settings
from streamhouse.core.topic_config import TOPIC_CONFIGS, ConfigSource, ConfigType, Description

OWN_PREFIX: Final = "streamhouse."
_TYPES: Final = {"boolean": ConfigType.BOOLEAN, "number": ConfigType.LONG, "addresses": ConfigType.LIST}


def describe_broker(settings: Settings, *, node_id: int, listeners: str) -> list[Description]:
    """``listeners``: where clients reach this agent, as Kafka spells it."""
    rows = [*_kafka_rows(settings, node_id, listeners), *_topic_defaults()]
    named = {row.name: row for row in rows}
    own = [_setting_row(setting, settings) for setting in SCHEMA]
    return sorted([*named.values(), *own], key=lambda row: row.name)


def describe_group(settings: Settings) -> list[Description]:
    group = settings.group
    return [
        _row(
            "consumer.heartbeat.interval.ms",
            ConfigType.INT,
            str(group.consumer_heartbeat_ms),
            "The setting group.consumer_heartbeat, the same for every group.",
        ),
        _row(
            "consumer.session.timeout.ms",
            ConfigType.INT,
            str(group.consumer_session_timeout_ms),
            "The setting group.consumer_session_timeout, the same for every group.",
        ),
    ]


def _kafka_rows(settings: Settings, node_id: int, listeners: str) -> list[Description]:
    kafka, group = settings.kafka, settings.group
    return [
        _row("node.id", ConfigType.INT, str(node_id), "This agent's number, kept through restarts."),
        _row("broker.id", ConfigType.INT, str(node_id), "The same as node.id."),
        _row("broker.rack", ConfigType.STRING, settings.agent.zone, "The setting agent.zone."),
        _row("advertised.listeners", ConfigType.LIST, listeners, "The setting kafka.advertised."),
        _row("listeners", ConfigType.LIST, _urls(kafka.listen), "The setting kafka.listen."),
        _row(
            "auto.create.topics.enable", ConfigType.BOOLEAN, _word(kafka.auto_create_topics), "Kafka's name for ours."
        ),
        _row("num.partitions", ConfigType.INT, str(kafka.num_partitions), "The setting kafka.num_partitions."),
        _row("default.replication.factor", ConfigType.INT, "1", "The object store keeps the copies."),
        _row("offsets.topic.replication.factor", ConfigType.SHORT, "1", "The metadata store keeps the offsets."),
        _row("offsets.topic.num.partitions", ConfigType.INT, str(COORDINATOR_SLOTS), "Coordinator slots of groups."),
        _row(
            "offsets.retention.minutes", ConfigType.INT, str(group.offsets_retention_ms // 60_000), "For empty groups."
        ),
        _row("group.max.size", ConfigType.INT, str(group.max_size), "The setting group.max_size."),
        _row("group.min.session.timeout.ms", ConfigType.INT, str(group.min_session_timeout_ms), "Of classic groups."),
        _row("group.max.session.timeout.ms", ConfigType.INT, str(group.max_session_timeout_ms), "Of classic groups."),
        _row(
            "group.initial.rebalance.delay.ms",
            ConfigType.INT,
            str(group.initial_rebalance_delay_ms),
            "The setting group.initial_rebalance_delay.",
        ),
        _row("delete.topic.enable", ConfigType.BOOLEAN, "true", "Topics can be deleted."),
        _row("socket.request.max.bytes", ConfigType.INT, str(kafka.max_request_bytes), "kafka.max_request_bytes."),
        _row("connections.max.idle.ms", ConfigType.LONG, str(kafka.idle_timeout_ms), "The setting kafka.idle_timeout."),
        _row("max.connections", ConfigType.INT, str(kafka.max_connections), "The setting kafka.max_connections."),
        _row(
            "max.connections.per.ip",
            ConfigType.INT,
            str(kafka.max_connections_per_ip),
            "The setting kafka.max_connections_per_ip.",
        ),
        _row(
            "max.incremental.fetch.session.cache.slots",
            ConfigType.INT,
            str(kafka.fetch_sessions),
            "The setting kafka.fetch_sessions.",
        ),
        _row(
            "producer.id.expiration.ms",
            ConfigType.INT,
            str(kafka.producer_id_expiration_ms),
            "The setting kafka.producer_id_expiration.",
        ),
    ]


def _topic_defaults() -> list[Description]:
    return [
        _row(
            key.synonyms[0],
            key.type,
            key.default,
            f"What topics have that do not set {key.name}. {key.doc}",
            source=ConfigSource.DEFAULT_CONFIG,
        )
        for key in TOPIC_CONFIGS.values()
        if key.synonyms
    ]


def _setting_row(setting: Setting, settings: Settings) -> Description:
    owner: Any = getattr(settings, setting.section) if setting.section else settings
    value = getattr(owner, setting.attribute)
    text = None if value is None else _word(value) if isinstance(value, bool) else setting.kind.format(value)
    declared = setting.declaration
    default = text == declared.default
    return _row(
        OWN_PREFIX + setting.key,
        _TYPES.get(setting.kind.name, ConfigType.STRING),
        None if declared.secret else text,
        declared.doc,
        source=ConfigSource.DEFAULT_CONFIG if default else ConfigSource.STATIC_BROKER_CONFIG,
        sensitive=declared.secret,
    )


def _row(
    name: str,
    config_type: ConfigType,
    value: str | None,
    documentation: str,
    *,
    source: ConfigSource = ConfigSource.STATIC_BROKER_CONFIG,
    sensitive: bool = False,
) -> Description:
    return Description(
        name=name,
        value=value,
        type=config_type,
        source=source,
        read_only=True,
        synonyms=(),
        documentation=documentation,
        sensitive=sensitive,
    )


def _urls(addresses: object) -> str:
    assert isinstance(addresses, tuple)
    return ",".join(f"PLAINTEXT://{address}" for address in addresses)


def _word(value: bool) -> str:
    return "true" if value else "false"
