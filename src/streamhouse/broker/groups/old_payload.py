"""Reads the state of a group in versions 1 to 3, which builds before version 4 (payload.py) have written.

    group      = u8 version · u8 kind (1 classic, 2 consumer) · body · versions 2, 3: silent
    classic    = u8 state · str type · str protocol · opt leader · u32 n · n × classic member
      member   = str id · opt instance · str client · str host · i32 session · i32 rebalance · protocols
                 · bytes assignment
    consumer   = i32 assignment epoch · u32 n · n × (16 B topic id · u32 partitions) · u32 n · n × consumer member
      member   = str id · opt instance · opt rack · str client · str host · i32 rebalance · u32 n · n × str topic
                 · opt pattern · opt assignor · i32 epoch · i32 previous · u8 state · keys assigned · revoking · target
                 · version 3: u8 0, or u8 1 · i32 session · protocols
    protocols  = u16 n · n × (str name · bytes metadata)
    silent     = u32 n · n × (str member id · u32 milliseconds)
    str        = u16 length · UTF-8        opt = u8 0, or u8 1 · str        bytes = u32 length · them
    keys       = u32 topics · each: 16 B topic id · u32 n · n × u32 partition

Big-endian. Nothing writes these versions any more.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Final, TypeVar

from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.snapshot import (
    ClassicMemberSnapshot,
    ClassicSnapshot,
    ClassicTraits,
    ConsumerMemberSnapshot,
    ConsumerSnapshot,
    GroupSnapshot,
    Reconciliation,
)
from streamhouse.core.errors import CorruptDocument
from streamhouse.core.ids import PartitionKey, TopicId

T = TypeVar("T")

VERSIONS: Final = (1, 2, 3)
_STATES: Final = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)


def decode(payload: bytes) -> GroupSnapshot:
    """Raises CorruptDocument."""
    source = _Source(payload)
    try:
        version, kind = source.number("B"), source.number("B")
        if kind not in (1, 2):
            raise CorruptDocument(f"the state of a group has the unknown kind {kind}")
        group = source.classic(version) if kind == 1 else source.consumer(version)
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise CorruptDocument(f"the state of a group cannot be read at byte {source.position}: {error}") from error
    if source.position != len(payload):
        raise CorruptDocument(f"the state of a group has {len(payload) - source.position} bytes too many")
    return group


class _Source:
    """Reads one value after the other. Checks every length against the bytes that are left.

    The fields of a group are keyword arguments in the order of their bytes: Python evaluates them in that order.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, length: int) -> bytes:
        start, self.position = self.position, self.position + length
        if self.position > len(self._data):
            raise CorruptDocument(f"the state of a group ends too early, at byte {start}")
        return self._data[start : self.position]

    def number(self, layout: str = "i") -> int:
        return int(struct.unpack(f">{layout}", self.take(struct.calcsize(f">{layout}")))[0])

    def many(self, read: Callable[[], T], count: str = "I") -> tuple[T, ...]:
        claimed = self.number(count)
        if claimed > len(self._data) - self.position:
            raise CorruptDocument(f"the state of a group claims {claimed} items in its last bytes")
        return tuple(read() for _ in range(claimed))

    def text(self) -> str:
        return self.take(self.number("H")).decode()

    def optional(self, read: Callable[[], T]) -> T | None:
        return read() if self.number("B") else None

    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        return self.many(lambda: (self.text(), self.take(self.number("I"))), "H")

    def silent(self, version: int) -> tuple[tuple[str, int], ...]:
        return self.many(lambda: (self.text(), self.number("I"))) if version >= 2 else ()

    def topic_id(self) -> TopicId:
        return TopicId(uuid.UUID(bytes=self.take(16)))

    def keys(self) -> frozenset[PartitionKey]:
        topics = self.many(lambda: (self.topic_id(), self.many(lambda: self.number("I"))))
        return frozenset(PartitionKey(topic_id, number) for topic_id, numbers in topics for number in numbers)

    def classic(self, version: int) -> ClassicSnapshot:
        return ClassicSnapshot(
            state=_STATES[self.number("B")],
            protocol_type=self.text(),
            protocol_name=self.text(),
            leader=self.optional(self.text),
            members=self.many(self.classic_member),
            silent=self.silent(version),
        )

    def classic_member(self) -> ClassicMemberSnapshot:
        return ClassicMemberSnapshot(
            member_id=self.text(),
            instance_id=self.optional(self.text),
            client_id=self.text(),
            client_host=self.text(),
            session_timeout_ms=self.number(),
            rebalance_timeout_ms=self.number(),
            protocols=self.protocols(),
            assignment=self.take(self.number("I")),
        )

    def consumer(self, version: int) -> ConsumerSnapshot:
        return ConsumerSnapshot(
            assignment_epoch=self.number(),
            partitions=self.many(lambda: (self.topic_id(), self.number("I"))),
            members=self.many(lambda: self.consumer_member(version)),
            silent=self.silent(version),
        )

    def consumer_member(self, version: int) -> ConsumerMemberSnapshot:
        return ConsumerMemberSnapshot(
            member_id=self.text(),
            instance_id=self.optional(self.text),
            rack_id=self.optional(self.text),
            client_id=self.text(),
            client_host=self.text(),
            rebalance_timeout_ms=self.number(),
            topic_names=self.many(self.text),
            topic_pattern=self.optional(self.text),
            assignor=self.optional(self.text),
            member_epoch=self.number(),
            previous_epoch=self.number(),
            state=Reconciliation(self.number("B")),
            assigned=self.keys(),
            revoking=self.keys(),
            target=self.keys(),
            classic=self.optional(self.traits) if version >= 3 else None,
        )

    def traits(self) -> ClassicTraits:
        return ClassicTraits(session_timeout_ms=self.number(), protocols=self.protocols())
