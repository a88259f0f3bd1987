"""The options of the source, read and checked. Pure.

Names and meaning are those of Spark's own Kafka source, so that a job moves over by changing the format's name and the
address; a few of ours stand beside them. Whatever is wrong is one line that says what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from streamhouse.core.errors import ConfigError, InvalidSetting, InvalidTopicName, UnknownSetting
from streamhouse.core.ids import check_topic_name
from streamhouse.core.limits import MAX_GROUP_ID_BYTES, MAX_SPLITS, MAX_TTL_MS, MIB
from streamhouse.core.suggest import did_you_mean
from streamhouse.core.units import parse_duration, parse_size
from streamhouse.spark.address import ADDRESS_OPTIONS, is_address_option
from streamhouse.spark.offsets import EARLIEST, LATEST, Offsets, TopicPartition, parse_assignment, parse_offsets
from streamhouse.spark.rows import DEFAULT_COLUMNS, HEADERS, check_columns

T = TypeVar("T")

KAFKA_PREFIX: Final = "kafka."
GROUP_PREFIX: Final = "spark-streamhouse-source"

_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
OPTIONS: Final = (
    *_SUBSCRIPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    *_ENDINGS,
    "minPartitions",
    "maxRecordsPerPartition",
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "groupIdPrefix",
    "includeHeaders",
    "columns",
    "splitBytes",
    "parallelism",
    "flushTimeout",
    "pinTimeout",
)
"""The options of a read, without ``kafka.*`` and the address."""

_NO_CHOICE: Final = frozenset({"kafkaconsumer.polltimeoutms", "fetchoffset.numretries", "fetchoffset.retryintervalms"})
"""Options of the Kafka source about how it talks to brokers: accepted, without effect."""


class Edge(StrEnum):
    """How the start or the end of a read is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMES = "times"
    """A time for each partition."""
    TIME = "time"
    """One time for all partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    edge: Edge
    by_partition: Offsets | None = None
    """Offsets (-2 earliest, -1 latest) or milliseconds."""
    timestamp_ms: int = -1
    option: str = ""
    """The option that gave it, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """How much one micro-batch may read; None is no limit."""

    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay_ms: int
    """How long ``min_rows`` may delay a batch at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    subscription: TopicSelection
    starting: Position
    ending: Position
    latest_if_no_time_matches: bool
    columns: tuple[str, ...]
    limits: RateLimits
    fail_on_data_loss: bool
    read_committed: bool
    group_id: str | None
    """The group id; None if it is made from the prefix and the query."""
    group_prefix: str
    split_bytes: int
    parallelism: int | None
    """The cores to plan for; None if only Spark knows them."""
    min_partitions: int | None
    max_records_per_split: int | None
    flush_timeout_ms: int
    pin_ttl_ms: int
    ignored: tuple[str, ...]
    """Given options that have no effect here; they cause one warning."""


def chosen_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns a read gives, in order. Raises InvalidSetting."""
    given = _Given(options)
    columns = given.get("columns", _columns, None)
    if columns is None:
        return (*DEFAULT_COLUMNS, HEADERS) if given.get("includeHeaders", _boolean, False) else DEFAULT_COLUMNS
    return columns


def names_source(options: Mapping[str, str]) -> bool:
    """Whether these are options of a read at all; the same format also writes."""
    return any(name in _Given(options) for name in _SUBSCRIPTIONS)


