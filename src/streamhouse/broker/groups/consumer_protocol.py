"""The bytes that consumers of the classic protocol put into JoinGroup and SyncGroup. Pure.

To the classic protocol these bytes are opaque: the leader of the group reads the subscriptions and writes the
assignments. Kafka calls the layout the protocol type "consumer". A coordinator has to understand it when members of the
classic protocol are in a consumer group, because there the coordinator assigns.

    subscription   i16 version · array of topic names · bytes user data
                   version 1: · owned partitions      version 2: · i32 generation      version 3: · string rack
    assignment     i16 version · partitions · bytes user data
    partitions     array of (string topic · array of i32 partition)

Big-endian; an array has an i32 count, a string an i16 length, bytes an i32 length (-1: null). A newer version only adds
fields at the end, so it is read as version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PROTOCOL_TYPE: Final = "consumer"
_NEWEST_VERSION: Final = 3

NamedPartition = tuple[str, int]
"""Topic name and partition."""


class MalformedMetadata(ValueError):
    """Bytes that are not of the protocol type "consumer"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    version: int
    topics: tuple[str, ...]
    owned: tuple[NamedPartition, ...] = ()
    """What the member still reads while it joins. Members that give up everything before they join send none."""
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    partitions: tuple[NamedPartition, ...] = ()
    has_user_data: bool = False
    """Written by an assignor that keeps its own data in assignments, such as that of Kafka Streams."""


def read_subscription(data: bytes) -> Subscription:
    """Raises MalformedMetadata."""
    source = _Reader(data)
    version = source.number("h")
    topics = tuple(source.text() for _ in range(source.count(2)))
    source.blob()
    owned = source.partitions() if version >= 1 else ()
    rack_id = None
    if version >= 2:
        source.number("i")
    if version >= 3:
        rack_id = source.nullable_text()
    return Subscription(version=version, topics=topics, owned=owned, rack_id=rack_id or None)


def read_assignment(data: bytes) -> Assignment:
    """No bytes: the member has not been assigned anything. Raises MalformedMetadata."""
    if not data:
        return Assignment()
    source = _Reader(data)
    source.number("h")
    return Assignment(partitions=source.partitions(), has_user_data=bool(source.blob()))


def write_assignment(version: int, partitions: Iterable[NamedPartition]) -> bytes:
    """``version``: that of the member's subscription."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    out = [struct.pack(">hi", min(version, _NEWEST_VERSION), len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        out.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    out.append(struct.pack(">i", 0))  # no user data
    return b"".join(out)


class _Reader:
    """Every length is checked against the bytes that are left before anything is made of it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack(f">{kind}", self._take(struct.calcsize(f">{kind}")))
        return int(value)

    def count(self, least_bytes: int) -> int:
        count = self.number("i")
        if not 0 <= count * least_bytes <= len(self._data) - self._position:
            raise MalformedMetadata(f"an array of {count} items at byte {self._position}")
        return count

    def text(self) -> str:
        text = self.nullable_text()
        if text is None:
            raise MalformedMetadata(f"no text at byte {self._position}")
        return text

    def nullable_text(self) -> str | None:
        length = self.number("h")
        try:
            return None if length < 0 else self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedMetadata(f"text that is not UTF-8 before byte {self._position}") from error

    def blob(self) -> bytes:
        length = self.number("i")
        return b"" if length < 0 else self._take(length)

    def partitions(self) -> tuple[NamedPartition, ...]:
        found: list[NamedPartition] = []
        for _ in range(self.count(6)):
            topic = self.text()
            found.extend((topic, self.number("i")) for _ in range(self.count(4)))
        return tuple(found)

    def _take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        if self._position > len(self._data):
            raise MalformedMetadata(f"{len(self._data)} bytes that end before byte {self._position}")
        return self._data[start : self._position]
