"""Classic groups: members join, one of them assigns, all sync. Pure: events and the time in, effects out.

This module holds the requests; rebalancing.py draws the states and leads from one generation to the next. Every request
that waits is answered in the end: a JoinGroup by the JOIN timer (or by SESSION, for a new member), a SyncGroup by the
SYNC timer.

Must not know the store, a clock or a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from streamhouse.broker.groups.consumer_protocol import MalformedMetadata, read_subscription
from streamhouse.broker.groups.contract import (
    ClassicGroupView,
    ClassicMemberView,
    Effects,
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveOutcome,
    MemberRef,
    SyncRequest,
    SyncResult,
    Ticket,
    TimerKey,
    TimerKind,
)
from streamhouse.broker.groups.options import MAX_ASSIGNMENT_BYTES, MAX_ROSTER_BYTES, NEW_MEMBER_JOIN_TIMEOUT_MS
from streamhouse.broker.groups.rebalancing import JOIN, SYNC, Rebalancing
from streamhouse.broker.groups.roster import GroupMember, check_join
from streamhouse.broker.groups.snapshot import ClassicMemberSnapshot, ClassicSnapshot
from streamhouse.core.errors import (
    FencedInstance,
    GroupFull,
    InconsistentProtocol,
    LimitExceeded,
    MemberIdRequired,
    RebalanceInProgress,
    StreamHouseError,
    UnknownMember,
)

_SAVED: Final = ClassicMemberSnapshot.__struct_fields__


class ClassicGroup(Rebalancing):
    # Join.

    def join(self, request: JoinRequest, ticket: Ticket, new_member_id: str, now_ms: int) -> Effects:
        """``new_member_id``: the id of the member if it comes without one."""
        try:
            check_join(
                request,
                roster=self.roster,
                pending=self.pending,
                protocol_type=self.protocol_type,
                options=self._options,
            )
            if request.member_id:
                self._join_known(request, ticket, now_ms)
            elif request.instance_id is not None:
                self._join_static(request, ticket, new_member_id, request.instance_id, now_ms)
            elif request.known_id_required:
                self.pending[new_member_id] = None
                self._timer(TimerKey(TimerKind.PENDING, new_member_id), now_ms + request.session_timeout_ms)
                self._answer(ticket, MemberIdRequired(member_id=new_member_id))
            else:
                self._add(request, ticket, new_member_id, now_ms)
        except StreamHouseError as error:
            self._answer(ticket, error)
        return self._take()

    def _join_static(
        self, request: JoinRequest, ticket: Ticket, new_member_id: str, instance_id: str, now_ms: int
    ) -> None:
        old_id = self.roster.static_id(instance_id)
        if old_id is None:
            self._add(request, ticket, new_member_id, now_ms)
        else:
            self._replace_static(request, ticket, old_id, new_member_id, now_ms)

    def _join_known(self, request: JoinRequest, ticket: Ticket, now_ms: int) -> None:
        if request.member_id in self.pending:
            self._drop_pending(request.member_id)
            self._add(request, ticket, request.member_id, now_ms)
            return
        member = self._member(request.member_id, request.instance_id)
        unchanged = member.protocols == request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            self._answer_join(member, ticket)  # the answer to its first request was lost
        elif self.state is GroupState.STABLE and unchanged and self.roster.leader != member.member_id:
            self._answer_join(member, ticket)
        else:  # also a leader: it joins again to assign anew
            self._update(member, request, ticket)
            self._rebalance_or_complete(now_ms)

    def _add(self, request: JoinRequest, ticket: Ticket, member_id: str, now_ms: int) -> None:
        member = GroupMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )
        if self.roster.weight_bytes + member.weight_bytes > MAX_ROSTER_BYTES:
            raise GroupFull(f"the subscriptions of group {self.group_id} take more than {MAX_ROSTER_BYTES} bytes")
        if not len(self.roster):
            self.protocol_type = request.protocol_type
        self.roster.add(member)
        self.roster.hold_join(member, ticket)
        self._newcomer = True
        self._timer(TimerKey(TimerKind.SESSION, member_id), now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance_or_complete(now_ms)

    def _update(self, member: GroupMember, request: JoinRequest, ticket: Ticket) -> None:
        self.roster.update(
            member,
            protocols=request.protocols,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )
        before = self.roster.hold_join(member, ticket)
        if before is not None:  # the client has given up its earlier request
            self._answer(before, RebalanceInProgress("this member has joined again"))

    def _replace_static(self, request: JoinRequest, ticket: Ticket, old_id: str, new_id: str, now_ms: int) -> None:
        """A static member has restarted. A stable group that still agrees on its protocol does not rebalance."""
        leader_before = self.roster.leader
        member = self.roster.replace(old_id, new_id)
        fenced = FencedInstance(f"static member {request.instance_id} of group {self.group_id} has been replaced")
        for held in (self.roster.hold_join(member, None), self._end_sync(member)):
            if held is not None:
                self._answer(held, fenced)
        self._timer(TimerKey(TimerKind.SESSION, old_id), None)
        self._not_silent(old_id)
        self._unsynced.discard(old_id)
        self._renew_session(member, now_ms)
        self._update(member, request, ticket)
        if self.state is GroupState.STABLE and self.roster.select_protocol() == self.protocol_name:
            self.roster.hold_join(member, None)
            self._save()
            self._answer_join_without_assignment(member, request, ticket, leader_before or "")
        else:
            self._rebalance_or_complete(now_ms)

    def _answer_join_without_assignment(
        self, member: GroupMember, request: JoinRequest, ticket: Ticket, leader_before: str
    ) -> None:
        leads = self.roster.leader == member.member_id
        if request.can_skip_assignment:
            leader, members = self.roster.leader or "", self.roster.joined_members(self.protocol_name) if leads else ()
        else:  # an older client would assign if it were the leader: name its former member id as the leader
            leader, members = leader_before, ()
        result = JoinResult(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader,
            member_id=member.member_id,
            members=members,
            skip_assignment=leads and request.can_skip_assignment,
        )
        self._answer(ticket, result, after_save=True)

    # Sync.

    def sync(self, request: SyncRequest, ticket: Ticket, now_ms: int) -> Effects:
        try:
            member = self._current_member(request.member_id, request.instance_id, request.generation)
            for given, own in (
                (request.protocol_type, self.protocol_type),
                (request.protocol_name, self.protocol_name),
            ):
                if given is not None and given != own:
                    raise InconsistentProtocol(f"group {self.group_id} uses {own!r}, not {given!r}")
            if self.state is GroupState.PREPARING_REBALANCE:
                raise RebalanceInProgress(f"group {self.group_id} rebalances")
            if self.state is GroupState.COMPLETING_REBALANCE:
                self._sync_completing(member, request, ticket, now_ms)
            else:
                self._synced(member, now_ms)
                self._answer_sync(member, ticket)
        except StreamHouseError as error:
            self._answer(ticket, error)
        return self._take()

    def _sync_completing(self, member: GroupMember, request: SyncRequest, ticket: Ticket, now_ms: int) -> None:
        leads = self.roster.leader == member.member_id
        if leads and sum(len(assignment) for _, assignment in request.assignments) > MAX_ASSIGNMENT_BYTES:
            raise LimitExceeded(f"the assignments of group {self.group_id} take more than {MAX_ASSIGNMENT_BYTES} bytes")
        before, member.syncing = member.syncing, ticket
        if before is not None:
            self._answer(before, RebalanceInProgress("this member has asked again"))
        self._synced(member, now_ms)
        if not leads:
            return
        assigned = dict(request.assignments)
        self.state = GroupState.STABLE
        self._save()
        for each in self.roster:
            each.assignment = assigned.get(each.member_id, b"")
            waiting = self._end_sync(each)
            if waiting is not None:
                self._answer_sync(each, waiting)
                self._renew_session(each, now_ms)

    def _synced(self, member: GroupMember, now_ms: int) -> None:
        self._unsynced.discard(member.member_id)
        self._renew_session(member, now_ms)
        if not self._unsynced:
            self._timer(SYNC, None)

    def _answer_sync(self, member: GroupMember, ticket: Ticket) -> None:
        result = SyncResult(
            protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment
        )
        self._answer(ticket, result, after_save=True)

    def _on_sync_timer(self, now_ms: int) -> None:
        if self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not self._unsynced:
            return
        for member_id in sorted(self._unsynced):
            self._remove(member_id)
        self._prepare_rebalance(now_ms)

    # Heartbeat, leave, expiry.

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, ticket: Ticket, now_ms: int
    ) -> Effects:
        try:
            self._renew_session(self._current_member(member_id, instance_id, generation), now_ms)
            rebalances = self.state is GroupState.PREPARING_REBALANCE
            self._answer(ticket, RebalanceInProgress(f"group {self.group_id} rebalances") if rebalances else None)
        except StreamHouseError as error:
            self._answer(ticket, error)
        return self._take()

    def leave(self, members: Sequence[MemberRef], ticket: Ticket, now_ms: int) -> Effects:
        outcomes: list[LeaveOutcome] = []
        left = False
        for ref in members:
            try:
                if ref.member_id in self.pending:
                    self._drop_pending(ref.member_id)
                else:
                    self._remove(self._leaver(ref).member_id)
                left = True
                outcomes.append(LeaveOutcome(member=ref, error=None))
            except StreamHouseError as error:
                outcomes.append(LeaveOutcome(member=ref, error=error))
        self._answer(ticket, tuple(outcomes))
        if left:
            self._after_removal(now_ms)
        return self._take()

    def _leaver(self, ref: MemberRef) -> GroupMember:
        if (
            ref.instance_id is not None and not ref.member_id
        ):  # an operator names a static member by its instance id only
            member_id = self.roster.static_id(ref.instance_id)
            return self._member(member_id or "", ref.instance_id)
        return self._member(ref.member_id, ref.instance_id)

    def check_commit(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> Effects:
        """Raises if this member may not commit offsets now. A commit keeps the session alive, like a heartbeat."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return ()
        if generation < 0 and not member_id and instance_id is None:
            raise UnknownMember(f"group {self.group_id} has members; only they may commit its offsets")
        member = self._current_member(member_id, instance_id, generation)
        if self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress(f"group {self.group_id} has not assigned generation {self.generation} yet")
        self._renew_session(member, now_ms)
        return self._take()

    def on_timer(self, key: TimerKey, now_ms: int) -> Effects:
        match key.kind:
            case TimerKind.JOIN:
                self._on_join_timer(now_ms)
            case TimerKind.SYNC:
                self._on_sync_timer(now_ms)
            case TimerKind.SILENCE:
                self._on_silence_timer(now_ms)
            case TimerKind.PENDING if key.member_id in self.pending:
                self._drop_pending(key.member_id)
                self._complete_if_all_joined(now_ms)
            case TimerKind.SESSION:
                member = self.roster.get(key.member_id)
                if member is not None:
                    self._session_over(member, now_ms)
        return self._take()

    def _session_over(self, member: GroupMember, now_ms: int) -> None:
        held = member.joining is not None or member.syncing is not None
        if held and not member.is_new:  # it waits for an answer, and sends no heartbeat meanwhile
            self._renew_session(member, now_ms)
        else:
            self._remove(member.member_id)
            self._after_removal(now_ms)

    def rebalance(self, now_ms: int) -> Effects:
        """Start a rebalance of a stable group."""
        self._prepare_rebalance(now_ms)
        return self._take()

    def end(self, error: StreamHouseError) -> Effects:
        """Answer all requests that wait with an error: the group moves to another coordinator, or was converted."""
        self._end_syncs(error)
        for member in self.roster:
            ticket = self.roster.hold_join(member, None)
            if ticket is not None:
                self._answer(ticket, error)
        return self._take()

    # Describing, saving and restoring.

    def describe(self) -> ClassicGroupView:
        """Metadata and assignments are shown for a stable group only. In other states they are about to change."""
        stable = self.state is GroupState.STABLE
        members = tuple(
            ClassicMemberView(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(self.protocol_name) if stable else b"",
                assignment=member.assignment if stable else b"",
            )
            for member in self.roster
        )
        return ClassicGroupView(
            group_id=self.group_id,
            state=self.state,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name if stable else "",
            members=members,
        )

    def snapshot(self) -> ClassicSnapshot:
        return ClassicSnapshot(
            state=self.state,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader,
            members=tuple(ClassicMemberSnapshot(**_saved_fields(member)) for member in self.roster),
            silent=self.silence.marks(),
        )

    def restore(self, saved: ClassicSnapshot, now_ms: int) -> Effects:
        """Continue where another coordinator was. Every member has its whole session, less its silence at earlier
        coordinators (machine.py). A rebalance that has begun has its whole time."""
        self.state = saved.state
        self.protocol_type, self.protocol_name = saved.protocol_type, saved.protocol_name
        for member in saved.members:
            self.roster.add(GroupMember(**_saved_fields(member)))
        self.roster.leader = saved.leader
        sessions_ms = {member.member_id: member.session_timeout_ms for member in self.roster}
        self._taken_over(sessions_ms, dict(saved.silent), now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._timer(JOIN, now_ms + self.roster.rebalance_timeout_ms())
        elif self.state is GroupState.COMPLETING_REBALANCE:
            self._unsynced = {member.member_id for member in self.roster}
            self._timer(SYNC, now_ms + self.roster.rebalance_timeout_ms())
        return self._take()

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads this topic. True for a member whose subscription cannot be read."""
        return any(_reads(member.metadata(self.protocol_name), topic) for member in self.roster)


def _saved_fields(member: GroupMember | ClassicMemberSnapshot) -> dict[str, Any]:
    return {name: getattr(member, name) for name in _SAVED}


def _reads(metadata: bytes, topic: str) -> bool:
    try:
        return topic in read_subscription(metadata).topics
    except MalformedMetadata:
        return True
