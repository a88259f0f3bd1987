"""The state of a group as it is saved and restored: frozen, without requests that wait for an answer.

The structs are stored as they are, as arrays of their fields: a changed field is a new version of payload.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import msgspec

from streamhouse.broker.groups.contract import GroupState
from streamhouse.core.ids import PartitionKey, TopicId


class StoredStruct(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Stored as an array of its fields, in their order."""


class ClassicMemberSnapshot(StoredStruct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class ClassicSnapshot(StoredStruct, frozen=True, kw_only=True, tag=1):
    state: GroupState
    protocol_type: str
    protocol_name: str
    leader: str | None
    members: tuple[ClassicMemberSnapshot, ...]
    silent: tuple[tuple[str, int], ...] = ()
    """Members that have sent nothing since the last take-over, by id, with milliseconds; see machine.py."""


class Reconciliation(IntEnum):
    """How far a member of a consumer group is on its way to its target."""

    STABLE = 0
    UNREVOKED = 1
    """It must give up partitions first."""
    UNRELEASED = 2
    """It waits for partitions that other members have not given up."""


class ClassicTraits(StoredStruct, frozen=True, kw_only=True):
    """What a member of the classic protocol in a consumer group has that other members have not."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(assignor, subscription), the preferred one first. There is at least one."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.protocols)

    @property
    def weight_bytes(self) -> int:
        return sum(len(name) * 4 + len(metadata) + 8 for name, metadata in self.protocols)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberSnapshot:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...]
    topic_pattern: str | None
    assignor: str | None
    member_epoch: int
    previous_epoch: int
    state: Reconciliation
    assigned: frozenset[PartitionKey]
    revoking: frozenset[PartitionKey]
    target: frozenset[PartitionKey]
    classic: ClassicTraits | None = None
    """None: the member uses the consumer protocol."""
    encoded: list[bytes] = field(default_factory=list, repr=False, compare=False)
    """Its bytes, once they were made. Most members of a large group do not change from one save to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSnapshot:
    assignment_epoch: int
    partitions: tuple[tuple[TopicId, int], ...]
    """The topics of the target assignment, with the partition counts that it was made with."""
    members: tuple[ConsumerMemberSnapshot, ...]
    silent: tuple[tuple[str, int], ...] = ()
    """The same as ``silent`` of ClassicSnapshot."""


GroupSnapshot = ClassicSnapshot | ConsumerSnapshot
