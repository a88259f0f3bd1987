"""The members of a KIP-848 group, and who holds which partition. Pure.

A partition has one holder from the moment it is given until the holder's own heartbeat shows that it let go: that is
the whole of "one reader at a time".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from streamhouse.broker.groups.snapshot import ConsumerMemberSnapshot, Reconciliation
from streamhouse.core.ids import PartitionKey, TopicId

_MEMBER_OVERHEAD_BYTES: Final = 128
_SAVED: Final = tuple(each.name for each in fields(ConsumerMemberSnapshot) if each.compare)
_snapshot_fields: Final = attrgetter(*_SAVED)


@dataclass(slots=True, kw_only=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = 0
    topic_names: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assignor: str | None = None
    member_epoch: int = 0
    previous_epoch: int = 0
    state: Reconciliation = Reconciliation.STABLE
    assigned: frozenset[PartitionKey] = frozenset()
    revoking: frozenset[PartitionKey] = frozenset()
    """Still held; to be let go."""
    target: frozenset[PartitionKey] = frozenset()
    topics: frozenset[TopicId] = frozenset()
    """What its names and its pattern come to, by the topics last seen."""
    last_snapshot: ConsumerMemberSnapshot | None = None

    def snapshot(self) -> ConsumerMemberSnapshot:
        """The same object as last time if nothing has changed."""
        last, now = self.last_snapshot, _snapshot_fields(self)
        if last is None or _snapshot_fields(last) != now:
            last = self.last_snapshot = ConsumerMemberSnapshot(**dict(zip(_SAVED, now, strict=True)))
        return last

    @classmethod
    def restored(cls, saved: ConsumerMemberSnapshot) -> ConsumerMember:
        return cls(**dict(zip(_SAVED, _snapshot_fields(saved), strict=True)))

    @property
    def weight_bytes(self) -> int:
        """About what it takes in the persisted row, without its partitions."""
        texts = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host, self.topic_pattern)
        named = sum(len(name) + 2 for name in self.topic_names)
        return _MEMBER_OVERHEAD_BYTES + named + sum(len(text) * 4 for text in texts if text is not None)


class ConsumerRoster:
    def __init__(self) -> None:
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self._holder: dict[PartitionKey, str] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._members.values())

    def get(self, member_id: str) -> ConsumerMember | None:
        return self._members.get(member_id)

    def static(self, instance_id: str) -> ConsumerMember | None:
        member_id = self._static.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def holder(self, key: PartitionKey) -> str | None:
        return self._holder.get(key)

    def add(self, member: ConsumerMember) -> None:
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        for key in member.assigned | member.revoking:
            self._holder[key] = member.member_id

    def remove(self, member: ConsumerMember) -> None:
        """Frees what it held: it is gone, or counts as gone."""
        self.hold(member, assigned=frozenset(), revoking=frozenset())
        del self._members[member.member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

    def hold(
        self, member: ConsumerMember, *, assigned: frozenset[PartitionKey], revoking: frozenset[PartitionKey]
    ) -> None:
        """From now on it holds these and no others."""
        before, after = member.assigned | member.revoking, assigned | revoking
        for key in before - after:
            del self._holder[key]
        for key in after - before:
            assert key not in self._holder, f"{key} has a holder"
            self._holder[key] = member.member_id
        member.assigned, member.revoking = assigned, revoking
