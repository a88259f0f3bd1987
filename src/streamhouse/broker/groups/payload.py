"""A group's state as bytes: what ``metadata.save_group`` keeps and a take-over reads. Versions 1 to 3.

    group      = u8 version · u8 kind (1 classic, 2 consumer) · body · versions 2, 3: silent
    classic    = u8 state · str type · str protocol · opt leader · u32 n · n × classic member
      member   = str id · opt instance · str client · str host · i32 session · i32 rebalance
                 · u16 n · n × (str protocol · bytes metadata) · bytes assignment
    consumer   = i32 assignment epoch · u32 n · n × (16 B topic id · u32 partitions) · u32 n · n × consumer member
      member   = str id · opt instance · opt rack · str client · str host · i32 rebalance · u32 n · n × str topic
                 · opt pattern · opt assignor · i32 epoch · i32 previous · u8 state · keys assigned · revoking · target
                 · version 3: u8 0, or u8 1 · i32 session · u16 n · n × (str protocol · bytes metadata)
    silent     = u32 n · n × (str member id · u32 milliseconds)
    str        = u16 length · UTF-8        opt = u8 0, or u8 1 · str        bytes = u32 length · them
    keys       = u32 topics · each: 16 B topic id · u32 n · n × u32 partition

Big-endian. The generation is in the row itself. An empty payload is a group that never had a member.
Version 2 is written only while there are silent members (machine.py): after a take-over, if at all. Version 3 is
written only for a consumer group that has members of the classic protocol. An agent of an earlier build cannot read the
newer versions. If it meets one during an upgrade, it lets the members join again.
Does no IO. A changed layout is a new version; these are read for ever.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from streamhouse.core.errors import CorruptDocument, UnsupportedVersion
from streamhouse.core.ids import PartitionKey, TopicId

T = TypeVar("T")

_VERSION: Final = 1
_VERSION_WITH_SILENT: Final = 2
_VERSION_WITH_CLASSIC: Final = 3
_CLASSIC: Final = 1
_CONSUMER: Final = 2
_STATES: Final = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)


def encode(group: GroupSnapshot) -> bytes:
    out = _Out()
    version = _version(group)
    if isinstance(group, ClassicSnapshot):
        out.number("BBB", version, _CLASSIC, _STATES.index(group.state))
        out.text(group.protocol_type)
        out.text(group.protocol_name)
        out.maybe(group.leader)
        out.number("I", len(group.members))
        for classic in group.members:
            _put_classic(out, classic)
    else:
        out.number("BBiI", version, _CONSUMER, group.assignment_epoch, len(group.partitions))
        for topic_id, count in group.partitions:
            out.raw(topic_id.bytes)
            out.number("I", count)
        out.number("I", len(group.members))
        for consumer in group.members:
            out.raw(_consumer_bytes(consumer))
            if version >= _VERSION_WITH_CLASSIC:
                _put_traits(out, consumer.classic)
    if version >= _VERSION_WITH_SILENT:
        out.number("I", len(group.silent))
        for member_id, silent_ms in group.silent:
            out.text(member_id)
            out.number("I", silent_ms)
    return out.joined()


def _version(group: GroupSnapshot) -> int:
    if isinstance(group, ConsumerSnapshot) and any(member.classic is not None for member in group.members):
        return _VERSION_WITH_CLASSIC
    return _VERSION_WITH_SILENT if group.silent else _VERSION


def decode(payload: bytes) -> GroupSnapshot:
    """Raises CorruptDocument, or UnsupportedVersion for what a newer StreamHouse wrote."""
    if not payload:
        return ClassicSnapshot(state=GroupState.EMPTY, protocol_type="", protocol_name="", leader=None, members=())
    if not _VERSION <= payload[0] <= _VERSION_WITH_CLASSIC:
        raise UnsupportedVersion(
            f"the state of a group has version {payload[0]}; this agent reads {_VERSION} to {_VERSION_WITH_CLASSIC}",
            hint="upgrade this agent",
        )
    source = _In(payload)
    try:
        version, kind = source.number("BB")
        if kind not in (_CLASSIC, _CONSUMER):
            raise CorruptDocument(f"the state of a group has the unknown kind {kind}")
        group: GroupSnapshot = _classic(source) if kind == _CLASSIC else _consumer(source, version)
        if version >= _VERSION_WITH_SILENT:
            group = replace(group, silent=source.many(lambda source: (source.text(), source.number("I")[0])))
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise CorruptDocument(f"the state of a group cannot be read at byte {source.position}: {error}") from error
    if source.position != len(payload):
        raise CorruptDocument(f"the state of a group has {len(payload) - source.position} bytes too many")
    return group


# Classic.


def _put_classic(out: _Out, member: ClassicMemberSnapshot) -> None:
    out.text(member.member_id)
    out.maybe(member.instance_id)
    out.text(member.client_id)
    out.text(member.client_host)
    out.number("ii", member.session_timeout_ms, member.rebalance_timeout_ms)
    _put_protocols(out, member.protocols)
    out.blob(member.assignment)


def _put_protocols(out: _Out, protocols: Sequence[tuple[str, bytes]]) -> None:
    out.number("H", len(protocols))
    for name, metadata in protocols:
        out.text(name)
        out.blob(metadata)


def _protocols(source: _In) -> tuple[tuple[str, bytes], ...]:
    (count,) = source.number("H")
    return tuple((source.text(), source.blob()) for _ in range(count))


def _classic(source: _In) -> ClassicSnapshot:
    (state,) = source.number("B")
    return ClassicSnapshot(
        state=_STATES[state],
        protocol_type=source.text(),
        protocol_name=source.text(),
        leader=source.maybe(),
        members=source.many(_classic_member),
    )


def _classic_member(source: _In) -> ClassicMemberSnapshot:
    member_id, instance_id, client_id, client_host = source.text(), source.maybe(), source.text(), source.text()
    session_timeout_ms, rebalance_timeout_ms = source.number("ii")
    return ClassicMemberSnapshot(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocols=_protocols(source),
        assignment=source.blob(),
    )


# Consumer.


def _consumer_bytes(member: ConsumerMemberSnapshot) -> bytes:
    if not member.encoded:
        out = _Out()
        _put_consumer(out, member)
        member.encoded.append(out.joined())
    return member.encoded[0]


def _put_consumer(out: _Out, member: ConsumerMemberSnapshot) -> None:
    out.text(member.member_id)
    out.maybe(member.instance_id)
    out.maybe(member.rack_id)
    out.text(member.client_id)
    out.text(member.client_host)
    out.number("iI", member.rebalance_timeout_ms, len(member.topic_names))
    for name in member.topic_names:
        out.text(name)
    out.maybe(member.topic_pattern)
    out.maybe(member.assignor)
    out.number("iiB", member.member_epoch, member.previous_epoch, member.state)
    for keys in (member.assigned, member.revoking, member.target):
        out.keys(keys)


def _consumer(source: _In, version: int) -> ConsumerSnapshot:
    (assignment_epoch,) = source.number("i")
    return ConsumerSnapshot(
        assignment_epoch=assignment_epoch,
        partitions=source.many(lambda source: (source.topic_id(), source.number("I")[0])),
        members=source.many(lambda source: _consumer_member(source, version)),
    )


def _consumer_member(source: _In, version: int) -> ConsumerMemberSnapshot:
    member_id, instance_id, rack_id = source.text(), source.maybe(), source.maybe()
    client_id, client_host = source.text(), source.text()
    (rebalance_timeout_ms,) = source.number("i")
    topic_names = source.many(_In.text)
    topic_pattern, assignor = source.maybe(), source.maybe()
    member_epoch, previous_epoch, state = source.number("iiB")
    return ConsumerMemberSnapshot(
        member_id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        topic_names=topic_names,
        topic_pattern=topic_pattern,
        assignor=assignor,
        member_epoch=member_epoch,
        previous_epoch=previous_epoch,
        state=Reconciliation(state),
        assigned=source.keys(),
        revoking=source.keys(),
        target=source.keys(),
        classic=_traits(source) if version >= _VERSION_WITH_CLASSIC else None,
    )


def _put_traits(out: _Out, traits: ClassicTraits | None) -> None:
    out.number("B", traits is not None)
    if traits is not None:
        out.number("i", traits.session_timeout_ms)
        _put_protocols(out, traits.protocols)


def _traits(source: _In) -> ClassicTraits | None:
    (present,) = source.number("B")
    if not present:
        return None
    (session_timeout_ms,) = source.number("i")
    return ClassicTraits(session_timeout_ms=session_timeout_ms, protocols=_protocols(source))


# Bytes.


class _Out:
    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def joined(self) -> bytes:
        return b"".join(self._parts)

    def raw(self, data: bytes) -> None:
        self._parts.append(data)

    def number(self, layout: str, *values: int) -> None:
        self._parts.append(struct.pack(f">{layout}", *values))

    def text(self, text: str) -> None:
        data = text.encode()
        self.number("H", len(data))
        self.raw(data)

    def maybe(self, text: str | None) -> None:
        self.number("B", text is not None)
        if text is not None:
            self.text(text)

    def blob(self, data: bytes) -> None:
        self.number("I", len(data))
        self.raw(data)

    def keys(self, keys: Iterable[PartitionKey]) -> None:
        by_topic: dict[TopicId, list[int]] = {}
        for key in keys:
            by_topic.setdefault(key.topic_id, []).append(key.partition)
        self.number("I", len(by_topic))
        for topic_id in sorted(by_topic):
            partitions = sorted(by_topic[topic_id])
            self.raw(topic_id.bytes)
            self.number(f"I{len(partitions)}I", len(partitions), *partitions)


class _In:
    """Checks every length against the bytes that are left before it reads them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def _take(self, length: int) -> bytes:
        start, self.position = self.position, self.position + length
        if self.position > len(self._data):
            raise CorruptDocument(f"the state of a group ends too early, at byte {start}")
        return self._data[start : self.position]

    def number(self, layout: str) -> tuple[int, ...]:
        whole = f">{layout}"
        return struct.unpack(whole, self._take(struct.calcsize(whole)))

    def text(self) -> str:
        return self._take(self.number("H")[0]).decode()

    def maybe(self) -> str | None:
        (present,) = self.number("B")
        return self.text() if present else None

    def blob(self) -> bytes:
        return self._take(self.number("I")[0])

    def topic_id(self) -> TopicId:
        return TopicId(uuid.UUID(bytes=self._take(16)))

    def many(self, read: Callable[[_In], T]) -> tuple[T, ...]:
        (count,) = self.number("I")
        if count > len(self._data) - self.position:
            raise CorruptDocument(f"the state of a group claims {count} items in its last bytes")
        return tuple(read(self) for _ in range(count))

    def keys(self) -> frozenset[PartitionKey]:
        found: set[PartitionKey] = set()
        for topic_id, partitions in self.many(lambda source: (source.topic_id(), source.many(_partition))):
            found.update(PartitionKey(topic_id, partition) for partition in partitions)
        return frozenset(found)


def _partition(source: _In) -> int:
    return source.number("I")[0]
