"""Topic ids, partition keys, append ids, and the rule for topic names."""

from __future__ import annotations

import base64
import re
import uuid
from dataclasses import dataclass, field
from typing import NewType

from streamhouse.core.errors import InvalidRequest, InvalidTopicName

TopicId = NewType("TopicId", uuid.UUID)
"""The identity of a topic. A topic that is created again under the same name is another topic (R19)."""

AppendId = NewType("AppendId", uuid.UUID)
"""The identity of one commit. Its writer makes it and keeps it in every retry (R5)."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """One log. Ordered by (topic id, partition), which is the order every multi-row lock is taken in (R10)."""

    topic_id: TopicId
    partition: int
    _hash: int = field(init=False, repr=False, compare=False)
    """Every look-up on the hot path hashes one of these, and hashing a UUID is slow."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.topic_id.int, self.partition)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{topic_id_text(self.topic_id)}:{self.partition}"


def check_topic_name(name: str) -> str:
    """Kafka's rule, which also excludes '/': Oxia orders keys by path segment."""
    if name in (".", "..") or not _TOPIC_NAME.fullmatch(name):
        raise InvalidTopicName(f"topic name {name[:260]!r} is not allowed")
    return name


def topic_id_text(topic_id: TopicId) -> str:
    """Kafka's spelling of a topic id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")


def parse_topic_id(text: str) -> TopicId:
    try:
        raw = base64.urlsafe_b64decode(text + "==")
    except ValueError as error:
        raise InvalidRequest(f"{text[:64]!r} is not a topic id") from error
    if len(raw) != 16 or topic_id_text(TopicId(uuid.UUID(bytes=raw))) != text:
        raise InvalidRequest(f"{text[:64]!r} is not a topic id")
    return TopicId(uuid.UUID(bytes=raw))
