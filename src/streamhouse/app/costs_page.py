"""What a process says of its requests to the object store at ``/costs``, and how another process reads it. Pure.

    {"up_s": 86400.0, "requests": {"put": 3, …}, "millionths_by_topic": {"orders": {"put": 1200000, …}, "(shared)": …}}

Both are of one moment, so the millionths of all topics are together the requests, exactly. Prices are not in it: who
reads it has them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamhouse.objectstore.metering import Meter
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.topic_requests import PARTS_PER_REQUEST

assert PARTS_PER_REQUEST == 1_000_000, "the page calls them millionths"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsPage:
    up_s: float
    requests: Mapping[Operation, int]
    parts_by_topic: Mapping[str, Mapping[Operation, int]]


def costs_page(meter: Meter, *, up_s: float) -> dict[str, object]:
    totals = meter.read().totals
    return {
        "up_s": up_s,
        "requests": {operation: each.requests for operation, each in totals.items()},
        "millionths_by_topic": meter.topics.read(),
    }


def parse_costs_page(body: bytes) -> CostsPage:
    """Kinds of request that this version does not know are left out. Raises ValueError for what is no such page."""
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("it answers, and not as StreamHouse does")
    up_s, by_topic = found.get("up_s"), found.get("millionths_by_topic")
    if not isinstance(up_s, int | float) or not 0 <= up_s < math.inf or not isinstance(by_topic, dict):
        raise ValueError("it answers, and not as StreamHouse does")
    return CostsPage(
        up_s=up_s,
        requests=_counts(found.get("requests")),
        parts_by_topic={topic: _counts(counts) for topic, counts in by_topic.items()},
    )


def _counts(found: Any) -> dict[Operation, int]:
    if not isinstance(found, dict) or not all(isinstance(count, int) for count in found.values()):
        raise ValueError("it answers, and its counts of requests are none")
    return {operation: found[operation] for operation in Operation if operation in found}
