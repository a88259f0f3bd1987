"""What goes into a group's machine and what comes out of it. Plain values; no protocol, no IO.

A machine is told an event and the time, changes its state and returns effects, in order:

    Timer    call ``on_timer(key)`` at that time (None: not any more); a later Timer of the same key replaces it
    Save     the state has to survive: write it before any answer that follows with ``after_save``
    Answer   to whoever holds the ticket: a result, or an error of the tree
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, TypeAlias

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId

Ticket = NewType("Ticket", int)
"""Stands for one request that waits for its answer."""


class TimerKind(StrEnum):
    SESSION = "session"
    """A member's: silent for too long."""
    PENDING = "pending"
    """Of an id that was given out and not used."""
    JOIN = "join"
    """The group's: who has not joined by now is out."""
    SYNC = "sync"
    """The group's: who has not asked for the assignment by now is out."""
    REVOKE = "revoke"
    """A member's: has not let go of what it must."""
    SILENCE = "silence"
    """The group's: after a take-over, write down which members have not been heard of yet."""


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
    """As clients know them."""

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
    """Empty on a first join."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata), the preferred one first."""
    known_id_required: bool = True
    """Whether this client can be told to come again with an id (JoinGroup v4+)."""
    can_skip_assignment: bool = True
    """Whether a leader understands that there is nothing to assign (v9+)."""


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
    """A member as somebody else names it: by id, by static id, or both."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOutcome:
    member: MemberRef
    error: StreamHouseError | None


# The consumer protocol (KIP-848).


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """None: unchanged since the last one."""

    group_id: str
    member_id: str
    member_epoch: int
    """0 joins, -1 leaves, -2 leaves for a while (static members)."""
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
    """None: as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFact:
    """What a group needs to know of a topic."""

    topic_id: TopicId
    name: str
    partition_count: int


# Looking at groups.


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
