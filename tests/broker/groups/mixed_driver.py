"""Drives a group that has members of both protocols, without IO: it converts the group as the registry does."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Literal

from consumer_driver import Consumers

from streamhouse.broker.groups import conversion
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.consumer_protocol import (
    NamedPartition,
    read_assignment,
    read_subscription,
    write_assignment,
)
from streamhouse.broker.groups.contract import (
    Answer,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Effects,
    JoinRequest,
    JoinResult,
    MemberRef,
    SyncRequest,
    SyncResult,
    Ticket,
)
from streamhouse.broker.groups.payload import decode, encode
from streamhouse.broker.groups.snapshot import ClassicSnapshot
from streamhouse.core.errors import MemberIdRequired, NotCoordinator, StreamHouseError, UnknownMember

SESSION_MS = 10_000
REBALANCE_MS = 60_000
Kind = Literal["range", "cooperative-sticky"]


def metadata(topics: tuple[str, ...], owned: frozenset[NamedPartition] = frozenset(), user_data: bytes = b"") -> bytes:
    """A subscription of version 1."""
    out = struct.pack(">hi", 1, len(topics)) + b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return out + struct.pack(">i", len(user_data)) + user_data + write_assignment(1, owned)[2:-4]


@dataclass
class Mixed(Consumers):
    """``group`` is a ConsumerGroup or a ClassicGroup."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group: Any = ClassicGroup("g", options=self.options)
        self.answers: dict[Ticket, object] = {}
        self.named = 0

    @property
    def is_classic(self) -> bool:
        return isinstance(self.group, ClassicGroup)

    def take(self, effects: Effects) -> None:
        super().take(effects)
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.ticket not in self.answers, "a request was answered twice"
                self.answers[effect.ticket] = effect.result
        if isinstance(self.group, ConsumerGroup) and self.group.roster.only_classic:
            self.group, more = conversion.to_classic(self.group, self.topics, options=self.options, now_ms=self.now_ms)
            self.take(more)

    def ticket(self) -> Ticket:
        self.asked += 1
        return Ticket(self.asked)

    def advance(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= end_ms:
            key = min(self.timers, key=lambda key: self.timers[key])
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            if isinstance(self.group, ClassicGroup):
                self.take(self.group.on_timer(key, self.now_ms))
            else:
                self.take(self.group.on_timer(key, self.topics, self.now_ms))
        self.now_ms = end_ms

    def take_over(self) -> None:
        """Another coordinator continues with what was saved."""
        saved = decode(encode(self.group.snapshot()))
        self.take(self.group.end(NotCoordinator("moved")))
        self.timers.clear()
        if isinstance(saved, ClassicSnapshot):
            self.group = ClassicGroup("g", options=self.options, generation=self.group.generation)
            self.take(self.group.restore(saved, self.now_ms))
        else:
            self.group = ConsumerGroup("g", options=self.options, group_epoch=self.group.group_epoch)
            self.take(self.group.restore(saved, self.now_ms))
            self.take(self.group.topics_changed(self.topics))

    # Requests.

    def beat(self, member: str, epoch: int, **changes: Any) -> ConsumerHeartbeatResult:
        if isinstance(self.group, ConsumerGroup):
            return super().beat(member, epoch, **changes)
        if epoch != 0:
            raise UnknownMember(member)
        fields: dict[str, Any] = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": ("orders",)}
        fields |= {"group_id": "g", "member_id": member, "member_epoch": 0, "owned": frozenset(), **changes}
        ticket = self.ticket()
        self.group, effects = conversion.joined_by_consumer(
            self.group, ConsumerHeartbeat(**fields), self.topics, ticket, options=self.options, now_ms=self.now_ms
        )
        self.take(effects)
        result = self.answers[ticket]
        if isinstance(result, StreamHouseError):
            raise result
        assert isinstance(result, ConsumerHeartbeatResult)
        return result

    def join(self, member_id: str = "", **changes: Any) -> Ticket:
        self.named += 1
        fields: dict[str, Any] = {
            "group_id": "g",
            "member_id": member_id,
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", metadata(("orders",))),),
            "known_id_required": False,
        }
        request, ticket = JoinRequest(**{**fields, **changes}), self.ticket()
        if isinstance(self.group, ConsumerGroup) and not len(self.group.roster):
            self.group = ClassicGroup("g", options=self.options, generation=self.group.group_epoch)
        if isinstance(self.group, ConsumerGroup):
            self.take(self.group.join(request, self.topics, ticket, f"c-{self.named}", self.now_ms))
        else:
            self.take(self.group.join(request, ticket, f"c-{self.named}", self.now_ms))
        return ticket

    def joined(self, member_id: str = "", **changes: Any) -> JoinResult:
        result = self.answers[self.join(member_id, **changes)]
        assert isinstance(result, JoinResult), result
        return result

    def sync(self, member_id: str, generation: int, *assignments: tuple[str, bytes], **changes: Any) -> Ticket:
        request = SyncRequest(
            group_id="g", generation=generation, member_id=member_id, assignments=assignments, **changes
        )
        ticket = self.ticket()
        if isinstance(self.group, ConsumerGroup):
            self.take(self.group.sync(request, self.topics, ticket, self.now_ms))
        else:
            self.take(self.group.sync(request, ticket, self.now_ms))
        return ticket

    def synced(self, member_id: str, generation: int) -> frozenset[NamedPartition]:
        result = self.answers[self.sync(member_id, generation)]
        assert isinstance(result, SyncResult), result
        return frozenset(read_assignment(result.assignment).partitions)

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> int:
        ticket = self.ticket()
        hosted = isinstance(self.group, ConsumerGroup)
        beat = self.group.classic_heartbeat if hosted else self.group.heartbeat
        self.take(beat(member_id, instance_id, generation, ticket, self.now_ms))
        return self.error(ticket)

    def leave(self, *members: MemberRef) -> list[int]:
        ticket = self.ticket()
        if isinstance(self.group, ConsumerGroup):
            self.take(self.group.leave(members, self.topics, ticket))
        else:
            self.take(self.group.leave(members, ticket, self.now_ms))
        outcomes: Any = self.answers[ticket]
        return [0 if outcome.error is None else outcome.error.kafka_code for outcome in outcomes]

    def error(self, ticket: Ticket) -> int:
        result = self.answers[ticket]
        return result.kafka_code if isinstance(result, StreamHouseError) else 0


@dataclass
class ClassicClient:
    """A client of the classic protocol that behaves as real ones do. An eager client ("range") stops reading before it
    joins; a cooperative client reads on, and joins again when it had to give something up."""

    group: Mixed
    kind: Kind = "range"
    topics: tuple[str, ...] = ("orders",)
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: frozenset[NamedPartition] = frozenset()
    waits: Ticket | None = None
    must_join: bool = True
    errors: list[int] = field(default_factory=list)

    def step(self) -> None:
        """One request, or the answer to the one that waits."""
        if self.waits is not None:
            if self.waits not in self.group.answers:
                return
            ticket, self.waits = self.waits, None
            self._answered(self.group.answers[ticket])
        elif self.must_join:
            if self.kind == "range":
                self.owned = frozenset()
            said = ((self.kind, metadata(self.topics, self.owned)),)
            self.waits = self.group.join(self.member_id, protocols=said, instance_id=self.instance)
        else:
            self._failed(self.group.heartbeat(self.member_id, self.generation, self.instance))

    def _answered(self, result: object) -> None:
        match result:
            case MemberIdRequired():
                self.member_id = result.member_id
            case StreamHouseError():
                self._failed(result.kafka_code)
            case JoinResult():
                self.member_id, self.generation, self.must_join = result.member_id, result.generation, False
                given = self._assign(result) if result.leader == self.member_id else ()
                self.waits = self.group.sync(self.member_id, self.generation, *given, instance_id=self.instance)
            case SyncResult():
                now = frozenset(read_assignment(result.assignment).partitions)
                self.must_join = self.kind != "range" and bool(self.owned - now)
                self.owned = now

    def _failed(self, code: int) -> None:
        if code:
            self.errors.append(code)
            self.must_join = True
        if code in (22, 25, 82):
            self.owned = frozenset()
        if code in (25, 82):
            self.member_id = ""

    def _assign(self, joined: JoinResult) -> list[tuple[str, bytes]]:
        """Assign in turn; a cooperative leader gives nothing to one member that another still reads."""
        said = {member.member_id: read_subscription(member.metadata) for member in joined.members}
        given: dict[str, list[NamedPartition]] = {member_id: [] for member_id in said}
        owner = {key: member_id for member_id, each in said.items() for key in each.owned}
        for name, fact in sorted(self.group.topics.items()):
            takers = sorted(member_id for member_id, each in said.items() if name in each.topics)
            for partition in range(fact.partition_count if takers else 0):
                taker = takers[partition % len(takers)]
                if owner.get((name, partition), taker) == taker:
                    given[taker].append((name, partition))
        return [(member_id, write_assignment(1, mine)) for member_id, mine in given.items()]
