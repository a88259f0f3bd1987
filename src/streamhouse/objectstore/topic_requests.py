"""Divides the requests to an object store between topics, so that the parts add up to the requests exactly.

    an object in a topic's own folder    its key names the topic
    a shared blob                        the caller names the topics and their bytes, with ``caused_by`` around the call
    anything else                        is shared: listings, marks, probes, deletions of shared blobs

A request is divided in proportion to the bytes into whole parts, a million for each request. So nothing is rounded
away, however many topics share a blob. A request has the name that its topic has at the time; a topic whose name the
process does not know, because it was deleted say, is shared too. Counts alone; prices are in metering.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

from streamhouse.core.ids import TopicId
from streamhouse.core.limits import MAX_METERED_TOPICS
from streamhouse.objectstore.keys import SHARED_BLOB_PREFIX, topic_of
from streamhouse.objectstore.objects import Operation

K = TypeVar("K")

PARTS_PER_REQUEST: Final = 1_000_000
SHARED_NAME: Final = "(shared)"
OTHER_NAME: Final = "(other)"
"""Stands for the topics beyond a limit. No topic can have these two names: parentheses are not allowed in one."""

Causes: TypeAlias = Mapping[TopicId | None, int]
"""Topics and their weights; None is what no topic causes."""
SHARED: Final[Causes] = MappingProxyType({None: 1})

_causes: ContextVar[Causes] = ContextVar("causes_of_store_requests", default=SHARED)


@contextmanager
def caused_by(bytes_by_topic: Mapping[TopicId, int]) -> Iterator[None]:
    """Requests for shared blobs that are made inside belong to these topics, in proportion to their bytes. Tasks that
    are started inside inherit it."""
    causes: dict[TopicId | None, int] = dict(bytes_by_topic.items())
    token = _causes.set(causes or SHARED)
    try:
        yield
    finally:
        _causes.reset(token)


def causes_of(key: str) -> Causes:
    """The topics that a request for this object belongs to."""
    if key.startswith(SHARED_BLOB_PREFIX):
        return _causes.get()
    topic_id = topic_of(key)
    return SHARED if topic_id is None else {topic_id: 1}


def causes_of_deletion(keys: Sequence[str]) -> Causes:
    """One request deletes many objects: each counts the same, because their sizes are not known."""
    return Counter(topic_of(key) for key in keys)


@dataclass(slots=True)
class TopicRequests:
    """The requests of each topic, in parts of a request. It belongs to one event loop."""

    max_topics: int = MAX_METERED_TOPICS
    name_of: Callable[[TopicId], str | None] = lambda _: None
    """Called for each request; without it, everything is shared."""
    _topics: dict[str, dict[Operation, int]] = field(default_factory=dict)
    """In the order of their first requests. None is ever removed, so that counters only grow."""
    _shared: dict[Operation, int] = field(default_factory=dict)
    _other: dict[Operation, int] = field(default_factory=dict)

    def count(self, operation: Operation, requests: int, causes: Causes) -> None:
        for cause, parts in divided(requests * PARTS_PER_REQUEST, causes).items():
            row = self._row(cause)
            row[operation] = row.get(operation, 0) + parts

    def read(self, *, max_topics: int = MAX_METERED_TOPICS) -> dict[str, dict[Operation, int]]:
        """The parts by name and kind of request. Beyond ``max_topics``, those that came last are together in "(other)",
        which is there only if it has something."""
        found: dict[str, dict[Operation, int]] = {SHARED_NAME: dict(self._shared)}
        other = dict(self._other)
        for number, (name, row) in enumerate(self._topics.items()):
            if number < max_topics:
                found[name] = dict(row)
                continue
            for operation, parts in row.items():
                other[operation] = other.get(operation, 0) + parts
        if other:
            found[OTHER_NAME] = other
        return found

    def _row(self, cause: TopicId | None) -> dict[Operation, int]:
        name = None if cause is None else self.name_of(cause)
        if name is None:
            return self._shared
        row = self._topics.get(name)
        if row is None:
            if len(self._topics) >= self.max_topics:
                return self._other
            row = self._topics[name] = {}
        return row


def divided(amount: int, weights: Mapping[K, int]) -> dict[K, int]:
    """``amount`` divided in proportion to the weights, so that the parts add up to it exactly."""
    total = sum(weights.values())
    parts: dict[K, int] = {}
    given = passed = 0
    for each, weight in weights.items():
        passed += weight
        end = amount * passed // total if total else amount
        parts[each], given = end - given, end
    return parts
