"""What the tests of the hot codecs share: parts of kio's responses, and the checks that hold for every codec."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from kio_oracle import kio_bytes, kio_type, random_pair

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader, NodeEndpoint

SEEDS = st.integers(0, 2**32)
NO_TIME = timedelta(0)
LEADERS = [
    CurrentLeader(leader_epoch=7, endpoint=NodeEndpoint(node_id=3, host="broker-3", port=9092, rack="zone-a")),
    CurrentLeader(leader_epoch=2**31 - 1, endpoint=NodeEndpoint(node_id=2**31 - 1, host="ü" * 200, port=1, rack=None)),
]


def part_of(response: Any, *names: str) -> list[Any]:
    """The dataclasses that a version's response is made of; None for those it lacks."""
    home = __import__(response.__module__, fromlist=["*"])
    return [getattr(home, name, None) for name in names]


def fields_of(entity: Any) -> set[str]:
    return set(entity.__dataclass_fields__)


def some(entity: Any, **fields: Any) -> Any:
    """An instance with those of ``fields`` that its version has."""
    return entity(**{name: value for name, value in fields.items() if name in fields_of(entity)})


def topic_name(entity: Any, topic: str | UUID) -> dict[str, Any]:
    return {next(iter(fields_of(entity) & {"name", "topic", "topic_id"})): topic}


def endpoints(entity: Any, leaders: list[CurrentLeader]) -> tuple[Any, ...]:
    nodes = {leader.endpoint.node_id: leader.endpoint for leader in leaders}
    return tuple(
        entity(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack) for node in nodes.values()
    )


def check_damage(read: Any, api: str, version: int, seed: int) -> None:
    """A request that is cut is refused; one with changed bytes is refused or read; nothing else happens."""
    rng = Random(seed)
    theirs, _ = random_pair(kio_type(f"{api}.request", api, version), rng)
    body = bytearray(kio_bytes(theirs))
    for cut in {0, len(body) - 1, rng.randrange(len(body))}:
        with pytest.raises(MalformedRequest):
            read(version, memoryview(bytes(body[:cut])))
    assert read(version, memoryview(bytes(body) + b"\0")) == read(version, memoryview(bytes(body)))
    for _ in range(10):
        body[rng.randrange(len(body))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        with suppress(MalformedRequest):
            read(version, memoryview(bytes(body)))


def check_short_way(codec: Any, version: int, body: bytearray, rng: Random) -> None:
    """The reader for the usual request reads ``body``, and never differs from the reader for any request."""
    assert codec._read_usual(version, memoryview(body)) == codec._read_any(version, memoryview(body))
    for _ in range(20):
        damaged = bytearray(body)
        place = rng.choice(
            (rng.randrange(len(body)), rng.randrange(min(len(body), 60)), len(body) - rng.randrange(1, 9))
        )
        damaged[place] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        del damaged[rng.choice((len(damaged), len(damaged), rng.randrange(len(damaged)))) :]
        short = codec._read_usual(version, memoryview(damaged))
        if short is not None:
            assert short == codec._read_any(version, memoryview(damaged))
