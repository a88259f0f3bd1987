"""Every topic config of Apache Kafka 4.2, and ours.

Types, ranges, synonyms and defaults are Kafka's. Two things differ, on purpose: ``retention.ms`` defaults to 24
hours; ``max.message.bytes`` may not exceed the largest batch this system takes. An inert config is accepted, checked,
stored and described like any other, so that tools and deployment scripts written for Kafka work; its entry says why it
has no effect. Only descriptions read that text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse.core.limits import MAX_AGENT_ID_BYTES, MAX_BATCH_BYTES
from streamhouse.core.topic_config.schema import LONG_MAX, ConfigType, TopicConfigKey

BOOLEAN, INT, LONG, DOUBLE = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
STRING, LIST = ConfigType.STRING, ConfigType.LIST

_DAY_MS: Final = 86_400_000
_NO_REPLICAS: Final = "there are no follower replicas: the object store keeps the copies"
_NO_LOCAL_LOG: Final = "there are no local log files; objects are sized by the settings segment.* and by compaction"
_ALWAYS_REMOTE: Final = "all data is in the object store already, there is no second tier"
_REPLICA: Final = r"[0-9]{1,10}:[0-9]{1,10}"
_REPLICAS: Final = "* or a list of partition:broker pairs"

_KEYS: Final = (
    TopicConfigKey(
        name="cleanup.policy",
        type=LIST,
        default="delete",
        choices=("compact", "delete"),
        synonyms=("log.cleanup.policy",),
        doc="What happens to old records: `delete` drops them by age and size, `compact` keeps the newest of each key, "
        "`compact,delete` does both, and empty keeps everything. Neither is built yet: all records are kept. With "
        "`compact`, every record needs a key; without `delete`, DeleteRecords is refused.",
    ),
    TopicConfigKey(
        name="compression.gzip.level",
        type=INT,
        default="-1",
        at_least=1,
        at_most=9,
        also=(-1,),
        synonyms=("compression.gzip.level",),
        doc="The level of gzip where `compression.type=gzip` compresses a batch again. -1 is gzip's own default.",
    ),
    TopicConfigKey(
        name="compression.lz4.level",
        type=INT,
        default="9",
        at_least=1,
        at_most=17,
        synonyms=("compression.lz4.level",),
        doc="The level of LZ4 where `compression.type=lz4` compresses a batch again. 9 is the fast compressor, as in "
        "Kafka.",
    ),
    TopicConfigKey(
        name="compression.type",
        type=STRING,
        default="producer",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        synonyms=("compression.type",),
        doc="The codec in which batches are stored. `producer` keeps the producer's. With any other value, a batch of "
        "another codec is uncompressed and compressed again on its way in. That is much slower: set the codec in the "
        "producers instead where you can.",
    ),
    TopicConfigKey(
        name="compression.zstd.level",
        type=INT,
        default="3",
        at_least=-131_072,
        at_most=22,
        synonyms=("compression.zstd.level",),
        doc="The level of Zstandard where `compression.type=zstd` compresses a batch again.",
    ),
    TopicConfigKey(
        name="delete.retention.ms",
        type=LONG,
        default=str(_DAY_MS),
        at_least=0,
        synonyms=("log.cleaner.delete.retention.ms",),
        doc="How long a tombstone outlives compaction, so that a slow reader still sees the deletion.",
    ),
    TopicConfigKey(
        name="file.delete.delay.ms",
        type=LONG,
        default="60000",
        at_least=0,
        synonyms=("log.segment.delete.delay.ms",),
        doc="How long a dropped file waits before it is removed.",
        inert="objects wait for the grace period of vacuum, which counts from the last reference to them",
    ),
    TopicConfigKey(
        name="flush.messages",
        type=LONG,
        default=str(LONG_MAX),
        at_least=1,
        synonyms=("log.flush.interval.messages",),
        doc="How many records may wait for an fsync.",
        inert="what is synced before an answer depends on the producer's acks, never on a count",
    ),
    TopicConfigKey(
        name="flush.ms",
        type=LONG,
        default=str(LONG_MAX),
        at_least=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="How long records may wait for an fsync.",
        inert="what is synced before an answer depends on the producer's acks, never on a timer",
    ),
    TopicConfigKey(
        name="follower.replication.throttled.replicas",
        type=LIST,
        default="",
        pattern=_REPLICA,
        pattern_allows=_REPLICAS,
        doc="Which replicas are throttled as followers.",
        inert=_NO_REPLICAS,
    ),
    TopicConfigKey(
        name="index.interval.bytes",
        type=INT,
        default="4096",
        at_least=0,
        synonyms=("log.index.interval.bytes",),
        doc="How many bytes of log lie between two index entries.",
        inert="a segment's index has one entry a block",
    ),
    TopicConfigKey(
        name="leader.replication.throttled.replicas",
        type=LIST,
        default="",
        pattern=_REPLICA,
        pattern_allows=_REPLICAS,
        doc="Which replicas are throttled as leaders.",
        inert=_NO_REPLICAS,
    ),
    TopicConfigKey(
        name="local.retention.bytes",
        type=LONG,
        default="-2",
        at_least=-2,
        synonyms=("log.local.retention.bytes",),
        doc="How much stays on the broker's own disk once it was copied to remote storage.",
        inert=_ALWAYS_REMOTE,
    ),
    TopicConfigKey(
        name="local.retention.ms",
        type=LONG,
        default="-2",
        at_least=-2,
        synonyms=("log.local.retention.ms",),
        doc="How long records stay on the broker's own disk once they were copied to remote storage.",
        inert=_ALWAYS_REMOTE,
    ),
    TopicConfigKey(
        name="max.compaction.lag.ms",
        type=LONG,
        default=str(LONG_MAX),
        at_least=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="A record older than this is compacted even if little else is worth it.",
    ),
    TopicConfigKey(
        name="max.message.bytes",
        type=INT,
        default="1048588",
        at_least=0,
        at_most=MAX_BATCH_BYTES,
        synonyms=("message.max.bytes",),
        doc="The largest record batch the topic takes, as it comes from the producer.",
    ),
    TopicConfigKey(
        name="message.timestamp.after.max.ms",
        type=LONG,
        default="3600000",
        at_least=0,
        synonyms=("log.message.timestamp.after.max.ms",),
        doc="How far a record's own timestamp may lie in the future.",
    ),
    TopicConfigKey(
        name="message.timestamp.before.max.ms",
        type=LONG,
        default=str(LONG_MAX),
        at_least=0,
        synonyms=("log.message.timestamp.before.max.ms",),
        doc="How far a record's own timestamp may lie in the past.",
    ),
    TopicConfigKey(
        name="message.timestamp.type",
        type=STRING,
        default="CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
        doc="Whose time a record carries: the producer's, or that of its arrival.",
    ),
    TopicConfigKey(
        name="min.cleanable.dirty.ratio",
        type=DOUBLE,
        default="0.5",
        at_least=0,
        at_most=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="The share of not yet compacted bytes from which compaction by key pays off.",
    ),
    TopicConfigKey(
        name="min.compaction.lag.ms",
        type=LONG,
        default="0",
        at_least=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="A record younger than this is never compacted away.",
    ),
    TopicConfigKey(
        name="min.insync.replicas",
        type=INT,
        default="1",
        at_least=1,
        synonyms=("min.insync.replicas",),
        doc="How many replicas must hold a record before acks=all is answered.",
        inert=_NO_REPLICAS,
    ),
    TopicConfigKey(
        name="preallocate",
        type=BOOLEAN,
        default="false",
        synonyms=("log.preallocate",),
        doc="Whether log files are created at full size.",
        inert=_NO_LOCAL_LOG,
    ),
    TopicConfigKey(
        name="remote.log.copy.disable",
        type=BOOLEAN,
        default="false",
        doc="Stops copying to remote storage.",
        inert=_ALWAYS_REMOTE,
    ),
    TopicConfigKey(
        name="remote.log.delete.on.disable",
        type=BOOLEAN,
        default="false",
        doc="Deletes remote data once remote storage is turned off.",
        inert=_ALWAYS_REMOTE,
    ),
    TopicConfigKey(
        name="remote.storage.enable",
        type=BOOLEAN,
        default="false",
        doc="Turns on Kafka's tiered storage.",
        inert=_ALWAYS_REMOTE,
    ),
    TopicConfigKey(
        name="retention.bytes",
        type=LONG,
        default="-1",
        synonyms=("log.retention.bytes",),
        doc="How many bytes of a partition are kept under `delete`; a negative number means no limit.",
    ),
    TopicConfigKey(
        name="retention.hold.ms",
        type=LONG,
        default="0",
        at_least=0,
        doc="StreamHouse's own: how much longer than `retention.ms` records stay until every consumer group with "
        "offsets in the partition has read them, streaming queries included. `retention.bytes` waits for as long. 0: "
        "no waiting.",
    ),
    TopicConfigKey(
        name="retention.ms",
        type=LONG,
        default=str(_DAY_MS),
        at_least=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="How long records are kept under `delete`; -1 means no limit. 24 hours by default, where Kafka has 7 days.",
    ),
    TopicConfigKey(
        name="segment.bytes",
        type=INT,
        default=str(2**30),
        at_least=2**20,
        synonyms=("log.segment.bytes",),
        doc="The size at which a log file is closed.",
        inert=_NO_LOCAL_LOG,
    ),
    TopicConfigKey(
        name="segment.index.bytes",
        type=INT,
        default="10485760",
        at_least=4,
        synonyms=("log.index.size.max.bytes",),
        doc="The size of a log file's index.",
        inert=_NO_LOCAL_LOG,
    ),
    TopicConfigKey(
        name="segment.jitter.ms",
        type=LONG,
        default="0",
        at_least=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="A random delay that keeps log files from being closed all at once.",
        inert=_NO_LOCAL_LOG,
    ),
    TopicConfigKey(
        name="segment.ms",
        type=LONG,
        default=str(7 * _DAY_MS),
        at_least=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
        doc="The age at which a log file is closed.",
        inert=_NO_LOCAL_LOG,
    ),
    TopicConfigKey(
        name="unclean.leader.election.enable",
        type=BOOLEAN,
        default="false",
        synonyms=("unclean.leader.election.enable",),
        doc="Whether a replica that lags may lead.",
        inert=_NO_REPLICAS,
    ),
    TopicConfigKey(
        name="agent.group",
        type=STRING,
        default="default",
        pattern=rf"[A-Za-z0-9._-]{{1,{MAX_AGENT_ID_BYTES}}}",
        pattern_allows=f"1 to {MAX_AGENT_ID_BYTES} letters, digits, '.', '_' or '-'",
        doc="StreamHouse's own: the group of agents whose members lead this topic's partitions. Agents of other groups "
        "never do, so a busy topic can have agents to itself.",
    ),
    TopicConfigKey(
        name="diskless.enable",
        type=BOOLEAN,
        default="false",
        immutable=True,
        doc="StreamHouse's own: write through any agent straight to the object store (leaderless), instead of through "
        "the partition's lease holder. Set when the topic is created, fixed from then on. Not built yet: today only "
        "the Spark sink writes to such topics.",
    ),
)

TOPIC_CONFIGS: Final[Mapping[str, TopicConfigKey]] = {key.name: key for key in sorted(_KEYS, key=lambda key: key.name)}
