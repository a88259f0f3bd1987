"""The members of a consumer group, which of them holds which partition, and what a heartbeat must look like. Pure.

A partition has one holder from the moment it is assigned until the holder's own request shows that it has stopped
reading it. This is the whole rule of "one reader at a time".

A member uses the consumer protocol (KIP-848), or the classic protocol (``ConsumerMember.classic``; hosted.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final

from streamhouse.broker.groups.assignors import ASSIGNORS
from streamhouse.broker.groups.contract import ConsumerHeartbeat
from streamhouse.broker.groups.options import MAX_SUBSCRIBED_TOPICS
from streamhouse.broker.groups.patterns import check_pattern
from streamhouse.broker.groups.snapshot import ClassicTraits, ConsumerMemberSnapshot, Reconciliation
from streamhouse.core.errors import FencedMemberEpoch, InvalidRequest, UnsupportedAssignor
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
    """Partitions that the member must give up and still holds."""
    target: frozenset[PartitionKey] = frozenset()
    classic: ClassicTraits | None = None
    """None: the member uses the consumer protocol. Changed only by ``ConsumerRoster.set_classic``."""
    topics: frozenset[TopicId] = frozenset()
    """The topics that its names and its pattern match, of the topics last seen."""
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
        """The bytes that the member takes in the saved row, about, without its partitions."""
        texts = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host, self.topic_pattern)
        named = sum(len(name) + 2 for name in self.topic_names)
        classic = 0 if self.classic is None else self.classic.weight_bytes
        return _MEMBER_OVERHEAD_BYTES + named + classic + sum(len(text) * 4 for text in texts if text is not None)


class ConsumerRoster:
    def __init__(self) -> None:
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self._holder: dict[PartitionKey, str] = {}
        self._classic_count = 0
        self._supported: Counter[str] = Counter()
        """Assignors of the members of the classic protocol, with the number of members that support each."""

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

    @property
    def only_classic(self) -> bool:
        """Whether there are members, and none of them uses the consumer protocol."""
        return 0 < len(self._members) == self._classic_count

    def has_in_common(self, protocols: Sequence[tuple[str, bytes]], *, without: ConsumerMember | None) -> bool:
        """Whether all other members of the classic protocol support one of these assignors. ``without``: the member
        that asks."""
        own = () if without is None or without.classic is None else without.classic.names
        others = self._classic_count - (without is not None and without.classic is not None)
        return any(self._supported[name] - (name in own) == others for name, _ in protocols)

    def add(self, member: ConsumerMember) -> None:
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        self._count(member, 1)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        for key in member.assigned | member.revoking:
            self._holder[key] = member.member_id

    def remove(self, member: ConsumerMember) -> None:
        """Frees what the member held: it is gone, or counts as gone."""
        self.hold(member, assigned=frozenset(), revoking=frozenset())
        self._count(member, -1)
        del self._members[member.member_id]
        if member.instance_id is not None and self._static.get(member.instance_id) == member.member_id:
            del self._static[member.instance_id]

    def hold(
        self, member: ConsumerMember, *, assigned: frozenset[PartitionKey], revoking: frozenset[PartitionKey]
    ) -> None:
        """Replaces the partitions that the member holds."""
        before, after = member.assigned | member.revoking, assigned | revoking
        for key in before - after:
            del self._holder[key]
        for key in after - before:
            assert key not in self._holder, f"{key} has a holder"
            self._holder[key] = member.member_id
        member.assigned, member.revoking = assigned, revoking

    def set_classic(self, member: ConsumerMember, traits: ClassicTraits | None) -> None:
        """The member, which is in the roster, uses the classic protocol with these traits. None: the consumer one."""
        self._count(member, -1)
        member.classic = traits
        self._count(member, 1)

    def _count(self, member: ConsumerMember, sign: int) -> None:
        if member.classic is not None:
            self._classic_count += sign
            for name in member.classic.names:
                self._supported[name] += sign


def check_heartbeat(request: ConsumerHeartbeat) -> None:
    """Raises an error for a heartbeat that is wrong by itself, for any group."""
    if not request.group_id:
        raise InvalidRequest("a heartbeat without a group id")
    if not request.member_id:
        raise InvalidRequest("a heartbeat without a member id")
    if request.instance_id == "" or request.rack_id == "":
        raise InvalidRequest("an instance id or rack id must be null or not empty")
    if request.member_epoch < -2:
        raise InvalidRequest(f"member epoch {request.member_epoch}; the least is -2")
    if request.member_epoch == -2 and request.instance_id is None:
        raise InvalidRequest("only a static member may leave with member epoch -2")
    if request.member_epoch == 0:
        _check_join(request)
    if request.topic_names is not None and len(request.topic_names) > MAX_SUBSCRIBED_TOPICS:
        raise InvalidRequest(f"{len(request.topic_names)} topic names; at most {MAX_SUBSCRIBED_TOPICS}")
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise UnsupportedAssignor(f"unknown assignor {request.assignor[:64]!r}; known: {', '.join(ASSIGNORS)}")
    if request.topic_pattern:
        check_pattern(request.topic_pattern)


def _check_join(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms is None:
        raise InvalidRequest("a member that joins must send its rebalance time-out")
    if request.owned is None or request.owned:
        raise InvalidRequest("a member that joins must send an empty list of partitions")
    if request.topic_names is None and request.topic_pattern is None:
        raise InvalidRequest("a member that joins must send topic names or a pattern")


def check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Accepts the member's epoch, and the one before it if the answer with the newer epoch may have been lost."""
    if request.member_epoch == member.member_epoch:
        return
    repeats = request.member_epoch == member.previous_epoch and request.owned is not None
    if not repeats or not (request.owned or frozenset()) <= member.assigned:
        raise FencedMemberEpoch(
            f"member {member.member_id} is at epoch {member.member_epoch}, not at {request.member_epoch}"
        )


def is_full(request: ConsumerHeartbeat) -> bool:
    """Whether the heartbeat has all fields. It is then answered with the whole assignment."""
    has_topics = request.topic_names is not None or request.topic_pattern is not None
    return request.member_epoch == 0 or (
        request.rebalance_timeout_ms is not None and has_topics and request.owned is not None
    )
