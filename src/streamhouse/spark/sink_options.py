"""The options and columns of the sink, read and checked before any task starts. Pure, and without pyspark.

Options have the names of Spark's Kafka sink, and Delta's names for idempotent batch writes. An error is one line that
says what to write instead. The columns:

    value       binary or string; the only one that must be there
    key         binary or string; decides the partition, as every Kafka client computes it
    headers     array<struct<key:string,value:binary>>
    partition   int; null leaves it to the key
    timestamp   timestamp; null is the time of writing
    topic       string; needed unless the option ``topic`` names one for all rows

``offset`` and ``timestampType`` of the source are left out, so that what was read can be written as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from streamhouse.core.errors import ConfigError, InvalidSetting, InvalidTopicName, UnknownSetting
from streamhouse.core.ids import check_topic_name
from streamhouse.core.limits import KIB, MAX_NAME_BYTES, MIB
from streamhouse.core.suggest import did_you_mean
from streamhouse.core.units import parse_duration, parse_size
from streamhouse.spark.address import ADDRESS_OPTIONS, is_address_option
from streamhouse.spark.options import OPTIONS as READ_OPTIONS
from streamhouse.wire.codecs import Codec

T = TypeVar("T")

OPTIONS: Final = (
    "topic",
    "compression",
    "batchBytes",
    "blobBytes",
    "commitTimeout",
    "txnAppId",
    "txnVersion",
    "failOnChangedBatch",
)
"""All but ``kafka.*`` and the address."""
_KAFKA_PREFIX: Final = "kafka."
_SUBSCRIPTIONS: Final = ("subscribe", "subscribepattern", "assign")
_KAFKA_COMPRESSION: Final = "kafka.compression.type"
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark hands on."""
_OF_READS: Final = frozenset(name.lower() for name in READ_OPTIONS if name.lower() not in _SUBSCRIPTIONS)
"""A session may have them as defaults for all it does."""
_CODECS: Final[Mapping[str, Codec]] = {codec.name.lower(): codec for codec in Codec}
_TEXT_TYPES: Final = ("binary", "string")
_COLUMN_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": _TEXT_TYPES,
    "key": _TEXT_TYPES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "topic": ("string",),
}
_LEFT_OUT: Final = frozenset({"offset", "timestamptype"})


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    topic: str | None
    """None: a column names the topic of each row."""
    codec: Codec | None
    """None: what the topic asks for, and lz4 where it asks for nothing."""
    batch_bytes: int
    """The size of one record batch, before compression."""
    blob_bytes: int
    """Rows gathered for one object, before compression; a task holds two of them in memory."""
    commit_timeout_ms: int
    txn_app_id: str | None
    txn_version: int
    fail_on_changed_batch: bool
    """Whether a batch that comes again with another number of rows is refused, rather than taken for the same."""
    ignored: tuple[str, ...]
    """Options that were given and have no effect here: worth one warning."""


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Raises ConfigError."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    ignored = _check_names(given)
    version = _get(given, "txnVersion", _number, None)
    app_id = _get(given, "txnAppId", _app_id, None)
    if (version is None) != (app_id is None):
        raise InvalidSetting("txnAppId and txnVersion belong together", hint="give both, or neither")
    if app_id is not None and streaming:
        raise InvalidSetting("txnAppId is for batch writes: a streaming query has its id in its checkpoint")
    codec = _get(given, "compression", _codec, None)
    return WriteOptions(
        topic=_get(given, "topic", _topic, None),
        codec=_get(given, _KAFKA_COMPRESSION, _codec, None) if codec is None else codec,
        batch_bytes=_get(given, "batchBytes", _size(KIB, 64 * MIB), MIB),
        blob_bytes=_get(given, "blobBytes", _size(64 * KIB, 256 * MIB), 32 * MIB),
        commit_timeout_ms=_get(given, "commitTimeout", _timeout, 120_000),
        txn_app_id=app_id,
        txn_version=0 if version is None else version,
        fail_on_changed_batch=_get(given, "failOnChangedBatch", _boolean, streaming),
        ignored=ignored,
    )


