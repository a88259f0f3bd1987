"""The settings. To add one, add one declaration here; flag, variable, TOML key and reference follow (see schema.py).

``why`` gives the reason for the default, and for the bounds where they need one. Rules between two settings are in
rules.py. Settings objects are made by ``resolve``, never by hand: a default may depend on the profile or on others.
"""

# ruff: noqa: RUF009 -- the calls declare fields; they are not mutable defaults

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from streamhouse.core.limits import MAX_AGENT_ID_BYTES, MAX_BATCH_BYTES, MAX_LEASE_TTL_MS, RESUBMIT_MAX_AGE_MS
from streamhouse.core.settings.declared_admin import AdminSettings
from streamhouse.core.settings.declared_groups import GroupSettings
from streamhouse.core.settings.declared_kafka import KafkaSettings
from streamhouse.core.settings.declared_maintenance import MaintenanceSettings
from streamhouse.core.settings.schema import (
    EnvAlias,
    boolean,
    choice,
    directory,
    duration,
    number,
    optional_boolean,
    optional_text,
    optional_url,
    size,
    text,
    url,
)
from streamhouse.core.units import format_duration
from streamhouse.core.urls import local_path, scheme_of

_NAME = rf"[A-Za-z0-9._-]{{1,{MAX_AGENT_ID_BYTES}}}"
_NAME_ALLOWED = f"1 to {MAX_AGENT_ID_BYTES} letters, digits, '.', '_' or '-'"


class Profile(StrEnum):
    DEFAULT = "default"
    FAST = "fast"
    CHEAP = "cheap"


