"""How a classic group gets from one generation to the next. Pure; classic.py holds the requests that drive it.

                       first join                      all joined, or time is up
            EMPTY ───────────────► PREPARING_REBALANCE ─────────────────────────► COMPLETING_REBALANCE
              ▲                      ▲      │    ▲                                   │         │
              └── no member left ────┼──────┘    └── join, leave, no sync in time ───┘         │ leader's sync
                                     │                                                         ▼
                                     └── join, leave, expiry, leader joins again ◄────────── STABLE

A generation begins where PREPARING_REBALANCE ends. It is saved before any member gets its number, and once more with
the assignment. So another coordinator can continue from either point without a rebalance, and no generation is given
twice.
"""

from __future__ import annotations

from typing import Final

from streamhouse.broker.groups.contract import GroupState, JoinResult, Ticket, TimerKey, TimerKind
from streamhouse.broker.groups.machine import Machine
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.roster import GroupMember, Roster
from streamhouse.core.errors import (
    FencedInstance,
    IllegalGeneration,
    RebalanceInProgress,
    StreamHouseError,
    UnknownMember,
)

JOIN: Final = TimerKey(TimerKind.JOIN)
SYNC: Final = TimerKey(TimerKind.SYNC)
_MAY_REBALANCE: Final = frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE})


class Rebalancing(Machine):
    def __init__(self, group_id: str, *, options: GroupOptions, generation: int = 0) -> None:
        super().__init__()
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = generation
        self.protocol_type = ""
        self.protocol_name = ""
        self.roster = Roster()
        self.pending: dict[str, None] = {}
        """Member ids that were given out with MemberIdRequired and are not used yet."""
        self._options = options
        self._unsynced: set[str] = set()
        self._initial = False
        """The rebalance began with an empty group, so it waits for more members."""
        self._newcomer = False
        self._remaining_ms = 0

    @property
    def is_blank(self) -> bool:
        """No members, and no member ids given out."""
        return self.state is GroupState.EMPTY and not self.pending

    # From one generation to the next.

    def _rebalance_or_complete(self, now_ms: int) -> None:
        if self.state in _MAY_REBALANCE:
            self._prepare_rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._end_syncs(RebalanceInProgress(f"group {self.group_id} rebalances"))
        self._unsynced.clear()
        self._timer(SYNC, None)
        self._initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        if self._initial:
            delay_ms = self._options.initial_rebalance_delay_ms
            self._newcomer = False
            self._remaining_ms = max(self.roster.rebalance_timeout_ms() - delay_ms, 0)
            if delay_ms:
                self._timer(JOIN, now_ms + delay_ms)
            else:
                self._complete_join(now_ms)
        elif self._all_joined():
            self._complete_join(now_ms)
        else:
            self._timer(JOIN, now_ms + self.roster.rebalance_timeout_ms())

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and not self._initial and self._all_joined():
            self._complete_join(now_ms)

    def _all_joined(self) -> bool:
        return self.roster.joining == len(self.roster) and not self.pending

    def _on_join_timer(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._initial and self._newcomer and self._remaining_ms:
            delay_ms = min(self._options.initial_rebalance_delay_ms, self._remaining_ms)
            self._newcomer = False
            self._remaining_ms -= delay_ms
            self._timer(JOIN, now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Members that have not joined are removed. Static members stay until their session ends."""
        for late in [m.member_id for m in self.roster if m.joining is None and m.instance_id is None]:
            self._remove(late)
        if len(self.roster) and not self.roster.elect():  # all members are static, and none of them has joined
            self._timer(JOIN, now_ms + max(self.roster.rebalance_timeout_ms(), 1))
            return
        self._timer(JOIN, None)
        self._initial = False
        self.generation += 1
        self._save()
        if not len(self.roster):
            self.state, self.protocol_name = GroupState.EMPTY, ""
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self.protocol_name = self.roster.select_protocol()
        self._unsynced = {member.member_id for member in self.roster}
        for member in self.roster:
            member.assignment = b""
            ticket = self.roster.hold_join(member, None)
            if ticket is not None:
                self._answer_join(member, ticket)
                member.is_new = False
            self._renew_session(member, now_ms)
        self._timer(SYNC, now_ms + self.roster.rebalance_timeout_ms())

    def _after_removal(self, now_ms: int) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def _answer_join(self, member: GroupMember, ticket: Ticket) -> None:
        leads = self.roster.leader == member.member_id
        result = JoinResult(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader or "",
            member_id=member.member_id,
            members=self.roster.joined_members(self.protocol_name) if leads else (),
        )
        self._answer(ticket, result, after_save=True)

    # Members.

    def _member(self, member_id: str, instance_id: str | None) -> GroupMember:
        if instance_id is not None:
            known_as = self.roster.static_id(instance_id)
            if known_as is None:
                raise UnknownMember(f"group {self.group_id} has no static member {instance_id!r}")
            if known_as != member_id:
                raise FencedInstance(f"static member {instance_id!r} of group {self.group_id} was replaced")
        member = self.roster.get(member_id)
        if member is None:
            raise UnknownMember(f"group {self.group_id} has no member {member_id!r}")
        return member

    def _current_member(self, member_id: str, instance_id: str | None, generation: int) -> GroupMember:
        member = self._member(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration(f"group {self.group_id} is at generation {self.generation}, not at {generation}")
        return member

    def _remove(self, member_id: str) -> None:
        member = self.roster.get(member_id)
        if member is None:
            return
        gone = UnknownMember(f"group {self.group_id} no longer has member {member_id!r}")
        for ticket in (self.roster.hold_join(member, None), self._end_sync(member)):
            if ticket is not None:
                self._answer(ticket, gone)
        self.roster.remove(member_id)
        self._unsynced.discard(member_id)
        self._not_silent(member_id)
        self._timer(TimerKey(TimerKind.SESSION, member_id), None)

    def _drop_pending(self, member_id: str) -> None:
        del self.pending[member_id]
        self._timer(TimerKey(TimerKind.PENDING, member_id), None)

    def _end_sync(self, member: GroupMember) -> Ticket | None:
        ticket, member.syncing = member.syncing, None
        return ticket

    def _end_syncs(self, error: StreamHouseError) -> None:
        for member in self.roster:
            ticket = self._end_sync(member)
            if ticket is not None:
                self._answer(ticket, error)

    def _renew_session(self, member: GroupMember, now_ms: int) -> None:
        self._not_silent(member.member_id)
        self._timer(TimerKey(TimerKind.SESSION, member.member_id), now_ms + member.session_timeout_ms)
