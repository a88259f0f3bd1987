"""Offsets as a user writes them in an option and as Spark keeps them in a checkpoint. Pure.

An option has the form of Spark's Kafka source, {"orders": {"0": 23, "1": -2}}, with -2 for earliest and -1 for latest.

A checkpoint has the same form, with what must survive a restart beside it under names that no topic can have:

    {"orders": {"0": 120, "1": 98},      up to where the batch reads, by partition
     "$topics": {"orders": "KXk…"},      the topic's id: one that was created again begins at 0 (R19)
     "$query": "3f0c…",                  made once for the life of a checkpoint; names the consumer group
     "$from": {"orders": {"0": 100}}}    only in a query's first offset: where it began

A query begins at the constant INITIAL. Spark asks for the beginning several times, also while it repeats batch 0, and
keeps none of the answers; whatever "latest" meant is therefore written into the *end* of the first batch, once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from streamhouse.core.errors import InvalidRequest, InvalidSetting
from streamhouse.core.ids import TopicId, parse_topic_id, topic_id_text
from streamhouse.core.limits import MAX_CONFIG_FILE_BYTES, MAX_PARTITIONS_PER_TOPIC

EARLIEST: Final = -2
LATEST: Final = -1
INITIAL: Final[Mapping[str, Any]] = {"$initial": 1}

_TOPICS: Final = "$topics"
_QUERY: Final = "$query"
_FROM: Final = "$from"
_MAX_OFFSET: Final = 2**63 - 1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The end of a micro-batch, which is the start of the next."""

    offsets: Offsets
    """The next offset to read of each partition; one that is not listed starts at 0."""
    topic_ids: Mapping[str, TopicId]
    query: str
    began_at: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        document = offsets_document(self.offsets)
        document[_TOPICS] = {name: topic_id_text(topic_id) for name, topic_id in sorted(self.topic_ids.items())}
        document[_QUERY] = self.query
        if self.began_at is not None:
            document[_FROM] = offsets_document(self.began_at)
        return document


def read_stream_offset(document: Mapping[str, Any]) -> StreamOffset | None:
    """None for the beginning of a query. Raises InvalidRequest for what this source did not write."""
    if document == INITIAL:
        return None
    try:
        began = document.get(_FROM)
        return StreamOffset(
            offsets=_offsets({name: value for name, value in document.items() if not name.startswith("$")}, lowest=0),
            topic_ids={name: parse_topic_id(text) for name, text in document[_TOPICS].items()},
            query=str(document[_QUERY]),
            began_at=None if began is None else _offsets(began, lowest=0),
        )
    except (AttributeError, KeyError, ValueError, InvalidRequest) as error:
        raise InvalidRequest(
            f"the checkpoint holds an offset that is not of this source: {json.dumps(document)[:200]}",
            hint="a checkpoint belongs to one source; give a query that moves over from Kafka a new checkpointLocation "
            "and its old offsets as startingOffsets",
        ) from error


def offsets_document(offsets: Offsets) -> dict[str, Any]:
    """Return the offsets in Kafka's form, sorted: Spark compares them as text, so equal offsets must be equal text."""
    document: dict[str, Any] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return document


def parse_offsets(text: str, *, lowest: int = EARLIEST) -> dict[TopicPartition, int]:
    """Reads an option's JSON. ``lowest`` is -2 where earliest and latest are allowed, else 0. Raises InvalidSetting;
    the caller adds the option's name.
    """
    example = '{"orders":{"0":23,"1":-2}}' if lowest < 0 else '{"orders":{"0":1700000000000}}'
    document = _load(text, example)
    try:
        return _offsets(document, lowest=lowest)
    except ValueError as error:
        raise InvalidSetting(str(error), hint=f"write it like {example}") from error


def parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    """The option ``assign``: {"orders": [0, 1]}. Raises InvalidSetting."""
    example = '{"orders":[0,1]}'
    document = _load(text, example)
    found: list[TopicPartition] = []
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not all(_is_partition(number) for number in partitions):
            raise InvalidSetting(f"{topic!r} has no list of partitions", hint=f"write it like {example}")
        found.extend(TopicPartition(topic, number) for number in partitions)
    if not found:
        raise InvalidSetting("no partition is named", hint=f"write it like {example}")
    return tuple(sorted(set(found)))


def _load(text: str, example: str) -> Mapping[str, Any]:
    if len(text) > MAX_CONFIG_FILE_BYTES:
        raise InvalidSetting(f"{len(text)} characters are more than {MAX_CONFIG_FILE_BYTES}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidSetting(f"{text[:80]!r} is not a JSON object", hint=f"write it like {example}")
    return document


def _offsets(document: Mapping[str, Any], *, lowest: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, by_partition in document.items():
        if not isinstance(by_partition, Mapping):
            raise ValueError(f"{topic!r} has no object of partitions")
        for name, offset in by_partition.items():
            if not (isinstance(name, str) and name.isascii() and name.isdigit() and _is_partition(int(name[:10]))):
                raise ValueError(f"{name!r} is not a partition of {topic!r}")
            if type(offset) is not int or not lowest <= offset <= _MAX_OFFSET:
                raise ValueError(f"{offset!r} is not a number that {topic}/{name} can have")
            found[TopicPartition(topic, int(name))] = offset
    return found


def _is_partition(number: object) -> bool:
    return type(number) is int and 0 <= number < MAX_PARTITIONS_PER_TOPIC
