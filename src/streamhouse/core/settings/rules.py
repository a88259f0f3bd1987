"""Rules between settings, each with the reason that the error shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamhouse.core.settings.declared import DurabilitySetting, Settings
from streamhouse.core.settings.declared_kafka import is_wildcard


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    keys: tuple[str, ...]
    must: str
    because: str
    holds: Callable[[Settings], bool]


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        keys=("lease.renew_interval", "lease.ttl"),
        must="lease.renew_interval must be less than half of lease.ttl",
        because="one lost renewal would otherwise cost the lease",
        holds=lambda s: 2 * s.lease.renew_interval_ms < s.lease.ttl_ms,
    ),
    Rule(
        keys=("agent.heartbeat_interval", "agent.liveness_timeout"),
        must="agent.heartbeat_interval must be less than half of agent.liveness_timeout",
        because="one lost heartbeat would otherwise look like a death",
        holds=lambda s: 2 * s.agent.heartbeat_interval_ms < s.agent.liveness_timeout_ms,
    ),
    Rule(
        keys=("store.request_timeout", "store.retry_deadline"),
        must="store.request_timeout must not be longer than store.retry_deadline",
        because="the deadline covers all tries together",
        holds=lambda s: s.store.request_timeout_ms <= s.store.retry_deadline_ms,
    ),
    Rule(
        keys=("flush.interval", "segment.max_age"),
        must="flush.interval must not be longer than segment.max_age",
        because="a segment older than its age limit would wait for the next flush",
        holds=lambda s: s.flush.interval_ms <= s.segment.max_age_ms,
    ),
    Rule(
        keys=("segment.max_bytes", "memory.write_buffer_bytes"),
        must="memory.write_buffer_bytes must hold two segments of segment.max_bytes",
        because="one uploads while the next fills",
        holds=lambda s: 2 * s.segment.max_bytes <= s.memory.write_buffer_bytes,
    ),
    Rule(
        keys=("wal.file_bytes", "wal.max_bytes"),
        must="wal.max_bytes must hold two files of wal.file_bytes",
        because="the file in use is freed only once the next one has begun",
        holds=lambda s: 2 * s.wal.file_bytes <= s.wal.max_bytes,
    ),
    Rule(
        keys=("store.access_key_id", "store.secret_access_key"),
        must="store.access_key_id and store.secret_access_key must be set together",
        because="neither means anything alone",
        holds=lambda s: (s.store.access_key_id is None) == (s.store.secret_access_key is None),
    ),
    Rule(
        keys=("kafka.allow_remote", "kafka.listen"),
        must="kafka.listen must stay on this machine's loopback unless kafka.allow_remote is true",
        because="there is no authentication yet: every client that reaches the port can read and write everything",
        holds=lambda s: s.kafka.allow_remote or not s.kafka.remote_hosts,
    ),
    Rule(
        keys=("kafka.advertised", "kafka.listen"),
        must="kafka.advertised must have one address for each of kafka.listen",
        because="a client is told the address that belongs to the listener it came through",
        holds=lambda s: s.kafka.advertised is None or len(s.kafka.advertised) == len(s.kafka.listen),
    ),
    Rule(
        keys=("kafka.listen", "kafka.advertised", "agent.address"),
        must="kafka.advertised or agent.address must be set where kafka.listen takes every address of the machine",
        because="clients cannot connect to a wildcard address, they must be told a real one",
        holds=lambda s: (
            s.kafka.advertised is not None
            or s.agent.address is not None
            or not any(is_wildcard(address.host) for address in s.kafka.listen)
        ),
    ),
    Rule(
        keys=("admin.allow_remote", "admin.listen"),
        must="admin.listen must stay on this machine's loopback unless admin.allow_remote is true",
        because="there is no authentication yet: every client that reaches the port can read the names of all topics",
        holds=lambda s: s.admin.allow_remote or not s.admin.remote_hosts,
    ),
    Rule(
        keys=("group.min_session_timeout", "group.max_session_timeout"),
        must="group.min_session_timeout must not be longer than group.max_session_timeout",
        because="no session time-out would be allowed",
        holds=lambda s: s.group.min_session_timeout_ms <= s.group.max_session_timeout_ms,
    ),
    Rule(
        keys=("group.consumer_heartbeat", "group.consumer_session_timeout"),
        must="group.consumer_heartbeat must be shorter than group.consumer_session_timeout",
        because="members would be removed between two heartbeats",
        holds=lambda s: s.group.consumer_heartbeat_ms < s.group.consumer_session_timeout_ms,
    ),
    Rule(
        keys=("durability", "metadata.url", "store.url", "wal.dir", "data_dir"),
        must="durability = wal needs SQLite metadata, local objects and the WAL all inside data_dir",
        because="elsewhere another agent can take over, and an acks=all record that only this disk holds would be lost",
        holds=lambda s: s.durability is not DurabilitySetting.WAL or s.single_node,
    ),
)
