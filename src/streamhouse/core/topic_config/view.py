"""A topic's configs as the broker uses them (typed, defaults filled in) and as a client asks for them (described)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, cast

from streamhouse.core.topic_config.keys import TOPIC_CONFIGS
from streamhouse.core.topic_config.schema import ConfigType
from streamhouse.core.topic_config.validate import parse_all, validate


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Every topic config by its name, dots as underscores. Numbers mean what they mean in Kafka, -1 included."""

    agent_group: str
    cleanup_policy: tuple[str, ...]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    diskless_enable: bool
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    follower_replication_throttled_replicas: tuple[str, ...]
    index_interval_bytes: int
    leader_replication_throttled_replicas: tuple[str, ...]
    local_retention_bytes: int
    local_retention_ms: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    remote_log_copy_disable: bool
    remote_log_delete_on_disable: bool
    remote_storage_enable: bool
    retention_bytes: int
    retention_hold_ms: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    opens_batches: bool = field(init=False, repr=False, compare=False)
    """Records are looked at when they are written (broker/preparation.py). Kept, because every batch asks for it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "opens_batches", self.compression_type != "producer" or self.compacts)

    @property
    def deletes(self) -> bool:
        """Old records go, by age and size."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Only the newest record of each key must stay."""
        return "compact" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


class ConfigSource(IntEnum):
    """The source codes of Kafka's DescribeConfigs response that a config can have here."""

    DYNAMIC_TOPIC_CONFIG = 1
    STATIC_BROKER_CONFIG = 4
    """A setting of the process; no topic config has it."""
    DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """One row of a DescribeConfigs answer."""

    name: str
    value: str | None
    """The value; None when it is a secret, or unset."""
    type: ConfigType
    source: ConfigSource
    read_only: bool
    synonyms: tuple[Synonym, ...]
    documentation: str
    sensitive: bool = False


_DEFAULTS = {key.name: key.parse(key.default) for key in TOPIC_CONFIGS.values()}


def effective(configs: Mapping[str, str]) -> TopicConfig:
    """The stored configs of a topic with every default filled in."""
    values = {**_DEFAULTS, **parse_all(configs)}
    by_attribute = {TOPIC_CONFIGS[name].attribute: value for name, value in values.items()}
    return TopicConfig(**cast("dict[str, Any]", by_attribute))


def describe(configs: Mapping[str, str]) -> list[Description]:
    """Every topic config, set or not, in name order, with its synonyms as Kafka lists them: the strongest first."""
    stored = validate(configs)
    rows = []
    for key in TOPIC_CONFIGS.values():
        synonyms = []
        if key.name in stored:
            synonyms.append(Synonym(name=key.name, value=stored[key.name], source=ConfigSource.DYNAMIC_TOPIC_CONFIG))
        if key.synonyms:
            synonyms.append(Synonym(name=key.synonyms[0], value=key.default, source=ConfigSource.DEFAULT_CONFIG))
        rows.append(
            Description(
                name=key.name,
                value=stored.get(key.name, key.default),
                type=key.type,
                source=ConfigSource.DYNAMIC_TOPIC_CONFIG if key.name in stored else ConfigSource.DEFAULT_CONFIG,
                read_only=key.immutable,
                synonyms=tuple(synonyms),
                documentation=f"{key.doc} No effect here: {key.inert}." if key.inert else key.doc,
            )
        )
    return rows
