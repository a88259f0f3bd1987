"""Topic configs under Kafka's names: types, ranges, defaults, synonyms and validation of Apache Kafka 4.2.

schema.py    what a topic config is: its type, bounds, spelling
keys.py      every topic config, one entry each
validate.py  what may be stored, and what may be changed later
view.py      the typed view the broker works with, and the description a client asks for
"""

from streamhouse.core.topic_config.keys import TOPIC_CONFIGS
from streamhouse.core.topic_config.schema import ConfigType, TopicConfigKey, Value
from streamhouse.core.topic_config.validate import validate, validate_change
from streamhouse.core.topic_config.view import (
    ConfigSource,
    Description,
    Synonym,
    TopicConfig,
    describe,
    effective,
)

__all__ = [
    "TOPIC_CONFIGS",
    "ConfigSource",
    "ConfigType",
    "Description",
    "Synonym",
    "TopicConfig",
    "TopicConfigKey",
    "Value",
    "describe",
    "effective",
    "validate",
    "validate_change",
]
