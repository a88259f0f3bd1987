"""Drives a KIP-848 group by hand, with members that behave as real ones do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.contract import (
    Answer,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Effects,
    Save,
    Ticket,
    Timer,
    TimerKey,
    TopicFact,
)
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId

REBALANCE_MS = 60_000


def fact(name: str, partitions: int, number: int | None = None) -> TopicFact:
    identity = sum(name.encode()) if number is None else number
    return TopicFact(topic_id=TopicId(UUID(int=identity)), name=name, partition_count=partitions)


def topics(**counts: int) -> dict[str, TopicFact]:
    return {name: fact(name, count) for name, count in counts.items()}


def keys(name: str, *partitions: int) -> frozenset[PartitionKey]:
    return frozenset(PartitionKey(fact(name, 1).topic_id, partition) for partition in partitions)


@dataclass
class Consumers:
    options: GroupOptions = field(default_factory=GroupOptions)
    topics: dict[str, TopicFact] = field(default_factory=lambda: topics(orders=4))
    now_ms: int = 1_000_000
    saves: int = 0

    def __post_init__(self) -> None:
        self.group = ConsumerGroup("g", options=self.options)
        self.timers: dict[TimerKey, int] = {}
        self.last: Answer | None = None
        self.asked = 0

    def beat(self, member: str, epoch: int, **changes: Any) -> ConsumerHeartbeatResult:
        """Raises the answer if it is an error."""
        fields: dict[str, Any] = {"group_id": "g", "member_id": member, "member_epoch": epoch}
        if epoch == 0:
            fields |= {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": ("orders",), "owned": frozenset()}
        self.asked += 1
        request = ConsumerHeartbeat(**{**fields, **changes})
        self.take(self.group.heartbeat(request, self.topics, Ticket(self.asked), self.now_ms))
        assert self.last is not None
        assert self.last.ticket == self.asked
        if isinstance(self.last.result, StreamHouseError):
            raise self.last.result
        assert isinstance(self.last.result, ConsumerHeartbeatResult)
        return self.last.result

    def code(self, member: str, epoch: int, **changes: Any) -> int:
        try:
            self.beat(member, epoch, **changes)
        except StreamHouseError as error:
            return error.kafka_code
        return 0

    def take(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Timer(key, None):
                    self.timers.pop(key, None)
                case Timer(key, int(at_ms)):
                    self.timers[key] = at_ms
                case Save():
                    self.saves += 1
                case Answer():
                    self.last = effect

    def advance(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.timers:
            key = min(self.timers, key=lambda key: self.timers[key])
            if self.timers[key] > end_ms:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.take(self.group.on_timer(key, self.topics, self.now_ms))
        self.now_ms = end_ms

    def change_topics(self, **counts: int) -> None:
        self.topics = topics(**counts)
        self.take(self.group.topics_changed(self.topics))


@dataclass
class RealMember:
    """Follows what it is told, as a client does: lets go at once, then says so."""

    group: Consumers
    name: str
    joins_with: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    owned: frozenset[PartitionKey] = frozenset()
    reported: frozenset[PartitionKey] | None = None
    lost_an_answer: bool = False
    """It then says everything, to be told everything."""

    def beat(self) -> None:
        changes: dict[str, Any] = {} if self.epoch else dict(self.joins_with)
        if self.epoch and self.owned != self.reported:
            changes["owned"] = self.owned
        if self.epoch and self.lost_an_answer:
            whole = {"rebalance_timeout_ms": REBALANCE_MS, "topic_names": ("orders",), "owned": self.owned}
            changes = {**whole, **self.joins_with}
        self.reported, self.lost_an_answer = self.owned, False
        answer = self.group.beat(self.name, self.epoch, **changes)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = answer.assignment


def settle(*members: RealMember, beats: int = 12) -> None:
    for _ in range(beats):
        for member in members:
            member.beat()
