"""KIP-848 groups: the coordinator assigns, members follow by heartbeats. Pure: events and the time in, effects out.

    subscription, member or topic changes  →  group epoch + 1  →  target assignment of that epoch
    each member's heartbeats lead it there:

        STABLE ──── newer target: must let go ────►  UNREVOKED ──── its heartbeat omits them ──┐
          │ ▲                                                                                  │
          │ └──────── has its whole target ◄──────── (next step) ◄─────────────────────────────┘
          └─ others have not let go yet ─► UNRELEASED

A partition goes to its new owner only after the old one's heartbeat omits it. What a member is told is saved before.
Must not know the store, a clock or a connection; what topics there are is told to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from streamhouse.broker.groups.assignors import ASSIGNORS, Reader
from streamhouse.broker.groups.consumer_checks import check_epoch, check_heartbeat, is_full
from streamhouse.broker.groups.consumer_members import ConsumerMember, ConsumerRoster
from streamhouse.broker.groups.contract import (
    ConsumerGroupView,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerMemberView,
    Effects,
    GroupState,
    Ticket,
    TimerKey,
    TimerKind,
    TopicFact,
)
from streamhouse.broker.groups.machine import Machine
from streamhouse.broker.groups.options import MAX_ASSIGNED_PARTITIONS, MAX_ROSTER_BYTES, GroupOptions
from streamhouse.broker.groups.patterns import matching
from streamhouse.broker.groups.snapshot import ConsumerSnapshot, Reconciliation
from streamhouse.core.errors import (
    FencedInstance,
    GroupFull,
    StaleMemberEpoch,
    StreamHouseError,
    UnknownMember,
    UnreleasedInstance,
)
from streamhouse.core.ids import PartitionKey, TopicId

_LEAVES = -1
_AWAY = -2
_NONE: frozenset[PartitionKey] = frozenset()


class ConsumerGroup(Machine):
    def __init__(self, group_id: str, *, options: GroupOptions, group_epoch: int = 0) -> None:
        super().__init__()
        self.group_id = group_id
        self.group_epoch = group_epoch
        self.assignment_epoch = group_epoch
        self.roster = ConsumerRoster()
        self._options = options
        self._partitions: dict[TopicId, int] = {}

    @property
    def state(self) -> GroupState:
        if not len(self.roster):
            return GroupState.EMPTY
        settled = all(
            member.member_epoch in (self.assignment_epoch, _AWAY) and member.state is Reconciliation.STABLE
            for member in self.roster
        )
        return GroupState.STABLE if settled else GroupState.RECONCILING

    # Heartbeats.

    def heartbeat(
        self, request: ConsumerHeartbeat, topics: Mapping[str, TopicFact], ticket: Ticket, now_ms: int
    ) -> Effects:
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

    def _follow(
        self, request: ConsumerHeartbeat, topics: Mapping[str, TopicFact], now_ms: int
    ) -> ConsumerHeartbeatResult:
        self._check_size(request, topics)
        member, is_new = self._member_of(request)
        had, had_epoch = member.assigned, member.member_epoch
        if self._learn(member, request) or is_new:
            self._save()
            self._reassign(topics)
        self._reconcile(member, request.owned, now_ms)
        self._heard_of(member, now_ms)
        missed_one = request.member_epoch != had_epoch
        tell = is_full(request) or missed_one or member.assigned != had
        return ConsumerHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._options.consumer_heartbeat_interval_ms,
            assignment=member.assigned if tell else None,
        )

    def _member_of(self, request: ConsumerHeartbeat) -> tuple[ConsumerMember, bool]:
        """The member that speaks, and whether the group has one more by it. Raises if it may not."""
        joins = request.member_epoch == 0
        member = self.roster.get(request.member_id)
        if request.instance_id is not None:
            static = self.roster.static(request.instance_id)
            if static is not None and static is not member:
                if not joins:
                    raise FencedInstance(f"static member {request.instance_id!r} is another process now")
                if static.member_epoch != _AWAY:
                    raise UnreleasedInstance(
                        f"static member {request.instance_id!r} of group {self.group_id} is in use by another process"
                    )
                return self._replace(static, request), False
        if member is None:
            if not joins:
                raise UnknownMember(f"group {self.group_id} has no member {request.member_id!r}")
            return self._newcomer(request), True
        if joins:
            self._start_over(member)
        else:
            check_epoch(member, request)
        return member, False

    def _check_size(self, request: ConsumerHeartbeat, topics: Mapping[str, TopicFact]) -> None:
        """Before anything changes: a group has to fit into its row."""
        if request.topic_names is None and not request.topic_pattern:
            return
        names = [name for name in request.topic_names or () if name in topics]
        names += matching(request.topic_pattern, topics) if request.topic_pattern else []
        more = {topics[name].topic_id: topics[name].partition_count for name in names}
        if sum((self._partitions | more).values()) > MAX_ASSIGNED_PARTITIONS:
            raise GroupFull(f"group {self.group_id} would read more than {MAX_ASSIGNED_PARTITIONS} partitions")
        weight = sum(member.weight_bytes for member in self.roster) + sum(map(len, request.topic_names or ()))
        if weight > MAX_ROSTER_BYTES:
            raise GroupFull(f"the members of group {self.group_id} list too many topics")

    def _newcomer(self, request: ConsumerHeartbeat) -> ConsumerMember:
        if len(self.roster) >= self._options.max_size:
            raise GroupFull(f"group {self.group_id} has {len(self.roster)} members")
        member = ConsumerMember(member_id=request.member_id, instance_id=request.instance_id)
        self.roster.add(member)
        return member

    def _replace(self, static: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
        """A static member came back under a new id: it goes on with what it had."""
        assigned = static.assigned
        self.roster.remove(static)
        self._end_timers(static)
        static.member_id, static.member_epoch, static.previous_epoch = request.member_id, 0, 0
        static.state = Reconciliation.STABLE
        self.roster.add(static)
        self.roster.hold(static, assigned=assigned, revoking=_NONE)
        self._save()
        return static

    def _start_over(self, member: ConsumerMember) -> None:
        """It joins again: by the protocol it holds nothing."""
        member.member_epoch, member.previous_epoch, member.state = 0, 0, Reconciliation.STABLE
        self.roster.hold(member, assigned=_NONE, revoking=_NONE)
        self._save()

    def _learn(self, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        """Take over what the heartbeat says; whether the subscription is another now."""
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

    def _leave(
        self, request: ConsumerHeartbeat, topics: Mapping[str, TopicFact], now_ms: int
    ) -> ConsumerHeartbeatResult:
        member = self.roster.get(request.member_id)
        if request.instance_id is not None:
            static = self.roster.static(request.instance_id)
            if static is not None and static is not member:
                raise FencedInstance(f"static member {request.instance_id!r} is another process now")
        if member is None:
            raise UnknownMember(f"group {self.group_id} has no member {request.member_id!r}")
        if request.member_epoch == _AWAY:
            member.member_epoch, member.state = _AWAY, Reconciliation.STABLE
            self.roster.hold(member, assigned=member.assigned, revoking=_NONE)
            self._timer(TimerKey(TimerKind.REVOKE, member.member_id), None)
            self._heard_of(member, now_ms)
            self._save()
        else:
            self._remove(member, topics)
        return ConsumerHeartbeatResult(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=self._options.consumer_heartbeat_interval_ms,
            assignment=None,
        )

    def remove(self, member_id: str, instance_id: str | None, topics: Mapping[str, TopicFact]) -> Effects:
        """By an operator. Raises UnknownMember, FencedInstance."""
        member = self.roster.get(member_id)
        if instance_id is not None:
            static = self.roster.static(instance_id)
            if member_id and static is not None and static is not member:
                raise FencedInstance(f"static member {instance_id!r} is another process now")
            member = static
        if member is None:
            raise UnknownMember(f"group {self.group_id} has no member {member_id or instance_id!r}")
        self._remove(member, topics)
        return self._take()

    def on_timer(self, key: TimerKey, topics: Mapping[str, TopicFact], now_ms: int) -> Effects:
        if key.kind is TimerKind.SILENCE:
            self._on_silence_timer(now_ms)
            return self._take()
        member = self.roster.get(key.member_id)
        if member is not None and key.kind in (TimerKind.SESSION, TimerKind.REVOKE):
            self._remove(member, topics)
        return self._take()

    def _remove(self, member: ConsumerMember, topics: Mapping[str, TopicFact]) -> None:
        self.roster.remove(member)
        self._end_timers(member)
        self._save()
        self._reassign(topics)

    def _end_timers(self, member: ConsumerMember) -> None:
        """It is gone, or goes on under another id."""
        self._not_silent(member.member_id)
        self._timer(TimerKey(TimerKind.SESSION, member.member_id), None)
        self._timer(TimerKey(TimerKind.REVOKE, member.member_id), None)

    def _heard_of(self, member: ConsumerMember, now_ms: int) -> None:
        self._not_silent(member.member_id)
        self._timer(TimerKey(TimerKind.SESSION, member.member_id), now_ms + self._options.consumer_session_timeout_ms)

    def end(self, error: StreamHouseError) -> Effects:
        """Nobody waits here: heartbeats are answered at once."""
        return self._take()

    def check_commit(self, member_id: str, member_epoch: int) -> None:
        """Whether this member may commit offsets, or read them as its own; raises if not."""
        if member_epoch < 0 and not len(self.roster):
            return
        member = self.roster.get(member_id)
        if member is None:
            raise UnknownMember(f"group {self.group_id} has no member {member_id!r}")
        if member_epoch != member.member_epoch:
            raise StaleMemberEpoch(f"member {member_id} is at epoch {member.member_epoch}, not at {member_epoch}")

    # Assignment.

    def topics_changed(self, topics: Mapping[str, TopicFact]) -> Effects:
        """Topics came, went or grew; nothing happens unless the group reads them."""
        if len(self.roster) and self._resolve(topics) != self._partitions:
            self._save()
            self._reassign(topics)
        return self._take()

    def subscribed(self, topic_id: TopicId) -> bool:
        return any(topic_id in member.topics for member in self.roster)

    def uses_patterns(self) -> bool:
        return any(member.topic_pattern is not None for member in self.roster)

    def _resolve(self, topics: Mapping[str, TopicFact]) -> dict[TopicId, int]:
        """What the members read now, by topic id with partition counts."""
        matched: dict[str, list[str]] = {}
        found: dict[TopicId, int] = {}
        for member in self.roster:
            names = [name for name in member.topic_names if name in topics]
            if member.topic_pattern is not None:
                if member.topic_pattern not in matched:
                    matched[member.topic_pattern] = matching(member.topic_pattern, topics)
                names += matched[member.topic_pattern]
            facts = [topics[name] for name in names]
            member.topics = frozenset(fact.topic_id for fact in facts)
            found.update((fact.topic_id, fact.partition_count) for fact in facts)
        return found

    def _reassign(self, topics: Mapping[str, TopicFact]) -> None:
        self.group_epoch += 1
        self._partitions = self._resolve(topics)
        readers = [
            Reader(member_id=member.member_id, instance_id=member.instance_id, topics=member.topics, had=member.target)
            for member in self.roster
        ]
        targets = ASSIGNORS[self.assignor](readers, self._partitions)
        for member in self.roster:
            member.target = targets[member.member_id]
        self.assignment_epoch = self.group_epoch

    @property
    def assignor(self) -> str:
        """The one most members ask for."""
        votes = Counter(member.assignor for member in self.roster if member.assignor is not None)
        return max(ASSIGNORS, key=lambda name: votes[name])

    # Reconciliation.

    def _reconcile(self, member: ConsumerMember, owned: frozenset[PartitionKey] | None, now_ms: int) -> None:
        epoch = member.member_epoch
        if member.state is Reconciliation.STABLE and epoch == self.assignment_epoch:
            return
        if member.state is Reconciliation.UNREVOKED:
            if owned is None or owned & member.revoking:
                return  # what it must let go it still has, for all we know
            self.roster.hold(member, assigned=member.assigned, revoking=_NONE)
            epoch += 1
        keep = member.assigned & member.target
        let_go = member.assigned - keep
        before = (member.member_epoch, member.state, member.assigned, member.revoking)
        if let_go and (owned is None or owned & let_go):
            self._step(member, epoch, Reconciliation.UNREVOKED)
            self.roster.hold(member, assigned=keep, revoking=let_go)
        else:
            wanted = member.target - keep
            free = frozenset(key for key in wanted if self.roster.holder(key) in (None, member.member_id))
            waits = len(free) < len(wanted)
            self._step(member, self.assignment_epoch, Reconciliation.UNRELEASED if waits else Reconciliation.STABLE)
            self.roster.hold(member, assigned=keep | free, revoking=_NONE)
        if before != (member.member_epoch, member.state, member.assigned, member.revoking):
            self._save()
            revokes = member.state is Reconciliation.UNREVOKED
            deadline_ms = now_ms + member.rebalance_timeout_ms if revokes else None
            self._timer(TimerKey(TimerKind.REVOKE, member.member_id), deadline_ms)

    def _step(self, member: ConsumerMember, epoch: int, state: Reconciliation) -> None:
        if epoch != member.member_epoch:
            member.previous_epoch, member.member_epoch = member.member_epoch, epoch
        member.state = state

    # Looking, and taking over.

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
        """Go on where another coordinator was: every member has its whole session, less what it has been silent for at
        earlier coordinators (silence.py). A member that sends a heartbeat goes on with what it has, at once."""
        self.assignment_epoch = snapshot.assignment_epoch
        self._partitions = dict(snapshot.partitions)
        for saved in snapshot.members:
            member = ConsumerMember.restored(saved)
            self.roster.add(member)
            if member.state is Reconciliation.UNREVOKED:
                self._timer(TimerKey(TimerKind.REVOKE, member.member_id), now_ms + member.rebalance_timeout_ms)
        sessions_ms = {member.member_id: self._options.consumer_session_timeout_ms for member in self.roster}
        self._taken_over(sessions_ms, dict(snapshot.silent), now_ms)
        return self._take()
