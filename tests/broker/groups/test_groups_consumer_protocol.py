"""The bytes of the protocol type "consumer", compared with another implementation of Kafka's schemas (kio)."""

from __future__ import annotations

import importlib
import io
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from streamhouse.broker.groups.consumer_protocol import (
    Assignment,
    MalformedMetadata,
    read_assignment,
    read_subscription,
    write_assignment,
)

names = st.text(st.characters(min_codepoint=45, max_codepoint=122), min_size=1, max_size=8)
by_topic = st.dictionaries(names, st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=3), max_size=3)


def kio_module(what: str, version: int) -> Any:
    return importlib.import_module(f"kio.schema.consumer_protocol_{what}.v{version}.data")


def kio_bytes(version: int, entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return struct.pack(">h", version) + out.getvalue()


def kio_partitions(module: Any, partitions: dict[str, set[int]]) -> tuple[Any, ...]:
    return tuple(
        module.TopicPartition(topic=topic, partitions=tuple(sorted(numbers))) for topic, numbers in partitions.items()
    )


def flat(partitions: dict[str, set[int]]) -> set[tuple[str, int]]:
    return {(topic, number) for topic, numbers in partitions.items() for number in numbers}


@given(
    st.integers(0, 3),
    st.lists(names, max_size=3).map(tuple),
    st.none() | st.binary(max_size=5),
    by_topic,
    st.none() | st.text(min_size=1, max_size=5),
)
def test_a_subscription_of_every_version_is_read(
    version: int, topics: tuple[str, ...], user_data: bytes | None, owned: dict[str, set[int]], rack: str | None
) -> None:
    module = kio_module("subscription", version)
    fields: dict[str, Any] = {"topics": topics, "user_data": user_data}
    if version >= 1:
        fields["owned_partitions"] = kio_partitions(module, owned)
    if version >= 2:
        fields["generation_id"] = 7
    if version >= 3:
        fields["rack_id"] = rack
    read = read_subscription(kio_bytes(version, module.ConsumerProtocolSubscription(**fields)))
    assert (read.version, read.topics) == (version, topics)
    assert set(read.owned) == (flat(owned) if version >= 1 else set())
    assert read.rack_id == (rack if version >= 3 else None)


@given(st.integers(0, 3), by_topic, st.none() | st.binary(max_size=5))
def test_an_assignment_is_read(version: int, partitions: dict[str, set[int]], user_data: bytes | None) -> None:
    module = kio_module("assignment", version)
    entity = module.ConsumerProtocolAssignment(
        assigned_partitions=kio_partitions(module, partitions), user_data=user_data
    )
    read = read_assignment(kio_bytes(version, entity))
    assert set(read.partitions) == flat(partitions)
    assert read.has_user_data == bool(user_data)


@given(st.integers(0, 3), by_topic)
def test_an_assignment_is_written_as_others_read_it(version: int, partitions: dict[str, set[int]]) -> None:
    data = write_assignment(version, flat(partitions))
    assert struct.unpack_from(">h", data) == (version,)
    entity, _ = entity_reader(kio_module("assignment", version).ConsumerProtocolAssignment)(memoryview(data), 2)
    assert {each.topic: set(each.partitions) for each in entity.assigned_partitions} == partitions


def test_a_newer_version_is_read_and_answered_as_version_3() -> None:
    newer = struct.pack(">hiiiih", 9, 0, 0, 0, 5, -1) + b"fields of version 9"
    assert read_subscription(newer).version == 9
    assert write_assignment(9, [])[:2] == b"\0\3"


def test_no_bytes_are_no_assignment() -> None:
    assert read_assignment(b"") == Assignment()


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_and_nothing_worse(data: bytes) -> None:
    for read in (read_subscription, read_assignment):
        with suppress(MalformedMetadata):
            read(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\xff\xff\xff\xff", b"\0\0\0\0\0\1\xff\xff", b"\0\0\0\0\0\1\0\1\xff"],
    ids=["empty", "half a version", "a huge array", "a negative array", "a null name", "not UTF-8"],
)
def test_malformed_bytes(data: bytes) -> None:
    with pytest.raises(MalformedMetadata):
        read_subscription(data)
