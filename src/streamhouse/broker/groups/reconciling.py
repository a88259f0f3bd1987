"""How a consumer group assigns partitions, and how each member gets from what it has to its target. Pure.

    subscription, member or topic changes  →  group epoch + 1  →  target assignment of that epoch
    each member's requests lead it there:

        STABLE ──── newer target: must give up partitions ───►  UNREVOKED ─── its request omits them ──┐
          │ ▲                                                                                          │
          │ └──────── has its whole target ◄──────── (next step) ◄─────────────────────────────────────┘
          └─ others have not given theirs up ─► UNRELEASED

A partition goes to its new owner only after a request of the old owner omits it. What a member is told is saved before.

consumer.py holds the requests of the consumer protocol, hosted.py those of the classic protocol; both use this course.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from streamhouse.broker.groups.assignors import ASSIGNORS, Subscriber
from streamhouse.broker.groups.consumer_roster import ConsumerMember, ConsumerRoster
from streamhouse.broker.groups.contract import GroupState, TimerKey, TimerKind, TopicFact
from streamhouse.broker.groups.machine import Machine
from streamhouse.broker.groups.options import MAX_ASSIGNED_PARTITIONS, MAX_ROSTER_BYTES, GroupOptions
from streamhouse.broker.groups.patterns import matching
from streamhouse.broker.groups.snapshot import Reconciliation
from streamhouse.core.errors import GroupFull
from streamhouse.core.ids import PartitionKey, TopicId

Topics = Mapping[str, TopicFact]
"""The topics that exist, by name."""

AWAY: Final = -2
"""The epoch of a static member that has left for a while."""
NONE: Final[frozenset[PartitionKey]] = frozenset()
_MEMBER_TIMERS: Final = (TimerKind.SESSION, TimerKind.REVOKE, TimerKind.JOIN, TimerKind.SYNC)


class Reconciling(Machine):
    def __init__(self, group_id: str, *, options: GroupOptions, group_epoch: int = 0) -> None:
        super().__init__()
        self.group_id = group_id
        self.group_epoch = group_epoch
        self.assignment_epoch = group_epoch
        self.roster = ConsumerRoster()
        self._options = options
        self._partitions: dict[TopicId, int] = {}
        """The partition counts that the target assignment was made with."""

    @property
    def generation(self) -> int:
        """The number that is saved with the group. A classic group calls it the generation (conversion.py)."""
        return self.group_epoch

    @property
    def state(self) -> GroupState:
        if not len(self.roster):
            return GroupState.EMPTY
        return GroupState.STABLE if self._is_settled else GroupState.RECONCILING

    @property
    def _is_settled(self) -> bool:
        return all(
            member.member_epoch in (self.assignment_epoch, AWAY) and member.state is Reconciliation.STABLE
            for member in self.roster
        )

    @property
    def is_complete(self) -> bool:
        """Whether every partition has an owner that knows of it: nothing is left to assign or to reconcile."""
        held = sum(len(member.target) for member in self.roster)
        return self._is_settled and held == sum(self._partitions.values())

    # Members.

    def _check_room(self, *, joins: bool, more_bytes: int, names: tuple[str, ...] | list[str], topics: Topics) -> None:
        """Refuse a change after which the group would not fit into its row. ``names``: topics that will be read."""
        if joins and len(self.roster) >= self._options.max_size:
            raise GroupFull(f"group {self.group_id} has {len(self.roster)} members, which is the limit")
        more = {topics[name].topic_id: topics[name].partition_count for name in names if name in topics}
        if sum((self._partitions | more).values()) > MAX_ASSIGNED_PARTITIONS:
            raise GroupFull(f"group {self.group_id} would read more than {MAX_ASSIGNED_PARTITIONS} partitions")
        if sum(member.weight_bytes for member in self.roster) + more_bytes > MAX_ROSTER_BYTES:
            raise GroupFull(f"the subscriptions of group {self.group_id} take more than {MAX_ROSTER_BYTES} bytes")

    def _replace(self, static: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member came back under a new id. It continues with the partitions that it had."""
        assigned = static.assigned
        self.roster.remove(static)
        self._end_timers(static)
        static.member_id, static.member_epoch, static.previous_epoch = member_id, 0, 0
        static.state = Reconciliation.STABLE
        self.roster.add(static)
        self.roster.hold(static, assigned=assigned, revoking=NONE)
        self._save()
        return static

    def _remove(self, member: ConsumerMember, topics: Topics) -> None:
        self._drop(member)
        self._after_removal(topics)

    def _drop(self, member: ConsumerMember) -> None:
        self.roster.remove(member)
        self._end_timers(member)
        self._save()

    def _after_removal(self, topics: Topics) -> None:
        """A group that has only members of the classic protocol left becomes a classic group (conversion.py). It keeps
        its epoch as its generation, so that these members may still commit offsets before they join again."""
        if not self.roster.only_classic:
            self._reassign(topics)

    def _end_timers(self, member: ConsumerMember) -> None:
        """The member is gone, or goes on under another id."""
        self._not_silent(member.member_id)
        for kind in _MEMBER_TIMERS:
            self._timer(TimerKey(kind, member.member_id), None)

    def _session_ms(self, member: ConsumerMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self._options.consumer_session_timeout_ms

    def _renew_session(self, member: ConsumerMember, now_ms: int) -> None:
        self._not_silent(member.member_id)
        self._timer(TimerKey(TimerKind.SESSION, member.member_id), now_ms + self._session_ms(member))

    # Assignment.

    def _resolve(self, topics: Topics) -> dict[TopicId, int]:
        """The topics that the members read now, with their partition counts."""
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

    def _reassign(self, topics: Topics) -> None:
        self.group_epoch += 1
        self._partitions = self._resolve(topics)
        readers = [
            Subscriber(
                member_id=member.member_id, instance_id=member.instance_id, topics=member.topics, had=member.target
            )
            for member in self.roster
        ]
        targets = ASSIGNORS[self.assignor](readers, self._partitions)
        for member in self.roster:
            member.target = targets[member.member_id]
        self.assignment_epoch = self.group_epoch

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for."""
        votes = Counter(member.assignor for member in self.roster if member.assignor is not None)
        return max(ASSIGNORS, key=lambda name: votes[name])

    # Reconciliation.

    def _reconcile(self, member: ConsumerMember, owned: frozenset[PartitionKey] | None, now_ms: int) -> None:
        """``owned``: the partitions that the member says it reads. None: it does not say."""
        epoch = member.member_epoch
        if member.state is Reconciliation.STABLE and epoch == self.assignment_epoch:
            return
        if member.state is Reconciliation.UNREVOKED:
            if owned is None or owned & member.revoking:
                return  # it may still read what it must give up
            self.roster.hold(member, assigned=member.assigned, revoking=NONE)
            epoch += 1
        keep = member.assigned & member.target
        give_up = member.assigned - keep
        before = (member.member_epoch, member.state, member.assigned, member.revoking)
        if give_up and (owned is None or owned & give_up):
            self._step(member, epoch, Reconciliation.UNREVOKED)
            self.roster.hold(member, assigned=keep, revoking=give_up)
        else:
            wanted = member.target - keep
            free = frozenset(key for key in wanted if self._is_free_for(member, key))
            waits = len(free) < len(wanted)
            self._step(member, self.assignment_epoch, Reconciliation.UNRELEASED if waits else Reconciliation.STABLE)
            self.roster.hold(member, assigned=keep | free, revoking=NONE)
        if before != (member.member_epoch, member.state, member.assigned, member.revoking):
            self._save()
            revokes = member.state is Reconciliation.UNREVOKED and member.classic is None
            deadline_ms = now_ms + member.rebalance_timeout_ms if revokes else None
            self._timer(TimerKey(TimerKind.REVOKE, member.member_id), deadline_ms)

    def _is_free_for(self, member: ConsumerMember, key: PartitionKey) -> bool:
        return self.roster.holder(key) in (None, member.member_id)

    def _step(self, member: ConsumerMember, epoch: int, state: Reconciliation) -> None:
        if epoch != member.member_epoch:
            member.previous_epoch, member.member_epoch = member.member_epoch, epoch
        member.state = state
