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

Each layout is declared once, as a codec that writes and reads it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

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
U = TypeVar("U")

_OLDEST, _WITH_SILENT, _WITH_CLASSIC = 1, 2, 3
_CLASSIC_KIND, _CONSUMER_KIND = 1, 2


def encode(group: GroupSnapshot) -> bytes:
    version = _version(group)
    if isinstance(group, ClassicSnapshot):
        out = [bytes((version, _CLASSIC_KIND))]
        _CLASSIC.write(out, group)
    else:
        out = [bytes((version, _CONSUMER_KIND))]
        _consumer(version).write(out, group)
    if version >= _WITH_SILENT:
        _SILENT.write(out, group.silent)
    return b"".join(out)


def _version(group: GroupSnapshot) -> int:
    if isinstance(group, ConsumerSnapshot) and any(member.classic is not None for member in group.members):
        return _WITH_CLASSIC
    return _WITH_SILENT if group.silent else _OLDEST


def decode(payload: bytes) -> GroupSnapshot:
    """Raises CorruptDocument, or UnsupportedVersion for a version that a newer StreamHouse wrote."""
    if not payload:
        return ClassicSnapshot(state=GroupState.EMPTY, protocol_type="", protocol_name="", leader=None, members=())
    version = payload[0]
    if not _OLDEST <= version <= _WITH_CLASSIC:
        raise UnsupportedVersion(
            f"the state of a group has version {version}; this agent reads {_OLDEST} to {_WITH_CLASSIC}",
            hint="upgrade this agent",
        )
    source = _Source(payload)
    try:
        _, kind = source.take(2)
        if kind not in (_CLASSIC_KIND, _CONSUMER_KIND):
            raise CorruptDocument(f"the state of a group has the unknown kind {kind}")
        group: GroupSnapshot = (_CLASSIC if kind == _CLASSIC_KIND else _consumer(version)).read(source)
        if version >= _WITH_SILENT:
            group = replace(group, silent=_SILENT.read(source))
    except (struct.error, UnicodeDecodeError, IndexError, ValueError) as error:
        raise CorruptDocument(f"the state of a group cannot be read at byte {source.position}: {error}") from error
    if source.position != len(payload):
        raise CorruptDocument(f"the state of a group has {len(payload) - source.position} bytes too many")
    return group


