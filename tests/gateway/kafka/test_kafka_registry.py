"""What is advertised is what Kafka 4.2 speaks and the table can read: no handler claims more, none is forgotten."""

from __future__ import annotations

import inspect

from streamhouse.gateway.kafka.api import apis
from streamhouse.gateway.kafka.handlers import register_all
from streamhouse.gateway.kafka.wire.table import message_spec

PROMISED = {
    *(0, 1, 2, 21, 23),
    *(18, 3, 60, 75, 35, 61),
    *(19, 20, 37, 32, 33, 44),
    *(10, 11, 14, 12, 13, 8, 9, 47, 15, 16, 42, 69, 68),
    *(22,),
    *(46, 45, 43, 48, 50, 74, 55, 66, 34),
    *(17, 36, 29, 30, 31),
}
"""Data, cluster, topics, groups, producers, what Kafka's tools ask for, and access, which is refused."""


def test_every_promised_api_is_served() -> None:
    register_all()
    assert set(apis()) == PROMISED


def test_versions_are_those_of_kafka_4_2() -> None:
    register_all()
    for api in apis().values():
        versions = message_spec(f"{api.key}.request").versions
        assert (api.min_version, api.max_version) == (versions[0], versions[-1]), api.key


def test_a_hot_handler_reads_its_frame_before_it_returns() -> None:
    register_all()
    for api in apis().values():
        assert (api.hot is None) != (api.cold is None)
        assert not inspect.iscoroutinefunction(api.hot), api.key
