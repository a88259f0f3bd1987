"""What may be stored as a topic's configs, and what may be changed once the topic exists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from streamhouse.core.errors import InvalidTopicConfig
from streamhouse.core.suggest import did_you_mean
from streamhouse.core.topic_config.keys import TOPIC_CONFIGS
from streamhouse.core.topic_config.schema import TopicConfigKey, Value

_EVERYTHING: Final = "`streamhouse topic-configs` lists every topic config"


def find_key(name: str) -> TopicConfigKey:
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise InvalidTopicConfig(
            f"there is no topic config {str(name)[:100]!r}",
            hint=did_you_mean(str(name), TOPIC_CONFIGS, otherwise=_EVERYTHING),
        )
    return key


def parse_all(configs: Mapping[str, str]) -> dict[str, Value]:
    """The given configs, parsed one by one."""
    return {name: find_key(name).parse(text) for name, text in configs.items()}


def validate(configs: Mapping[str, str]) -> dict[str, str]:
    """The configs in canonical spelling, sorted by name; only those given. Raises InvalidTopicConfig."""
    parsed = parse_all(configs)
    _check_together(parsed)
    return {name: TOPIC_CONFIGS[name].spell(parsed[name]) for name in sorted(parsed)}


def validate_change(current: Mapping[str, str], set: Mapping[str, str], delete: Iterable[str] = ()) -> dict[str, str]:
    """All configs of the topic after the change. Deleting one that is not set is no error, as in Kafka."""
    gone = {find_key(name).name for name in delete}
    both = sorted(gone & set.keys())
    if both:
        raise InvalidTopicConfig(f"{both[0]} is to be set and deleted in the same change", hint="send one of the two")
    kept = {name: text for name, text in current.items() if name not in gone}
    changed = validate({**kept, **set})
    for key in TOPIC_CONFIGS.values():
        if key.immutable and _value(current, key) != _value(changed, key):
            raise InvalidTopicConfig(
                f"{key.name} is fixed when the topic is created; it is {key.spell(_value(current, key))} here",
                hint="create another topic and copy the records",
            )
    return changed


def _value(configs: Mapping[str, str], key: TopicConfigKey) -> Value:
    return key.parse(configs.get(key.name, key.default))


def _check_together(parsed: Mapping[str, Value]) -> None:
    low, high = (
        parsed.get(name, TOPIC_CONFIGS[name].parse(TOPIC_CONFIGS[name].default))
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise InvalidTopicConfig(
            f"min.compaction.lag.ms ({low}) is larger than max.compaction.lag.ms ({high})",
            hint="a record would have to be compacted before it may be",
        )
