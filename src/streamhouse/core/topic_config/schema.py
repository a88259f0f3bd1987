"""What a topic config is: a Kafka type, bounds, and one canonical spelling.

Values are text on the wire and in the metadata store. ``parse`` accepts what Kafka's own parser accepts (spaces around,
``TRUE``, ``+5``, ``007``); ``spell`` writes the one form that is stored, compared and described back. Two spellings
that only Java knows are refused: ``0.5f`` and ``NaN`` as a ratio.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from streamhouse.core.errors import InvalidTopicConfig
from streamhouse.core.limits import MAX_TOPIC_CONFIG_CHARS

Value = bool | int | float | str | tuple[str, ...]

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)

LONG_MAX: Final = 2**63 - 1


class ConfigType(IntEnum):
    """The type codes of Kafka's DescribeConfigs response."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_WHOLE_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigKey:
    """One topic config. ``inert`` says why it has no effect here; empty means that it has one."""

    name: str
    type: ConfigType
    default: str
    doc: str
    synonyms: tuple[str, ...] = ()  # the broker-wide names Kafka gives the same thing, first one reported
    at_least: float | None = None
    at_most: float | None = None
    also: tuple[int, ...] = ()  # values outside the range that have a meaning of their own
    choices: tuple[str, ...] = ()
    pattern: str = ""  # every item of a list, or the whole of a word
    pattern_allows: str = ""  # … in words
    inert: str = ""
    immutable: bool = False

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def allowed(self) -> str:
        """The valid values in words, for errors and the reference."""
        if self.choices:
            joined = ", ".join(self.choices)
            return f"any of {joined}" if self.type is ConfigType.LIST else f"one of {joined}"
        if self.pattern:
            return self.pattern_allows
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        low, high = (f"{bound:g}" if isinstance(bound, float) else bound for bound in (self.at_least, self.at_most))
        words = {
            (False, False): "any number",
            (True, False): f"at least {low}",
            (False, True): f"at most {high}",
            (True, True): f"{low} to {high}",
        }[low is not None, high is not None]
        return " or ".join([words, *(str(value) for value in self.also)])

    def parse(self, text: str) -> Value:
        if not isinstance(text, str):
            raise InvalidTopicConfig(f"{self.name} needs a text value", hint=self.allowed)
        if len(text) > MAX_TOPIC_CONFIG_CHARS:
            raise InvalidTopicConfig(f"the value of {self.name} is longer than {MAX_TOPIC_CONFIG_CHARS} characters")
        stripped = text.strip()
        match self.type:
            case ConfigType.BOOLEAN:
                return self._parse_boolean(stripped)
            case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
                return self._parse_whole(stripped)
            case ConfigType.DOUBLE:
                return self._parse_decimal(stripped)
            case ConfigType.LIST:
                return self._parse_list(stripped)
            case _:
                return self._parse_word(stripped)

    def spell(self, value: Value) -> str:
        """The canonical text of a parsed value."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    def _misfit(self, text: str, why: str = "") -> InvalidTopicConfig:
        short = text if len(text) <= 80 else f"{text[:79]}…"
        reason = f": {why}" if why else ""
        return InvalidTopicConfig(f"{self.name}={short!r} does not fit{reason}", hint=f"expected {self.allowed}")

    def _parse_boolean(self, text: str) -> bool:
        word = text.lower()
        if word not in ("true", "false"):
            raise self._misfit(text)
        return word == "true"

    def _parse_whole(self, text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise self._misfit(text, "it is not a whole number")
        value, bits = int(text), _WHOLE_BITS[self.type]
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise self._misfit(text, f"it does not fit {bits} bits")
        if value not in self.also:
            self._check_range(text, value)
        return value

    def _parse_decimal(self, text: str) -> float:
        if not _DECIMAL.fullmatch(text):
            raise self._misfit(text, "it is not a number")
        value = float(text)
        self._check_range(text, value)
        return value

    def _check_range(self, text: str, value: float) -> None:
        too_low = self.at_least is not None and value < self.at_least
        too_high = self.at_most is not None and value > self.at_most
        if too_low or too_high:
            raise self._misfit(text)

    def _parse_list(self, text: str) -> tuple[str, ...]:
        items = [item.strip() for item in text.split(",")] if text else []
        for item in items:
            if not item:
                raise self._misfit(text, "an item of the list is empty")
            if self.choices and item not in self.choices:
                raise self._misfit(text, f"{item[:80]!r} is not known")
        if self.pattern and items != ["*"] and not all(re.fullmatch(self.pattern, item) for item in items):
            raise self._misfit(text)
        return tuple(dict.fromkeys(items))

    def _parse_word(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise self._misfit(text)
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise self._misfit(text)
        return text
