"""The limits and time-outs of a group coordinator. Filled from the ``group.*`` settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamhouse.core.limits import MAX_GROUP_STATE_BYTES, MIB

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""How long a first JoinGroup is held at most. A new member has no id yet and cannot send heartbeats, so only this limit
removes it if its client is gone (Kafka uses the same figure)."""

MAX_ASSIGNMENT_BYTES: Final = (
    4 * MIB
)  # all assignments in one SyncGroup of a leader: 400 bytes for each of 10,000 members
MAX_ROSTER_BYTES: Final = MAX_GROUP_STATE_BYTES - MAX_ASSIGNMENT_BYTES - MIB  # the rest of the row, and 1 MiB to spare
MAX_ASSIGNED_PARTITIONS: Final = (
    500_000  # of one consumer group: held and in the target, each less than 4 bytes on average
)
MAX_PATTERN_CHARS: Final = 1024  # a subscription's regular expression; compiled and run over every topic name
MAX_SUBSCRIBED_TOPICS: Final = 10_000  # in the subscription of one consumer-protocol member


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    initial_rebalance_delay_ms: int = 0
    """How long the first rebalance of an empty classic group waits for more members."""
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 10_000
    """Members of one group."""
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    offsets_retention_ms: int = 7 * 86_400_000
    """A group without members for that long is deleted with its offsets."""
    offsets_retention_check_ms: int = 600_000
    max_groups: int = 100_000
    """The most groups of one process. A group takes about 1 KB, so this keeps made-up names from filling the memory."""