def _check_names(given: Mapping[str, str]) -> tuple[str, ...]:
    known = {name.lower() for name in OPTIONS} | _SPARKS_OWN | _OF_READS | {_KAFKA_COMPRESSION}
    ignored = []
    for name in sorted(given):
        if name in known or is_address_option(name):
            continue
        if name.startswith(_KAFKA_PREFIX):
            ignored.append(name)
        elif name == "path":
            raise UnknownSetting("a topic has no path", hint='name it: .option("topic", "orders").save()')
        else:
            everything = (*OPTIONS, *ADDRESS_OPTIONS)
            hint = did_you_mean(name, everything, otherwise=f"the options are {', '.join(everything)}")
            raise UnknownSetting(f"the sink has no option {name!r}", hint=hint)
    return tuple(ignored)


def _get(given: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except (ConfigError, InvalidTopicName) as error:
        raise InvalidSetting(f"option {name}: {error.message}", hint=error.hint) from error


def _topic(text: str) -> str:
    return check_topic_name(text)


def _codec(text: str) -> Codec:
    codec = _CODECS.get("none" if text.lower() == "uncompressed" else text.lower())
    if codec is None:
        hint = did_you_mean(text, _CODECS, otherwise=f"the codecs are {', '.join(_CODECS)}")
        raise InvalidSetting(f"there is no codec {text[:80]!r}", hint=hint)
    return codec


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidSetting(f"{text[:80]!r} is neither true nor false")
    return text.lower() == "true"


def _number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise InvalidSetting(f"{text[:80]!r} is not a whole number from 0 on")
    return int(text)


def _app_id(text: str) -> str:
    if not 0 < len(text.encode()) <= MAX_NAME_BYTES:
        raise InvalidSetting(f"an application's id has 1 to {MAX_NAME_BYTES} bytes")
    return text


def _size(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size_bytes = parse_size(text)
        if not lowest <= size_bytes <= highest:
            raise InvalidSetting(f"{size_bytes} bytes are not between {lowest} and {highest}")
        return size_bytes

    return parse


def _timeout(text: str) -> int:
    timeout_ms = parse_duration(text)
    if not 1_000 <= timeout_ms <= 86_400_000:
        raise InvalidSetting(f"{text[:80]!r} is not between 1s and 24h")
    return timeout_ms


def check_schema(fields: Sequence[tuple[str, str]], *, topic: str | None) -> dict[str, int]:
    """The position of each of our columns. ``fields`` are names and Spark's short type names. Raises InvalidSetting."""
    places: dict[str, int] = {}
    for place, (name, kind) in enumerate(fields):
        lower = name.lower()
        if lower in _LEFT_OUT:
            continue
        if lower not in _COLUMN_TYPES:
            hint = did_you_mean(
                name, _COLUMN_TYPES, otherwise=f"select only {', '.join(_COLUMN_TYPES)}; put the rest into value"
            )
            raise InvalidSetting(f"a topic has no column {name!r}", hint=hint)
        if lower in places:
            raise InvalidSetting(f"column {name!r} is there twice")
        if kind not in _COLUMN_TYPES[lower] and kind != "void":
            wanted = " or ".join(_COLUMN_TYPES[lower])
            raise InvalidSetting(f"column {name!r} is {kind}, not {wanted}", hint=f'cast it: col("{name}").cast(…)')
        places[lower] = place
    if "value" not in places:
        raise InvalidSetting("there is no column 'value'", hint="make one, such as to_json(struct(*)) AS value")
    if topic is None and "topic" not in places:
        raise InvalidSetting(
            "no topic is named", hint='write .option("topic", "orders"), or give each row a column topic'
        )
    if topic is not None:
        places.pop("topic", None)  # the option wins, as in Spark's Kafka sink
    return places
