"""Members of the classic protocol in a consumer group. Pure.

Such a member goes on with JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and does not notice that the coordinator
assigns now. Its requests are mapped onto the course of reconciling.py:

    Heartbeat    answered with REBALANCE_IN_PROGRESS when the member has something to do: a newer epoch, partitions to
                 give up, or partitions that have become free for it
    JoinGroup    the subscription, and what the member still owns. Answered at once, without waiting for other members;
                 the generation is the member's epoch, and the answer names no leader, so no member assigns
    SyncGroup    answered at once with the partitions that the member may read now

Each member of the classic protocol has two timers besides its session, both of its rebalance time-out: it must send
JoinGroup after it was told to (JOIN), and SyncGroup after JoinGroup (SYNC). Otherwise it is removed.

Follows Apache Kafka with ``group.consumer.migration.policy=bidirectional``. conversion.py turns whole groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamhouse.broker.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    MalformedMetadata,
    NamedPartition,
    Subscription,
    read_subscription,
    write_assignment,
)
from streamhouse.broker.groups.consumer_roster import ConsumerMember
from streamhouse.broker.groups.contract import (
    Effects,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
    Ticket,
    TimerKey,
    TimerKind,
)
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.reconciling import Reconciling, Topics
from streamhouse.broker.groups.roster import check_session_timeout
from streamhouse.broker.groups.snapshot import ClassicTraits, Reconciliation
from streamhouse.core.errors import (
    FencedInstance,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    StreamHouseError,
    UnknownMember,
)
from streamhouse.core.ids import PartitionKey


def subscription_of(request: JoinRequest) -> Subscription:
    """The subscription in a JoinGroup. Raises InconsistentProtocol."""
    if request.protocol_type != PROTOCOL_TYPE or not request.protocols:
        raise InconsistentProtocol(
            f"group {request.group_id} has members of the consumer protocol; a member of the classic protocol must "
            f"use the protocol type {PROTOCOL_TYPE!r} and name an assignor"
        )
    try:
        return read_subscription(request.protocols[0][1])
    except MalformedMetadata as error:
        raise InconsistentProtocol(f"the subscription of a member of group {request.group_id}: {error}") from error


class HostsClassicMembers(Reconciling):
    def __init__(self, group_id: str, *, options: GroupOptions, group_epoch: int = 0) -> None:
        super().__init__(group_id, options=options, group_epoch=group_epoch)
        self._told_to_join: set[str] = set()

    # Join.

    def join(self, request: JoinRequest, topics: Topics, ticket: Ticket, new_member_id: str, now_ms: int) -> Effects:
        """``new_member_id``: the id of the member if it comes without one."""
        try:
            subscription = subscription_of(request)
            member = self._check_join(request, subscription, topics)
            if not request.member_id and request.instance_id is None and request.known_id_required:
                raise MemberIdRequired(member_id=new_member_id)
            member, is_new = self._joining(request, member, new_member_id)
            if member.classic is None:
                self._end_timers(member)
            if self._learn_join(member, request, subscription) or is_new:
                self._reassign(topics)
            self._reconcile(member, _keys(subscription.owned, topics), now_ms)
            self._told_to_join.discard(member.member_id)
            self._timer(TimerKey(TimerKind.JOIN, member.member_id), None)
            self._timer(TimerKey(TimerKind.SYNC, member.member_id), now_ms + member.rebalance_timeout_ms)
            self._renew_session(member, now_ms)
            self._answer(ticket, self._joined(member), after_save=True)
        except StreamHouseError as error:
            self._answer(ticket, error)
        return self._take()

    def _check_join(self, request: JoinRequest, subscription: Subscription, topics: Topics) -> ConsumerMember | None:
        """Raises an error that keeps the member out. Returns the member if the group has it already."""
        check_session_timeout(request, self._options)
        known = self.roster.get(request.member_id)
        if request.instance_id is not None:
            static = self.roster.static(request.instance_id)
            if request.member_id and static is None:
                raise UnknownMember(f"group {self.group_id} has no static member {request.instance_id!r}")
            if request.member_id and static is not known:
                raise FencedInstance(f"static member {request.instance_id!r} of group {self.group_id} was replaced")
            known = static
        more_bytes = _traits(request).weight_bytes + sum(map(len, subscription.topics))
        self._check_room(joins=known is None, more_bytes=more_bytes, names=subscription.topics, topics=topics)
        if not self.roster.has_in_common(request.protocols, without=known):
            raise InconsistentProtocol(f"group {self.group_id} has no assignor in common with this member")
        return known

    def _joining(
        self, request: JoinRequest, known: ConsumerMember | None, new_member_id: str
    ) -> tuple[ConsumerMember, bool]:
        """The member that joins, and whether the group has one member more now."""
        if known is not None and known.member_id == request.member_id:
            return known, False
        member_id = request.member_id or new_member_id
        if known is not None:  # a static member that has restarted
            return self._replace(known, member_id), False
        member = ConsumerMember(member_id=member_id, instance_id=request.instance_id)
        self.roster.add(member)
        return member, True

    def _learn_join(self, member: ConsumerMember, request: JoinRequest, subscription: Subscription) -> bool:
        """Take what the JoinGroup says about the member. Returns whether the subscription has changed."""
        before = (member.topic_names, member.topic_pattern)
        member.topic_names, member.topic_pattern = tuple(sorted(set(subscription.topics))), None
        member.rack_id, member.assignor = subscription.rack_id, None
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host = request.client_id, request.client_host
        self.roster.set_classic(member, _traits(request))
        self._save()
        return before != (member.topic_names, member.topic_pattern)

    def _joined(self, member: ConsumerMember) -> JoinResult:
        assert member.classic is not None
        return JoinResult(
            generation=member.member_epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=member.classic.protocols[0][0],
            leader="",
            member_id=member.member_id,
        )

    # Sync and heartbeat.

    def sync(self, request: SyncRequest, topics: Topics, ticket: Ticket, now_ms: int) -> Effects:
        try:
            member, traits = self._classic_member(request.member_id, request.instance_id, request.generation)
            (name, metadata), *_ = traits.protocols
            for given, own in ((request.protocol_type, PROTOCOL_TYPE), (request.protocol_name, name)):
                if given is not None and given != own:
                    raise InconsistentProtocol(f"member {member.member_id} joined with {own!r}, not with {given!r}")
            if member.member_epoch < self.group_epoch and member.state is not Reconciliation.UNREVOKED:
                self._tell_to_join(member, now_ms)
                raise RebalanceInProgress(f"group {self.group_id} has a newer assignment")
            self._timer(TimerKey(TimerKind.SYNC, member.member_id), None)
            self._renew_session(member, now_ms)
            assignment = write_assignment(read_subscription(metadata).version, named(member, member.assigned, topics))
            result = SyncResult(protocol_type=PROTOCOL_TYPE, protocol_name=name, assignment=assignment)
            self._answer(ticket, result, after_save=True)
        except StreamHouseError as error:
            self._answer(ticket, error)
        return self._take()

    def classic_heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, ticket: Ticket, now_ms: int
    ) -> Effects:
        try:
            member, _ = self._classic_member(member_id, instance_id, generation)
            self._renew_session(member, now_ms)
            if self._must_join(member):
                self._tell_to_join(member, now_ms)
                raise RebalanceInProgress(f"group {self.group_id} has a newer assignment")
            self._answer(ticket, None)
        except StreamHouseError as error:
            self._answer(ticket, error)
        return self._take()

    def _must_join(self, member: ConsumerMember) -> bool:
        if member.member_epoch < self.group_epoch or member.state is Reconciliation.UNREVOKED:
            return True
        if member.state is Reconciliation.STABLE:
            return False
        return all(self._is_free_for(member, key) for key in member.target - member.assigned)

    def _tell_to_join(self, member: ConsumerMember, now_ms: int) -> None:
        """The time starts when the member is told for the first time."""
        if member.member_id not in self._told_to_join:
            self._told_to_join.add(member.member_id)
            self._timer(TimerKey(TimerKind.JOIN, member.member_id), now_ms + member.rebalance_timeout_ms)

    def _end_timers(self, member: ConsumerMember) -> None:
        self._told_to_join.discard(member.member_id)
        super()._end_timers(member)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicTraits]:
        member = self.roster.get(member_id)
        if instance_id is not None:
            static = self.roster.static(instance_id)
            if static is not None and static is not member:
                raise FencedInstance(f"static member {instance_id!r} of group {self.group_id} was replaced")
            member = static
        if member is None or member.classic is None:
            raise UnknownMember(f"group {self.group_id} has no member {member_id!r} of the classic protocol")
        if generation != member.member_epoch:
            raise IllegalGeneration(f"member {member_id} is at generation {member.member_epoch}, not at {generation}")
        return member, member.classic


def named(member: ConsumerMember, keys: Iterable[PartitionKey], topics: Topics) -> list[NamedPartition]:
    """Partitions with the names of their topics, without topics that are deleted."""
    names = {topics[name].topic_id: name for name in member.topic_names if name in topics}
    return [(names[key.topic_id], key.partition) for key in keys if key.topic_id in names]


def _keys(partitions: Iterable[NamedPartition], topics: Topics) -> frozenset[PartitionKey]:
    return frozenset(
        PartitionKey(topics[topic].topic_id, partition) for topic, partition in partitions if topic in topics
    )


def _traits(request: JoinRequest) -> ClassicTraits:
    return ClassicTraits(session_timeout_ms=request.session_timeout_ms, protocols=request.protocols)
