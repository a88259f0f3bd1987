"""Consumer groups: their persisted state and their committed offsets.

A group belongs to a coordinator slot. A write by a coordinator is fenced by that slot's epoch: it locks the slot's row
first, and the group's own row remembers the highest epoch that wrote it (R1). The *simple commit* has no coordinator,
no members and no generation; Spark uses it, and coordinators learn of it by ``offsets_version``.

A fence whose slot is not the group's own would protect nothing: InvalidRequest, in every method that takes one.

Atomicity asked of a backend: one group per call (its row, and its offsets as a whole).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import COORDINATOR_SLOTS
from streamhouse.metadata.contract.leases import SlotKey
from streamhouse.wire.murmur2 import murmur2


def slot_of(group_id: str) -> SlotKey:
    """The slot of a group: the same in every process, for the life of a store."""
    return SlotKey((murmur2(group_id.encode()) & 0x7FFFFFFF) % COORDINATOR_SLOTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFence:
    """The slot a coordinator writes under, and the epoch it holds it at."""

    slot: SlotKey
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    group_id: str
    slot: SlotKey
    slot_epoch: int
    """The highest slot epoch that wrote this group; 0 when only simple commits did."""
    generation: int
    member_count: int
    payload: bytes
    """The coordinator's own encoding of members, protocol and assignments."""
    updated_at_ms: int
    empty_since_ms: int | None
    """The time since which it has had no members; None while it has members."""
    offsets_version: int
    """Grows with every change of its offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """Kept as it is given, as Apache Kafka does: any 64-bit offset, negative ones included, and any text."""

    key: PartitionKey
    offset: int
    """The next offset to read. A negative one names no record: a consumer resets by its ``auto.offset.reset``."""
    leader_epoch: int = -1
    metadata: str = ""
    """The metadata of the commit, which may hold NUL characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    key: PartitionKey
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class Groups(ABC):
    @abstractmethod
    async def save_group(
        self, group_id: str, fence: SlotFence, *, generation: int, member_count: int, payload: bytes
    ) -> Group:
        """Create or replace. Raises StaleEpoch (the slot's epoch is not the fence's), Conflict (a lower generation than
        the stored one), LimitExceeded (payload, group id), InvalidRequest (a generation or member count below 0).
        """

    @abstractmethod
    async def get_group(self, group_id: str) -> Group:
        """Raises GroupNotFound."""

    @abstractmethod
    async def list_groups(self, slot: SlotKey | None = None) -> list[Group]:
        """Return the groups, sorted by id: all, or those that a new coordinator of this slot takes over."""

    @abstractmethod
    async def delete_group(self, group_id: str, fence: SlotFence) -> bool:
        """Delete the group and its offsets. False when it was already gone. Raises StaleEpoch, GroupNotEmpty."""

    @abstractmethod
    async def commit_offsets(
        self, group_id: str, fence: SlotFence, offsets: Sequence[OffsetCommit]
    ) -> list[PartitionKey]:
        """The coordinator commits offsets. Creates the group's row when missing. Returns the keys that were *not*
        written because the partition does not exist; the rest is written, all or nothing. A group without members stays
        alive by it: ``empty_since`` starts anew. Raises StaleEpoch, LimitExceeded.
        """

    @abstractmethod
    async def commit_offsets_simple(self, group_id: str, offsets: Sequence[OffsetCommit]) -> list[PartitionKey]:
        """Commit offsets of a group that has no members and no coordinator. Raises GroupNotEmpty while the group has
        members; otherwise the same as ``commit_offsets``.
        """

    @abstractmethod
    async def fetch_offsets(
        self, group_id: str, keys: Sequence[PartitionKey] | None = None
    ) -> dict[PartitionKey, CommittedOffset]:
        """Return all offsets of a group, or those of ``keys`` that have one. An unknown group has none."""

    @abstractmethod
    async def delete_offsets(self, group_id: str, fence: SlotFence, keys: Sequence[PartitionKey]) -> list[PartitionKey]:
        """Returns those that were there. Raises StaleEpoch, GroupNotFound."""

    @abstractmethod
    async def expire_groups(self, *, empty_for_ms: int, limit: int) -> list[str]:
        """Delete groups that have been empty that long by the store's clock, with their offsets; returns their ids."""
