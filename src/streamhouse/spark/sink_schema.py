"""Which columns a DataFrame may bring to the sink, and of which types. Pure, and without pyspark: types are texts.

    value       binary or string; the only one that must be there
    key         binary or string; decides the partition, as every Kafka client computes it
    headers     array<struct<key:string,value:binary>>
    partition   int; null leaves it to the key
    timestamp   timestamp; null is the time of writing
    topic       string; needed unless the option ``topic`` names one for all rows

``offset`` and ``timestampType`` of the source are left out, so that what was read can be written as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.suggest import did_you_mean

_BYTES: Final = ("binary", "string")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "topic": ("string",),
}
_LEFT_OUT: Final = frozenset({"offset", "timestamptype"})


def check_schema(fields: Sequence[tuple[str, str]], *, topic: str | None) -> dict[str, int]:
    """Where each of our columns stands. ``fields`` are names and Spark's short type names. Raises InvalidSetting."""
    places: dict[str, int] = {}
    for place, (name, kind) in enumerate(fields):
        lower = name.lower()
        if lower in _LEFT_OUT:
            continue
        if lower not in _TYPES:
            hint = did_you_mean(name, _TYPES, otherwise=f"select only {', '.join(_TYPES)}; put the rest into value")
            raise InvalidSetting(f"a topic has no column {name!r}", hint=hint)
        if lower in places:
            raise InvalidSetting(f"column {name!r} is there twice")
        if kind not in _TYPES[lower] and kind != "void":
            wanted = " or ".join(_TYPES[lower])
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
