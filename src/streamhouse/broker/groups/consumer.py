"""Consumer groups (KIP-848): the coordinator assigns, and members follow by heartbeats. Pure: events and the time in,
effects out.

One request does all: a heartbeat joins (epoch 0), follows, leaves (epoch -1), or leaves for a while (epoch -2, static
members).
reconciling.py explains how partitions move; hosted.py adds members that use the classic protocol.

Must not know the store, a clock or a connection. The topics that exist are passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamhouse.broker.groups.consumer_roster import ConsumerMember, check_epoch, check_heartbeat, is_full
from streamhouse.broker.groups.contract import (
    ConsumerGroupView,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerMemberView,
    Effects,
    LeaveOutcome,
    MemberRef,
    Ticket,
    TimerKey,
    TimerKind,
)
from streamhouse.broker.groups.hosted import HostsClassicMembers
from streamhouse.broker.groups.patterns import matching
from streamhouse.broker.groups.reconciling import AWAY, NONE, Topics
from streamhouse.broker.groups.snapshot import ConsumerSnapshot, Reconciliation
from streamhouse.core.errors import (
    FencedInstance,
    IllegalGeneration,
    StaleMemberEpoch,
    StreamHouseError,
    UnknownMember,
    UnreleasedInstance,
)
from streamhouse.core.ids import TopicId

_REMOVING_TIMERS: Final = (TimerKind.SESSION, TimerKind.REVOKE, TimerKind.JOIN, TimerKind.SYNC)


class ConsumerGroup(HostsClassicMembers):
    # Heartbeats.

    def heartbeat(self, request: ConsumerHeartbeat, topics: Topics, ticket: Ticket, now_ms: int) -> Effects:
        try:
            check_heartbeat(request)
            if request.member_epoch < 0:
                result = self._leave(request, topics, now_ms)
            else:
                result = self._follow(request, topics, now_ms)
            self._answer(ticket, result, after_save=True)
        except StreamHouseError as error:
            self._answer(ticket, error)
        return self._take()

    def _follow(self, request: ConsumerHeartbeat, topics: Topics, now_ms: int) -> ConsumerHeartbeatResult:
        self._check_size(request, topics)
        member, is_new = self._member_of(request)
        had, had_epoch = member.assigned, member.member_epoch
        if self._learn(member, request) or is_new:
            self._save()
            self._reassign(topics)
        self._reconcile(member, request.owned, now_ms)
        self._renew_session(member, now_ms)
        missed_an_answer = request.member_epoch != had_epoch
        tell = is_full(request) or missed_an_answer or member.assigned != had
        return ConsumerHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._options.consumer_heartbeat_interval_ms,
            assignment=member.assigned if tell else None,
        )

    def _member_of(self, request: ConsumerHeartbeat) -> tuple[ConsumerMember, bool]:
        """The member that sent the heartbeat, and whether the group has one member more now. Raises an error if the
        member may not send it."""
        joins = request.member_epoch == 0
        member = self.roster.get(request.member_id)
        if request.instance_id is not None:
            static = self.roster.static(request.instance_id)
            if static is not None and static is not member:
                if not joins:
                    raise FencedInstance(f"static member {request.instance_id!r} is another process now")
                # A static member of the classic protocol does not leave when it stops: it is replaced at once.
                if static.member_epoch != AWAY and static.classic is None:
                    raise UnreleasedInstance(
                        f"static member {request.instance_id!r} of group {self.group_id} is in use by another process"
                    )
                self.roster.set_classic(static, None)
                return self._replace(static, request.member_id), False
        if member is None or (member.classic is not None and not joins):
            if not joins:
                raise UnknownMember(f"group {self.group_id} has no member {request.member_id!r}")
            member = ConsumerMember(member_id=request.member_id, instance_id=request.instance_id)
            self.roster.add(member)
            return member, True
        if joins:
            self._start_over(member)
        else:
            check_epoch(member, request)
        return member, False

    def _check_size(self, request: ConsumerHeartbeat, topics: Topics) -> None:
        joins = self.roster.get(request.member_id) is None and (
            request.instance_id is None or self.roster.static(request.instance_id) is None
        )
        if request.topic_names is None and not request.topic_pattern and not joins:
            return
        names = list(request.topic_names or ())
        more_bytes = sum(map(len, names))
        if request.topic_pattern:
            names += matching(request.topic_pattern, topics)
        self._check_room(joins=joins and request.member_epoch == 0, more_bytes=more_bytes, names=names, topics=topics)

    def _start_over(self, member: ConsumerMember) -> None:
        """The member joins again: by the protocol it holds nothing."""
        member.member_epoch, member.previous_epoch, member.state = 0, 0, Reconciliation.STABLE
        self.roster.hold(member, assigned=NONE, revoking=NONE)
        if member.classic is not None:
            self._end_timers(member)
            self.roster.set_classic(member, None)
        self._save()

    def _learn(self, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        """Take what the heartbeat says about the member. Returns whether the subscription has changed."""
        before = (member.topic_names, member.topic_pattern)
        about = (member.rack_id, member.rebalance_timeout_ms, member.assignor, member.client_id, member.client_host)
        if request.topic_names is not None:
            member.topic_names = tuple(sorted(set(request.topic_names)))
        if request.topic_pattern is not None:
            member.topic_pattern = request.topic_pattern or None
        member.rack_id = request.rack_id or member.rack_id
        if request.rebalance_timeout_ms is not None:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.assignor = request.assignor or member.assignor
        member.client_id, member.client_host = request.client_id, request.client_host
        now = (member.rack_id, member.rebalance_timeout_ms, member.assignor, member.client_id, member.client_host)
        if now != about:
            self._save()
        return before != (member.topic_names, member.topic_pattern)

    # Leaving.

    def _leave(self, request: ConsumerHeartbeat, topics: Topics, now_ms: int) -> ConsumerHeartbeatResult:
        member = self._named(MemberRef(member_id=request.member_id, instance_id=request.instance_id))
        if request.member_epoch == AWAY:
            member.member_epoch, member.state = AWAY, Reconciliation.STABLE
            self.roster.hold(member, assigned=member.assigned, revoking=NONE)
            self._timer(TimerKey(TimerKind.REVOKE, member.member_id), None)
            self._renew_session(member, now_ms)
            self._save()
        else:
            self._remove(member, topics)
        return ConsumerHeartbeatResult(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=self._options.consumer_heartbeat_interval_ms,
            assignment=None,
        )

    def leave(self, members: Sequence[MemberRef], topics: Topics, ticket: Ticket) -> Effects:
        """LeaveGroup: members of the classic protocol leave, or an operator removes members of either protocol."""
        outcomes: list[LeaveOutcome] = []
        for ref in members:
            try:
                self._drop(self._named(ref))
                outcomes.append(LeaveOutcome(member=ref, error=None))
            except StreamHouseError as error:
                outcomes.append(LeaveOutcome(member=ref, error=error))
        if any(outcome.error is None for outcome in outcomes):
            self._after_removal(topics)
        self._answer(ticket, tuple(outcomes))
        return self._take()

    def _named(self, ref: MemberRef) -> ConsumerMember:
        """Raises UnknownMember, FencedInstance."""
        member = self.roster.get(ref.member_id)
        if ref.instance_id is not None:
            static = self.roster.static(ref.instance_id)
            if static is not None and static is not member:
                if ref.member_id:
                    raise FencedInstance(f"static member {ref.instance_id!r} is another process now")
                member = static
        if member is None:
            raise UnknownMember(f"group {self.group_id} has no member {ref.member_id or ref.instance_id!r}")
        return member

    def on_timer(self, key: TimerKey, topics: Topics, now_ms: int) -> Effects:
        if key.kind is TimerKind.SILENCE:
            self._on_silence_timer(now_ms)
        elif key.kind in _REMOVING_TIMERS and (member := self.roster.get(key.member_id)) is not None:
            self._remove(member, topics)
        return self._take()

    def end(self, error: StreamHouseError) -> Effects:
        """The group moves to another coordinator. No request waits here: all are answered at once."""
        return self._take()

    # Offsets and topics.

    def check_commit(self, member_id: str, member_epoch: int) -> None:
        """Whether this member may commit offsets, or read them as its own; raises if not."""
        if member_epoch < 0 and not len(self.roster):
            return
        member = self.roster.get(member_id)
        if member is None:
            raise UnknownMember(f"group {self.group_id} has no member {member_id!r}")
        if member_epoch != member.member_epoch:
            stale = StaleMemberEpoch if member.classic is None else IllegalGeneration
            raise stale(f"member {member_id} is at epoch {member.member_epoch}, not at {member_epoch}")

    def topics_changed(self, topics: Topics) -> Effects:
        """Topics were created, deleted or grown. Nothing happens unless the group reads them."""
        if len(self.roster) and self._resolve(topics) != self._partitions:
            self._save()
            self._reassign(topics)
        return self._take()

    def subscribed(self, topic_id: TopicId) -> bool:
        return any(topic_id in member.topics for member in self.roster)

    # Describing, saving and restoring.

    def describe(self) -> ConsumerGroupView:
        members = tuple(
            ConsumerMemberView(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                topic_names=member.topic_names,
                topic_pattern=member.topic_pattern,
                assigned=member.assigned,
                target=member.target,
                is_classic=member.classic is not None,
            )
            for member in self.roster
        )
        return ConsumerGroupView(
            group_id=self.group_id,
            state=self.state,
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            assignor=self.assignor,
            members=members,
        )

    def snapshot(self) -> ConsumerSnapshot:
        return ConsumerSnapshot(
            assignment_epoch=self.assignment_epoch,
            partitions=tuple(self._partitions.items()),
            members=tuple(member.snapshot() for member in self.roster),
            silent=self.silence.marks(),
        )

    def restore(self, snapshot: ConsumerSnapshot, now_ms: int) -> Effects:
        """Continue where another coordinator was. Every member has its whole session, less its silence at earlier
        coordinators (machine.py). A member that sends a request continues with what it has, at once."""
        self.assignment_epoch = snapshot.assignment_epoch
        self._partitions = dict(snapshot.partitions)
        for saved in snapshot.members:
            member = ConsumerMember.restored(saved)
            self.roster.add(member)
            if member.state is Reconciliation.UNREVOKED and member.classic is None:
                self._timer(TimerKey(TimerKind.REVOKE, member.member_id), now_ms + member.rebalance_timeout_ms)
        sessions_ms = {member.member_id: self._session_ms(member) for member in self.roster}
        self._taken_over(sessions_ms, dict(snapshot.silent), now_ms)
        return self._take()