class DurabilitySetting(StrEnum):
    AUTO = "auto"
    WAL = "wal"
    OBJECT = "object"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSettings:
    """The metadata store: topics, offsets, leases and the index."""

    url: str = url(
        "sqlite://{data_dir}/metadata.db",
        schemes=("sqlite", "postgresql", "postgres"),
        reserved=("oxia",),
        example="postgresql://user:password@host:5432/streamhouse",
        doc="The metadata store: SQLite for one machine, PostgreSQL for a fleet.",
        why="one process needs no external service",
    )
    commit_retention_ms: int = duration(
        "1h",
        at_least=format_duration(2 * RESUBMIT_MAX_AGE_MS),
        at_most="30d",
        doc="How long the id of a commit is kept at least, so that a repeat of the commit is recognised. Ids whose "
        "objects could still be committed are kept for longer, whatever this says.",
        why="acks=1 records are resubmitted under their id for ten minutes after their write (R4); the lower bound is "
        "twice that, the default six times, for clocks that disagree",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The object store, which keeps the records."""

    url: str = url(
        "file://{data_dir}/objects",
        schemes=("file", "s3", "gs", "az"),
        example="s3://bucket/prefix",
        doc="The object store: a local directory or a bucket.",
        why="one process needs no external service",
    )
    endpoint_url: str | None = optional_url(
        schemes=("http", "https"),
        example="http://127.0.0.1:9000",
        doc="An S3-compatible server other than AWS. Unset: AWS_ENDPOINT_URL, else AWS itself.",
        why="the region decides the address on AWS",
    )
    region: str | None = optional_text(
        example="eu-central-1",
        doc="The bucket's region. Unset: AWS_REGION, else us-east-1.",
        why="usually known to the machine already",
    )
    path_style: bool | None = optional_boolean(
        doc="The bucket goes into the path instead of the host name. Unset: yes with store.endpoint_url, no on AWS.",
        why="AWS wants the host name, most S3-compatible servers the path",
    )
    access_key_id: str | None = optional_text(
        example="AKIAIOSFODNN7EXAMPLE",
        doc="The S3 access key. Unset: the usual places (AWS_ACCESS_KEY_ID, instance role).",
        why="machines in a cloud have a role",
    )
    secret_access_key: str | None = optional_text(
        secret=True,
        example="a secret",
        doc="The secret that belongs to store.access_key_id.",
        why="machines in a cloud have a role",
    )
    direct_io: bool = boolean(
        True,
        doc="Large objects in a local directory are written and read past the page cache, where its file system can.",
        why="readers have caches of their own; turn it off for many readers far behind on a slow disk",
    )
    request_timeout_ms: int = duration(
        "15s",
        at_least="100ms",
        at_most="10m",
        doc="How long one request to the object store may take.",
        why="a slow PUT of a large part takes seconds; one that takes 15 s will not finish",
    )
    retry_deadline_ms: int = duration(
        "60s",
        at_least="100ms",
        at_most="1h",
        doc="How long a call is repeated, all tries together, before it fails.",
        why="rides out a failover of the store; longer only hides that it is down",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The identity of this process among the agents, and its timings."""

    id: str | None = optional_text(
        example="agent-1",
        pattern=_NAME,
        allowed=_NAME_ALLOWED,
        doc="This agent's name in the fleet; two live processes must not share one. Unset: made once and kept in "
        "data_dir.",
        why="a name that survives a restart keeps its partitions",
    )
    zone: str = text(
        "default",
        example="eu-central-1a",
        pattern=_NAME,
        allowed=_NAME_ALLOWED,
        doc="The availability zone this agent runs in.",
        why="one machine has one zone",
    )
    group: str = text(
        "default",
        example="ingest",
        pattern=_NAME,
        allowed=_NAME_ALLOWED,
        doc="The agent group; agents take partitions only of their own group.",
        why="without isolation all agents share the work",
    )
    address: str | None = optional_text(
        example="broker-1.internal:9092",
        pattern=r"[^\s/@]{1,255}:[0-9]{1,5}",
        allowed="host:port",
        doc="The host:port that clients are told for this agent. Unset: where it listens.",
        why="right wherever no proxy or container stands between",
    )
    heartbeat_interval_ms: int = duration(
        "20s",
        at_least="100ms",
        at_most="10m",
        fast="2s",
        doc="How often the agent tells the metadata store that it is alive.",
        why="three in a liveness timeout",
    )
    liveness_timeout_ms: int = duration(
        "60s",
        at_least="500ms",
        at_most="1h",
        fast="6s",
        doc="An agent silent for longer counts as dead.",
        why="an agent may lose two heartbeats",
    )
    stop_timeout_ms: int = duration(
        "20s",
        at_least="0s",
        at_most="1h",
        doc="How long a graceful stop waits for records that are not in the object store yet. What is not there by "
        "then stays in the write-ahead log until this agent starts again. With `durability=wal` it does not wait at "
        "all while the store cannot be reached.",
        why="Kubernetes kills after 30 s, and the leases have to be handed over too",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Leases on partitions and coordinator slots."""

    ttl_ms: int = duration(
        "30s",
        at_least="1s",
        at_most=format_duration(MAX_LEASE_TTL_MS),
        fast="6s",
        doc="How long a lease lasts without a renewal.",
        why="three renewals fit into it; it is over when a crashed agent counts as dead",
    )
    renew_interval_ms: int = duration(
        "10s",
        at_least="100ms",
        at_most="10m",
        fast="2s",
        doc="How often leases are renewed.",
        why="two renewals may be lost before the lease is",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignerSettings:
    """The loop that decides which partitions this agent should hold."""

    interval_ms: int = duration(
        "30s",
        at_least="100ms",
        at_most="10m",
        fast="2s",
        doc="How often agents, topics and leases are looked at and put right.",
        why="half a liveness timeout",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSettings:
    """When a partition's buffered records become an object."""

    max_bytes: int = size(
        "1MiB",
        at_least="64KiB",
        at_most="100MiB",
        doc="A segment is closed and uploaded once it holds this much.",
        why="one block of a segment, and the size from which the fixed cost of a PUT does not matter",
    )
    max_age_ms: int = duration(
        "60s",
        at_least="100ms",
        at_most="1h",
        single_node="1s",
        doc="A segment is closed and uploaded once its first record is this old.",
        why="with durability in the WAL, Spark reads objects and must not lag by more than a second",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushSettings:
    """When waiting producers are served."""

    interval_ms: int = duration(
        "250ms",
        at_least="1ms",
        at_most="60s",
        doc="The longest time that an acks=all batch waits for others to share its flush, while the budget has PUTs "
        "left. A flush starts earlier when waiting gains nothing. For a reader that waits, a flush starts at most this "
        "often.",
        why="on a store with slow PUTs, batches wait for as long as a flush takes; this is the limit",
    )
    max_puts_per_second: int = number(
        20,
        at_least=1,
        at_most=10_000,
        fast=200,
        cheap=4,
        doc="How many small objects an agent puts per second at most. Over it, batches wait and share an object. "
        "Objects of `segment.max_bytes` or more do not count. Without effect where durability is `wal`.",
        why="at 0.005 USD for a thousand PUTs, 20 per second all month are 260 USD for each busy agent; an idle one "
        "puts nothing",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    """The write-ahead log on the local disk."""

    dir: Path = directory(
        "{data_dir}/wal",
        doc="The directory of the write-ahead log. A fast local disk pays off here.",
        why="one directory to back up, lock and move",
    )
    max_batch_age_ms: int = duration(
        "0ms",
        at_least="0ms",
        at_most="10ms",
        doc="How long an append may wait for others to share its fdatasync.",
        why="what arrives during one sync shares the next, so a timer only adds latency",
    )
    file_bytes: int = size(
        "64MiB",
        at_least="1MiB",
        at_most="1GiB",
        single_node="16MiB",
        doc="The size of one file of the write-ahead log. A batch that does not fit into one gets a larger file of its "
        "own.",
        why="files are freed as a whole: smaller ones come free sooner, larger ones change over less often; a single "
        "node shares the disk with its objects and frees them early",
    )
    max_bytes: int = size(
        "4GiB",
        at_least="256MiB",
        at_most="1TiB",
        doc="How much disk the write-ahead log may take. When it is full of uncommitted batches, writes are refused.",
        why="a quiet partition's first batch holds its file and all later ones for segment.max_age: a minute of 70 "
        "MB/s; the lower bound takes two of the largest batches",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """Bounds on what a process keeps in memory. Their sum is about what it may use beyond its code."""

    write_buffer_bytes: int = size(
        "256MiB",
        at_least="1MiB",
        at_most="1TiB",
        single_node="32MiB",
        doc="Batches accepted and not yet committed, all partitions together. Above it, writers wait, and are "
        "refused after five seconds. A batch larger than this is refused for good.",
        why="a minute of 4 MB/s, the longest the object store's retries last; on a single node the store is a local "
        "disk, and the write-ahead log takes as much of it as waits here",
    )
    tail_cache_bytes: int = size(
        "40MiB",
        at_least="0B",
        at_most="1TiB",
        doc="Recently written batches kept for readers at the tail.",
        why="readers that keep up never touch the object store; a laptop's process stays below 200 MB. Raise it on a "
        "machine of its own",
    )
    block_cache_bytes: int = size(
        "32MiB",
        at_least="0B",
        at_most="1TiB",
        doc="Blocks of objects kept for readers further back, and as far ahead of them as they may be fetched.",
        why="enough for several consumers that read the same stretch; each sequential reader is 8 MiB ahead at most",
    )
    request_bytes: int = size(
        "256MiB",
        at_least=MAX_BATCH_BYTES,
        at_most="1TiB",
        doc="Requests received and not yet answered, all connections together. Above it, sockets are not read.",
        why="two requests of the largest size; the lower bound lets one of them through",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The log lines of the process."""

    level: LogLevel = choice(
        LogLevel.INFO,
        doc="The least important message that is still written.",
        why="starts, stops, elections and refusals; nothing per request",
    )
    format: LogFormat = choice(
        LogFormat.TEXT,
        doc="`text`: plain lines; `json`: one JSON object in each line.",
        why="the first reader is a person",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process, typed and checked."""

    data_dir: Path = directory(
        "./streamhouse-data",
        doc="The local directory for whatever is not put elsewhere: SQLite metadata, objects, WAL.",
        why="visible beside the project that uses it, removed with one command",
    )
    profile: Profile = choice(
        Profile.DEFAULT,
        doc="Which defaults the timing settings have. `fast` detects a dead agent within 10 s, at more metadata "
        "traffic, and lets writes on S3 wait less, for more PUTs. `cheap` puts four small objects per second at "
        "most, so small writes wait for up to a quarter of a second.",
        why="the default numbers suit a fleet",
    )
    durability: DurabilitySetting = choice(
        DurabilitySetting.AUTO,
        doc="What an acks=all write waits for: the local WAL (single node only), or object store and metadata commit.",
        why="`auto` takes `wal` where metadata and objects lie in data_dir on this machine, else `object`",
    )
    embedded_agent: bool = boolean(
        True,
        doc="Run an agent inside the server process.",
        why="one process is the whole system; API-only servers beside standalone agents turn it off",
        alias=EnvAlias(variable="DISABLE_EMBEDDED_AGENT", inverted=True),
    )
    metadata: MetadataSettings
    store: StoreSettings
    agent: AgentSettings
    lease: LeaseSettings
    assigner: AssignerSettings
    segment: SegmentSettings
    flush: FlushSettings
    wal: WalSettings
    memory: MemorySettings
    kafka: KafkaSettings
    admin: AdminSettings
    group: GroupSettings
    maintenance: MaintenanceSettings
    log: LogSettings

    @property
    def single_node(self) -> bool:
        """Whether metadata, objects and WAL are all in data_dir, where one exclusive lock covers them."""
        return is_single_node(
            data_dir=self.data_dir, metadata_url=self.metadata.url, store_url=self.store.url, wal_dir=self.wal.dir
        )

    @property
    def effective_durability(self) -> DurabilitySetting:
        """``durability``, with ``auto`` resolved."""
        if self.durability is not DurabilitySetting.AUTO:
            return self.durability
        return DurabilitySetting.WAL if self.single_node else DurabilitySetting.OBJECT


def is_single_node(*, data_dir: Path, metadata_url: str, store_url: str, wal_dir: Path) -> bool:
    if scheme_of(metadata_url) != "sqlite" or scheme_of(store_url) != "file":
        return False
    root = PurePosixPath(data_dir)
    inside = (local_path(metadata_url), local_path(store_url), PurePosixPath(wal_dir))
    return all(path.is_relative_to(root) for path in inside)
