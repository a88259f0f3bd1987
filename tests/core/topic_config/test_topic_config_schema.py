"""One topic config: what its text may be, in one canonical spelling, and what it says of its bounds."""

from __future__ import annotations

from typing import Any

import pytest

from streamhouse.core.errors import InvalidTopicConfig
from streamhouse.core.limits import MAX_BATCH_BYTES, MAX_TOPIC_CONFIG_CHARS
from streamhouse.core.topic_config import TOPIC_CONFIGS, ConfigType
from streamhouse.core.topic_config.schema import TopicConfigKey, Value


def key(kind: ConfigType, **more: Any) -> TopicConfigKey:
    return TopicConfigKey(name="some.key", type=kind, default="", doc="A key.", **more)


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("cleanup.policy", "compact", "compact"),
        ("cleanup.policy", "delete", "delete"),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "compact,compact", "compact"),
        ("cleanup.policy", "", ""),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", " 5 ", "5"),
        ("retention.ms", "+5", "5"),
        ("retention.ms", "007", "7"),
        ("retention.bytes", "-5", "-5"),
        ("preallocate", "TRUE", "true"),
        ("preallocate", " false ", "false"),
        ("min.cleanable.dirty.ratio", "1e-1", "0.1"),
        ("min.cleanable.dirty.ratio", ".5", "0.5"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1, 1:2", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "", ""),
        ("compression.gzip.level", "-1", "-1"),
        ("compression.gzip.level", "9", "9"),
        ("compression.type", " producer ", "producer"),
        ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ("max.message.bytes", "0", "0"),
        ("segment.bytes", "1048576", "1048576"),
        ("remote.storage.enable", "true", "true"),
        ("diskless.enable", "true", "true"),
    ],
)
def test_what_kafka_accepts_is_stored_in_one_spelling(name: str, text: str, stored: str) -> None:
    config = TOPIC_CONFIGS[name]
    assert config.spell(config.parse(text)) == stored
    assert config.spell(config.parse(stored)) == stored


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("cleanup.policy", "Delete", "'Delete' is not known"),
        ("cleanup.policy", "delete,", "an item of the list is empty"),
        ("cleanup.policy", "delete,keep", "'keep' is not known"),
        ("segment.bytes", "1048575", "expected at least 1048576"),
        ("retention.ms", "-2", "expected at least -1"),
        ("retention.ms", "5_0", "not a whole number"),
        ("retention.ms", "5s", "not a whole number"),
        ("retention.ms", "", "not a whole number"),
        ("retention.ms", "٣", "not a whole number"),
        ("retention.ms", "1" * 5000, "not a whole number"),
        ("retention.ms", "9223372036854775808", "does not fit 64 bits"),
        ("segment.bytes", "2147483648", "does not fit 32 bits"),
        ("max.message.bytes", str(MAX_BATCH_BYTES + 1), f"expected 0 to {MAX_BATCH_BYTES}"),
        ("preallocate", "yes", "expected true or false"),
        ("min.cleanable.dirty.ratio", "1.01", "expected 0 to 1"),
        ("min.cleanable.dirty.ratio", "NaN", "not a number"),
        ("min.cleanable.dirty.ratio", "0x1p-1", "not a number"),
        ("min.cleanable.dirty.ratio", "1e999", "expected 0 to 1"),
        ("leader.replication.throttled.replicas", "x", "partition:broker"),
        ("leader.replication.throttled.replicas", "*,0:1", "partition:broker"),
        ("compression.gzip.level", "0", "expected 1 to 9 or -1"),
        ("compression.type", "none", "expected one of uncompressed, zstd, lz4"),
        ("message.timestamp.type", "createtime", "expected one of CreateTime, LogAppendTime"),
        ("leader.replication.throttled.replicas", "0:1," * 10_000, f"longer than {MAX_TOPIC_CONFIG_CHARS}"),
        ("retention.ms", None, "needs a text value"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidTopicConfig) as caught:
        TOPIC_CONFIGS[name].parse(text)
    assert says in str(caught.value)
    assert name in caught.value.message
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({}, "any number"),
        ({"at_least": 1}, "at least 1"),
        ({"at_most": 9}, "at most 9"),
        ({"at_least": 1, "at_most": 9, "also": (-1,)}, "1 to 9 or -1"),
        ({"at_least": 0.0, "at_most": 0.5}, "0 to 0.5"),
    ],
)
def test_the_bounds_of_a_number_in_words(bounds: dict[str, Any], words: str) -> None:
    assert key(ConfigType.INT, **bounds).allowed == words


def test_what_is_allowed_of_other_types_in_words() -> None:
    assert key(ConfigType.BOOLEAN).allowed == "true or false"
    assert key(ConfigType.STRING, choices=("a", "b")).allowed == "one of a, b"
    assert key(ConfigType.LIST, choices=("a", "b")).allowed == "any of a, b"
    assert key(ConfigType.STRING, pattern="[a-z]+", pattern_allows="small letters").allowed == "small letters"


@pytest.mark.parametrize(
    ("kind", "smallest", "largest"),
    [
        (ConfigType.SHORT, -(2**15), 2**15 - 1),
        (ConfigType.INT, -(2**31), 2**31 - 1),
        (ConfigType.LONG, -(2**63), 2**63 - 1),
    ],
)
def test_a_whole_number_fits_the_type_that_clients_are_told(kind: ConfigType, smallest: int, largest: int) -> None:
    free = key(kind)
    assert (free.parse(str(smallest)), free.parse(str(largest))) == (smallest, largest)
    for beyond in (smallest - 1, largest + 1):
        with pytest.raises(InvalidTopicConfig, match="does not fit"):
            free.parse(str(beyond))


def test_a_value_outside_the_range_with_a_meaning_of_its_own_is_taken() -> None:
    level = key(ConfigType.INT, at_least=1, at_most=9, also=(-1,))
    assert [level.parse(text) for text in ("1", "9", "-1")] == [1, 9, -1]
    for text in ("0", "10", "-2"):
        with pytest.raises(InvalidTopicConfig, match=r"expected 1 to 9 or -1"):
            level.parse(text)


def test_the_pattern_of_a_word_is_for_the_whole_of_it() -> None:
    group = key(ConfigType.STRING, pattern="[a-z]{1,4}", pattern_allows="one to four small letters")
    assert group.parse(" abcd ") == "abcd"
    for text in ("abcde", "a b", "", "a\nb"):
        with pytest.raises(InvalidTopicConfig, match="one to four small letters"):
            group.parse(text)


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), (5, "5"), (0.5, "0.5"), (("a", "b"), "a,b"), ((), "")]
)
def test_the_one_spelling_that_is_stored(value: Value, text: str) -> None:
    assert key(ConfigType.STRING).spell(value) == text


def test_a_long_value_is_shortened_in_the_error() -> None:
    with pytest.raises(InvalidTopicConfig) as refused:
        key(ConfigType.BOOLEAN).parse("x" * MAX_TOPIC_CONFIG_CHARS)
    assert len(refused.value.message) < 150
