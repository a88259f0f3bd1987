"""What goes into a group's state machine, and what comes out of it. Plain values; no protocol, no IO.

A state machine gets an event and the time, changes its state, and returns effects, in order:

    Timer    call ``on_timer(key)`` at that time (None: cancel); a later Timer of the same key replaces it
    Save     the state must survive: write it before any answer that follows with ``after_save``
    Answer   the answer to the request with this ticket: a result, or an error
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, TypeAlias

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId

Ticket = NewType("Ticket", int)
"""Names one request that waits for its answer."""


class TimerKind(StrEnum):
    SESSION = "session"
    """One member has sent nothing for a session: remove it."""
    PENDING = "pending"
    """A member id that was given out has not been used: forget it."""
    JOIN = "join"
    """Remove all members that have not joined. In a consumer group: one member of the classic protocol."""
    SYNC = "sync"
    """Remove all members that have not sent SyncGroup. In a consumer group: one member of the classic protocol."""
    REVOKE = "revoke"
    """One member has not given up its partitions in time: remove it."""
    SILENCE = "silence"
    """Save which members have not sent a request since the take-over."""


@dataclass(frozen=True, slots=True)
class TimerKey:
    kind: TimerKind
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class Timer:
    key: TimerKey
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Save:
    pass


@dataclass(frozen=True, slots=True)
class Answer:
    ticket: Ticket
    result: object
    """A result of this module, or a StreamHouseError."""
    after_save: bool = False


Effect: TypeAlias = Timer | Save | Answer
Effects: TypeAlias = Sequence[Effect]


class GroupType(StrEnum):
    CLASSIC = "classic"
    CONSUMER = "consumer"


class GroupState(StrEnum):
    """The names are those that clients show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


# The classic protocol.


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: str
    member_id: str
    """Empty in the first request of a new member."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata), the preferred one first."""
    known_id_required: bool = True
    """Whether a new member must first get an id, and join again with it (JoinGroup v4+)."""
    can_skip_assignment: bool = True
    """Whether the client understands that a leader has nothing to assign (JoinGroup v9+)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    """All members in the answer to the leader; empty in the answers to the other members."""
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    protocol_type: str
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRef:
    """A member as LeaveGroup names it: by member id, by instance id, or both."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutcome:
    member: MemberRef
    error: StreamHouseError | None


# The consumer protocol (KIP-848).


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A field that is None has not changed since the last heartbeat."""

    group_id: str
    member_id: str
    member_epoch: int
    """0: join. -1: leave. -2: leave for a while (static members)."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topic_names: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    assignor: str | None = None
    owned: frozenset[PartitionKey] | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResult:
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: frozenset[PartitionKey] | None
    """None: unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFact:
    """What a group needs to know about a topic."""

    topic_id: TopicId
    name: str
    partition_count: int


# Describing groups.


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMemberView:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicGroupView:
    group_id: str
    state: GroupState
    protocol_type: str
    protocol_name: str
    members: tuple[ClassicMemberView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberView:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_pattern: str | None
    assigned: frozenset[PartitionKey]
    target: frozenset[PartitionKey]
    is_classic: bool = False
    """Whether the member uses the classic protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupView:
    group_id: str
    state: GroupState
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: GroupState
    type: GroupType
