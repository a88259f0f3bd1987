"""Drives a classic group by hand: a clock that stands still, timers that fire when told, answers kept by ticket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.contract import (
    Answer,
    Effects,
    GroupState,
    JoinRequest,
    MemberRef,
    Save,
    SyncRequest,
    Ticket,
    Timer,
    TimerKey,
    TimerKind,
)
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.core.errors import StreamHouseError

SESSION_MS = 10_000
REBALANCE_MS = 60_000


def code_of(answer: object) -> int:
    return answer.kafka_code if isinstance(answer, StreamHouseError) else 0


@dataclass
class Driver:
    options: GroupOptions = field(default_factory=GroupOptions)
    now_ms: int = 1_000_000
    saves: int = 0

    def __post_init__(self) -> None:
        self.group = ClassicGroup("g", options=self.options)
        self.timers: dict[TimerKey, int] = {}
        self.answers: dict[Ticket, Any] = {}
        self.asked = 0
        self.named = 0

    # Events.

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b"r"),),
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        known_id_required: bool = False,
        can_skip: bool = True,
        protocol_type: str = "consumer",
    ) -> Ticket:
        self.named += 1
        request = JoinRequest(
            group_id="g",
            member_id=member_id,
            instance_id=instance,
            client_id="client",
            client_host="127.0.0.1",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            known_id_required=known_id_required,
            can_skip_assignment=can_skip,
        )
        ticket = self.ticket()
        self.take(self.group.join(request, ticket, f"{instance or 'm'}-{self.named}", self.now_ms))
        return ticket

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        *,
        instance: str | None = None,
        protocol_name: str | None = None,
        protocol_type: str | None = None,
        **assignments: bytes,
    ) -> Ticket:
        request = SyncRequest(
            group_id="g",
            generation=self.group.generation if generation is None else generation,
            member_id=member_id,
            instance_id=instance,
            protocol_name=protocol_name,
            protocol_type=protocol_type,
            assignments=tuple((name.replace("_", "-"), value) for name, value in assignments.items()),
        )
        ticket = self.ticket()
        self.take(self.group.sync(request, ticket, self.now_ms))
        return ticket

    def heartbeat(self, member_id: str, generation: int | None = None, *, instance: str | None = None) -> int:
        ticket = self.ticket()
        asked = self.group.generation if generation is None else generation
        self.take(self.group.heartbeat(member_id, instance, asked, ticket, self.now_ms))
        return code_of(self.answers[ticket])

    def leave(self, *members: MemberRef | str) -> list[int]:
        ticket = self.ticket()
        refs = [MemberRef(member_id=each) if isinstance(each, str) else each for each in members]
        self.take(self.group.leave(refs, ticket, self.now_ms))
        return [0 if outcome.error is None else outcome.error.kafka_code for outcome in self.answers[ticket]]

    def commit(self, member_id: str = "", generation: int = -1, *, instance: str | None = None) -> int:
        try:
            self.take(self.group.check_commit(member_id, instance, generation, self.now_ms))
        except StreamHouseError as error:
            return error.kafka_code
        return 0

    def advance(self, ms: int) -> None:
        """Let time pass, firing what is due, in order."""
        end_ms = self.now_ms + ms
        while self.timers:
            key = min(self.timers, key=lambda key: self.timers[key])
            if self.timers[key] > end_ms:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.take(self.group.on_timer(key, self.now_ms))
        self.now_ms = end_ms

    # Looking.

    def ticket(self) -> Ticket:
        self.asked += 1
        return Ticket(self.asked)

    def take(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Timer(key, None):
                    self.timers.pop(key, None)
                case Timer(key, int(at_ms)):
                    self.timers[key] = at_ms
                case Save():
                    self.saves += 1
                case Answer(ticket, result):
                    assert ticket not in self.answers, "a request was answered twice"
                    self.answers[ticket] = result

    def waits(self, ticket: Ticket) -> bool:
        return ticket not in self.answers

    def code(self, ticket: Ticket) -> int:
        return code_of(self.answers[ticket])

    @property
    def state(self) -> GroupState:
        return self.group.state

    def has_timer(self, kind: TimerKind, member_id: str = "") -> bool:
        return TimerKey(kind, member_id) in self.timers

    # First steps.

    def member(self, **joining: Any) -> str:
        """One more member, in a group that is stable before and after."""
        ticket = self.join(**joining)
        for other in [member for member in self.group.roster if member.joining is None]:
            self.join(
                other.member_id,
                protocols=other.protocols,
                session_ms=other.session_timeout_ms,
                rebalance_ms=other.rebalance_timeout_ms,
            )
        member_id: str = self.answers[ticket].member_id
        self.settle()
        return member_id

    def settle(self) -> None:
        """Every member syncs; the leader gives each its own name."""
        names = [member.member_id for member in self.group.roster]
        request = SyncRequest(
            group_id="g",
            generation=self.group.generation,
            member_id=self.group.roster.leader or "",
            assignments=tuple((name, name.encode()) for name in names),
        )
        self.take(self.group.sync(request, self.ticket(), self.now_ms))
        for name in names:
            if name != self.group.roster.leader:
                self.sync(name)
        assert self.state is GroupState.STABLE