class _Source:
    """Checks every length against the bytes that are left before it reads them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, length: int) -> bytes:
        start, self.position = self.position, self.position + length
        if self.position > len(self._data):
            raise CorruptDocument(f"the state of a group ends too early, at byte {start}")
        return self._data[start : self.position]

    def check_count(self, count: int) -> None:
        if count > len(self._data) - self.position:
            raise CorruptDocument(f"the state of a group claims {count} items in its last bytes")


@dataclass(frozen=True, slots=True)
class _Codec(Generic[T]):
    write: Callable[[list[bytes], T], None]
    read: Callable[[_Source], T]

    def mapped(self, to_stored: Callable[[U], T], from_stored: Callable[[T], U]) -> _Codec[U]:
        return _Codec(
            lambda out, value: self.write(out, to_stored(value)), lambda source: from_stored(self.read(source))
        )


def _number(layout: str) -> _Codec[int]:
    packed = struct.Struct(f">{layout}")
    return _Codec(
        lambda out, value: out.append(packed.pack(value)),
        lambda source: int(packed.unpack(source.take(packed.size))[0]),
    )


def _sized(length: _Codec[int]) -> _Codec[bytes]:
    def write(out: list[bytes], data: bytes) -> None:
        length.write(out, len(data))
        out.append(data)

    return _Codec(write, lambda source: source.take(length.read(source)))


def _optional(codec: _Codec[T]) -> _Codec[T | None]:
    def write(out: list[bytes], value: T | None) -> None:
        out.append(b"\0" if value is None else b"\1")
        if value is not None:
            codec.write(out, value)

    return _Codec(write, lambda source: codec.read(source) if source.take(1) != b"\0" else None)


def _many(codec: _Codec[T], count: _Codec[int]) -> _Codec[tuple[T, ...]]:
    def write(out: list[bytes], values: tuple[T, ...]) -> None:
        count.write(out, len(values))
        for value in values:
            codec.write(out, value)

    def read(source: _Source) -> tuple[T, ...]:
        claimed = count.read(source)
        source.check_count(claimed)
        return tuple(codec.read(source) for _ in range(claimed))

    return _Codec(write, read)


def _pair(first: _Codec[T], second: _Codec[U]) -> _Codec[tuple[T, U]]:
    def write(out: list[bytes], value: tuple[T, U]) -> None:
        first.write(out, value[0])
        second.write(out, value[1])

    return _Codec(write, lambda source: (first.read(source), second.read(source)))


def _record(make: Callable[..., T], fields: dict[str, _Codec[Any]]) -> _Codec[T]:
    """A dataclass, by its fields in this order."""

    def write(out: list[bytes], value: T) -> None:
        for name, codec in fields.items():
            codec.write(out, getattr(value, name))

    return _Codec(write, lambda source: make(**{name: codec.read(source) for name, codec in fields.items()}))


_U8, _U16, _U32, _I32 = (_number(layout) for layout in "BHIi")
_BYTES: Final = _sized(_U32)
_TEXT: Final = _sized(_U16).mapped(str.encode, bytes.decode)
_OPTIONAL_TEXT: Final = _optional(_TEXT)
_PROTOCOLS: Final = _many(_pair(_TEXT, _BYTES), _U16)
_SILENT: Final = _many(_pair(_TEXT, _U32), _U32)
_TOPIC_ID: Final[_Codec[TopicId]] = _Codec(
    lambda out, topic_id: out.append(topic_id.bytes), lambda source: TopicId(uuid.UUID(bytes=source.take(16)))
)


def _by_topic(keys: Iterable[PartitionKey]) -> tuple[tuple[TopicId, tuple[int, ...]], ...]:
    found: dict[TopicId, list[int]] = {}
    for key in keys:
        found.setdefault(key.topic_id, []).append(key.partition)
    return tuple((topic_id, tuple(sorted(found[topic_id]))) for topic_id in sorted(found))


def _write_numbers(out: list[bytes], numbers: tuple[int, ...]) -> None:
    out.append(struct.pack(f">I{len(numbers)}I", len(numbers), *numbers))


def _read_numbers(source: _Source) -> tuple[int, ...]:
    count = _U32.read(source)
    source.check_count(count)
    return struct.unpack(f">{count}I", source.take(4 * count))


_NUMBERS: Final = _Codec(_write_numbers, _read_numbers)  # in one call: a large group has 500,000 partitions
_KEYS: Final = _many(_pair(_TOPIC_ID, _NUMBERS), _U32).mapped(
    _by_topic, lambda topics: frozenset(PartitionKey(topic_id, number) for topic_id, each in topics for number in each)
)

# Classic.

_STATES: Final = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)
_CLASSIC_MEMBER: Final = _record(
    ClassicMemberSnapshot,
    {
        "member_id": _TEXT,
        "instance_id": _OPTIONAL_TEXT,
        "client_id": _TEXT,
        "client_host": _TEXT,
        "session_timeout_ms": _I32,
        "rebalance_timeout_ms": _I32,
        "protocols": _PROTOCOLS,
        "assignment": _BYTES,
    },
)
_CLASSIC: Final = _record(
    ClassicSnapshot,
    {
        "state": _U8.mapped(_STATES.index, _STATES.__getitem__),
        "protocol_type": _TEXT,
        "protocol_name": _TEXT,
        "leader": _OPTIONAL_TEXT,
        "members": _many(_CLASSIC_MEMBER, _U32),
    },
)

# Consumer.

_MEMBER_FIELDS: Final[dict[str, _Codec[Any]]] = {
    "member_id": _TEXT,
    "instance_id": _OPTIONAL_TEXT,
    "rack_id": _OPTIONAL_TEXT,
    "client_id": _TEXT,
    "client_host": _TEXT,
    "rebalance_timeout_ms": _I32,
    "topic_names": _many(_TEXT, _U32),
    "topic_pattern": _OPTIONAL_TEXT,
    "assignor": _OPTIONAL_TEXT,
    "member_epoch": _I32,
    "previous_epoch": _I32,
    "state": _U8.mapped(int, Reconciliation),
    "assigned": _KEYS,
    "revoking": _KEYS,
    "target": _KEYS,
}
_TRAITS: Final = _optional(_record(ClassicTraits, {"session_timeout_ms": _I32, "protocols": _PROTOCOLS}))
_MEMBER: Final = _record(ConsumerMemberSnapshot, _MEMBER_FIELDS)
_MEMBER_WITH_CLASSIC: Final = _record(ConsumerMemberSnapshot, {**_MEMBER_FIELDS, "classic": _TRAITS})


def _write_cached(out: list[bytes], member: ConsumerMemberSnapshot) -> None:
    if not member.encoded:
        parts: list[bytes] = []
        _MEMBER.write(parts, member)
        member.encoded.append(b"".join(parts))
    out.append(member.encoded[0])


def _write_cached_with_classic(out: list[bytes], member: ConsumerMemberSnapshot) -> None:
    _write_cached(out, member)
    _TRAITS.write(out, member.classic)


def _group_of(member: _Codec[ConsumerMemberSnapshot]) -> _Codec[ConsumerSnapshot]:
    fields: dict[str, _Codec[Any]] = {
        "assignment_epoch": _I32,
        "partitions": _many(_pair(_TOPIC_ID, _U32), _U32),
        "members": _many(member, _U32),
    }
    return _record(ConsumerSnapshot, fields)


_CONSUMER: Final = _group_of(_Codec(_write_cached, _MEMBER.read))
_CONSUMER_WITH_CLASSIC: Final = _group_of(_Codec(_write_cached_with_classic, _MEMBER_WITH_CLASSIC.read))


def _consumer(version: int) -> _Codec[ConsumerSnapshot]:
    return _CONSUMER_WITH_CLASSIC if version >= _WITH_CLASSIC else _CONSUMER
