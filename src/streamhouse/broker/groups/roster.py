"""The members of a classic group: which may join, which one leads, and which protocol they agree on. Pure.

The state of the rebalance is not here but in rebalancing.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from streamhouse.broker.groups.contract import JoinedMember, JoinRequest, Ticket
from streamhouse.broker.groups.options import MAX_ROSTER_BYTES, GroupOptions
from streamhouse.core.errors import GroupFull, InconsistentProtocol, InvalidSessionTimeout

_MEMBER_OVERHEAD_BYTES = 64


@dataclass(slots=True, kw_only=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joining: Ticket | None = None
    """Its JoinGroup, which waits for its answer."""
    syncing: Ticket | None = None
    """Its SyncGroup, which waits for its answer."""
    is_new: bool = False
    """Its first JoinGroup has not been answered yet, so it cannot send heartbeats."""

    def metadata(self, protocol_name: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    @property
    def weight_bytes(self) -> int:
        """The bytes that the member takes in the saved row, about, without its assignment."""
        texts = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        protocols = sum(len(name) * 4 + len(metadata) + 8 for name, metadata in self.protocols)
        return _MEMBER_OVERHEAD_BYTES + sum(len(text) * 4 for text in texts) + protocols


class Roster:
    def __init__(self) -> None:
        self.leader: str | None = None
        self.weight_bytes = 0
        self._members: dict[str, GroupMember] = {}
        self._static: dict[str, str] = {}
        self._supported: Counter[str] = Counter()
        self._joining = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(self._members.values())

    def get(self, member_id: str) -> GroupMember | None:
        return self._members.get(member_id)

    def static_id(self, instance_id: str) -> str | None:
        """The member id of a static member."""
        return self._static.get(instance_id)

    @property
    def joining(self) -> int:
        """How many JoinGroups wait for their answer."""
        return self._joining

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance time-out of the members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    # Changes.

    def add(self, member: GroupMember) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._count(member, 1)
        self.leader = self.leader or member.member_id

    def remove(self, member_id: str) -> GroupMember | None:
        member = self._members.pop(member_id, None)
        if member is None:
            return None
        self._count(member, -1)
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def replace(self, old_id: str, new_id: str) -> GroupMember:
        """A static member came back under a new id. It keeps its place in the group and its assignment."""
        led = self.leader == old_id
        member = self._members.pop(old_id)
        self._count(member, -1)
        member.member_id = new_id
        self.add(member)
        if led:
            self.leader = new_id
        return member

    def update(
        self,
        member: GroupMember,
        *,
        protocols: tuple[tuple[str, bytes], ...],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self._count(member, -1)
        member.protocols = protocols
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        self._count(member, 1)

    def hold_join(self, member: GroupMember, ticket: Ticket | None) -> Ticket | None:
        """Returns the ticket that waited before."""
        before, member.joining = member.joining, ticket
        self._joining += (ticket is not None) - (before is not None)
        return before

    def elect(self) -> bool:
        """Choose a leader that has joined; the present one stays if it has. Returns whether there is one."""
        present = None if self.leader is None else self._members.get(self.leader)
        if present is not None and present.joining is not None:
            return True
        joined = next((member.member_id for member in self if member.joining is not None), None)
        if joined is None:
            return False
        self.leader = joined
        return True

    def _count(self, member: GroupMember, sign: int) -> None:
        for name, _ in member.protocols:
            self._supported[name] += sign
        self.weight_bytes += sign * member.weight_bytes
        self._joining += sign * (member.joining is not None)

    # Agreement.

    def has_in_common(self, protocols: Sequence[tuple[str, bytes]]) -> bool:
        return any(self._supported[name] == len(self._members) for name, _ in protocols)

    def select_protocol(self) -> str:
        """Each member votes for the first protocol of its list that all members support. If two have the same number
        of votes, the one that comes first in the first member's list wins."""
        votes: Counter[str] = Counter()
        for member in self:
            for name, _ in member.protocols:
                if self._supported[name] == len(self._members):
                    votes[name] += 1
                    break
        first = next(iter(self))
        order = {name: rank for rank, (name, _) in enumerate(first.protocols)}
        return min(votes, key=lambda name: (-votes[name], order[name]))

    def joined_members(self, protocol_name: str) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(protocol_name),
            )
            for member in self
        )


def check_join(
    request: JoinRequest, *, roster: Roster, pending: Collection[str], protocol_type: str, options: GroupOptions
) -> None:
    """Raises an error that keeps the member out of a classic group."""
    check_session_timeout(request, options)
    if not _has_room(request, roster, pending, options.max_size):
        raise GroupFull(f"group {request.group_id} has {len(roster)} members, which is the limit")
    if not request.protocol_type or not request.protocols:
        raise InconsistentProtocol(f"a member of group {request.group_id} names no protocol")
    if len(roster):
        if request.protocol_type != protocol_type:
            raise InconsistentProtocol(f"group {request.group_id} is of type {protocol_type!r}")
        if not roster.has_in_common(request.protocols):
            raise InconsistentProtocol(f"group {request.group_id} has no protocol in common with this member")


def _has_room(request: JoinRequest, roster: Roster, pending: Collection[str], max_size: int) -> bool:
    if request.member_id in roster:
        return True
    if request.instance_id is not None and roster.static_id(request.instance_id) is not None:
        return True
    taken = len(roster) if request.member_id in pending else len(roster) + len(pending)
    return taken < max_size and roster.weight_bytes < MAX_ROSTER_BYTES


def check_session_timeout(request: JoinRequest, options: GroupOptions) -> None:
    if not options.min_session_timeout_ms <= request.session_timeout_ms <= options.max_session_timeout_ms:
        raise InvalidSessionTimeout(
            f"a session time-out of {request.session_timeout_ms} ms; allowed are "
            f"{options.min_session_timeout_ms} to {options.max_session_timeout_ms} ms"
        )