def check_names(options: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names that have no effect here. Raises UnknownSetting for one that is no option."""
    known = {name.lower() for name in OPTIONS}
    ours = {"kafka.group.id", "kafka.isolation.level"}
    ignored: list[str] = []
    for name in sorted(map(str.lower, options)):
        if name in known or name in ours or is_address_option(name):
            continue
        if name.startswith(KAFKA_PREFIX) or name in _NO_CHOICE:
            ignored.append(name)
        elif name == "path":
            raise UnknownSetting("a topic has no path", hint='name it: .option("subscribe", "orders").load()')
        else:
            every = (*OPTIONS, *ADDRESS_OPTIONS)
            hint = did_you_mean(name, (*every, *ours), otherwise=f"the options are {', '.join(every)}")
            raise UnknownSetting(f"the source has no option {name!r}", hint=hint)
    return tuple(ignored)


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises ConfigError."""
    given = _Given(options)
    ignored = check_names(options)
    starting, ending = _starting(given, streaming=streaming), _ending(given, streaming=streaming)
    whole = _number(1)
    limits = RateLimits(
        max_rows=given.get("maxOffsetsPerTrigger", whole, None),
        max_bytes=given.get("maxBytesPerTrigger", _bytes, None),
        min_rows=given.get("minOffsetsPerTrigger", whole, None),
        max_delay_ms=given.get("maxTriggerDelay", _duration, 15 * 60_000),
    )
    if limits.min_rows is not None and limits.max_rows is not None and limits.min_rows > limits.max_rows:
        raise InvalidSetting(
            f"minOffsetsPerTrigger ({limits.min_rows}) is more than maxOffsetsPerTrigger ({limits.max_rows})"
        )
    return ReadOptions(
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        latest_if_no_time_matches=given.get("startingOffsetsByTimestampStrategy", _one_of("error", "latest"), "error")
        == "latest",
        columns=chosen_columns(options),
        limits=limits,
        fail_on_data_loss=given.get("failOnDataLoss", _boolean, True),
        read_committed=given.get(
            "kafka.isolation.level", _one_of("read_committed", "read_uncommitted"), "read_uncommitted"
        )
        == "read_committed",
        group_id=given.get("kafka.group.id", _group, None),
        group_prefix=given.get("groupIdPrefix", _group, GROUP_PREFIX),
        split_bytes=given.get("splitBytes", _bytes, 32 * MIB),
        parallelism=given.get("parallelism", _number(1, MAX_SPLITS), None),
        min_partitions=given.get("minPartitions", _number(1, MAX_SPLITS), None),
        max_records_per_split=given.get("maxRecordsPerPartition", whole, None),
        flush_timeout_ms=given.get("flushTimeout", _duration, 5_000),
        pin_ttl_ms=given.get("pinTimeout", _pin_ttl, 10 * 60_000),
        ignored=ignored,
    )


class _Given:
    """Options by name, whatever their case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._by_lower = {name.lower(): value for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._by_lower

    def get(self, name: str, parse: Callable[[str], T], default: T) -> T:
        text = self._by_lower.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text.strip())
        except ConfigError as error:
            raise InvalidSetting(f"option {name}: {error.message}", hint=error.hint) from error


def _subscription(given: _Given) -> TopicSelection:
    chosen = [name for name in _SUBSCRIPTIONS if name in given]
    if len(chosen) != 1:
        said = f"{' and '.join(chosen)} are given together" if chosen else "no topic is named"
        raise InvalidSetting(said, hint=f"give one of the options {', '.join(_SUBSCRIPTIONS)}")
    return TopicSelection(
        topics=given.get("subscribe", _topics, ()),
        pattern=given.get("subscribePattern", _pattern, ""),
        partitions=given.get("assign", parse_assignment, ()),
    )


def _starting(given: _Given, *, streaming: bool) -> Position:
    """The Kafka source's order: one time for all, a time for each, offsets."""
    position = _by_time(given, "startingTimestamp", "startingOffsetsByTimestamp")
    if position is not None:
        return position
    name = "startingOffsets"
    position = given.get(name, _edge_or_offsets(name), None)
    if position is None:
        return Position(edge=Edge.LATEST if streaming else Edge.EARLIEST, option=name)
    if not streaming and (position.edge is Edge.LATEST or LATEST in (position.by_partition or {}).values()):
        raise InvalidSetting("startingOffsets cannot be latest (-1) in a batch read: it would read nothing")
    return position


def _ending(given: _Given, *, streaming: bool) -> Position:
    if streaming:
        for name in _ENDINGS:
            if name in given:
                raise InvalidSetting(f"option {name} is for batch reads: a stream has no end")
        return Position(edge=Edge.LATEST)
    position = _by_time(given, "endingTimestamp", "endingOffsetsByTimestamp")
    if position is not None:
        return position
    name = "endingOffsets"
    position = given.get(name, _edge_or_offsets(name), Position(edge=Edge.LATEST, option=name))
    if position.edge is Edge.EARLIEST or EARLIEST in (position.by_partition or {}).values():
        raise InvalidSetting("endingOffsets cannot be earliest (-2): there is nothing before it")
    return position


def _by_time(given: _Given, one: str, each: str) -> Position | None:
    timestamp_ms = given.get(one, _number(0), None)
    if timestamp_ms is not None:
        return Position(edge=Edge.TIME, timestamp_ms=timestamp_ms, option=one)
    times = given.get(each, lambda text: parse_offsets(text, lowest=0), None)
    return None if times is None else Position(edge=Edge.TIMES, by_partition=times, option=each)


def _edge_or_offsets(name: str) -> Callable[[str], Position]:
    def parse(text: str) -> Position:
        if text.lower() in (Edge.EARLIEST, Edge.LATEST):
            return Position(edge=Edge(text.lower()), option=name)
        if not text.startswith("{"):
            hint = did_you_mean(
                text, (Edge.EARLIEST, Edge.LATEST), otherwise='write earliest, latest or {"t":{"0":23}}'
            )
            raise InvalidSetting(f"{text[:80]!r} is neither earliest nor latest nor JSON", hint=hint)
        return Position(edge=Edge.OFFSETS, by_partition=parse_offsets(text), option=name)

    return parse


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidSetting("no topic is named", hint='write it like "orders,clicks"')
    try:
        for name in names:
            check_topic_name(name)
    except InvalidTopicName as error:
        raise InvalidSetting(error.message, hint=error.hint) from error
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidSetting(f"{text[:80]!r} is not a regular expression: {error}") from error
    if not text:
        raise InvalidSetting("the pattern is empty", hint="write it like orders-.*")
    return text


def _columns(text: str) -> tuple[str, ...]:
    return check_columns(tuple(name.strip() for name in text.split(",") if name.strip()))


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidSetting(f"{text[:80]!r} is neither true nor false")
    return text.lower() == "true"


def _number(lowest: int, highest: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text, re.ASCII) or not lowest <= int(text) <= highest:
            raise InvalidSetting(f"{text[:80]!r} is not a whole number from {lowest} to {highest}")
        return int(text)

    return parse


def _bytes(text: str) -> int:
    size_bytes = parse_size(text)
    if size_bytes < 1:
        raise InvalidSetting("nothing can be read in 0 bytes")
    return size_bytes


def _duration(text: str) -> int:
    return parse_duration(re.sub(r"min$", "m", text.lower()))  # Spark also writes 15min


def _pin_ttl(text: str) -> int:
    ttl_ms = _duration(text)
    if not 10_000 <= ttl_ms <= MAX_TTL_MS:
        raise InvalidSetting(f"{text!r} is not between 10s and {MAX_TTL_MS // 86_400_000}d")
    return ttl_ms


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise InvalidSetting(
                f"{text[:80]!r} is not {' or '.join(choices)}",
                hint=did_you_mean(text, choices, otherwise=f"write {' or '.join(choices)}"),
            )
        return text.lower()

    return parse


def _group(text: str) -> str:
    if not 0 < len(text.encode()) <= MAX_GROUP_ID_BYTES:
        raise InvalidSetting(f"a group's name has 1 to {MAX_GROUP_ID_BYTES} bytes")
    return text
