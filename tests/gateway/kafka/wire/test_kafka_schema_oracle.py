"""Every message of the table in every version, against kio: the same bytes, and the same fields back."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio_oracle import kio_bytes, kio_type, random_pair

from streamhouse.gateway.kafka.wire import schema
from streamhouse.gateway.kafka.wire.headers import FIRST_FLEXIBLE
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.table import message_names, message_spec

REPOSITORY = Path(__file__).resolve().parents[4]


def plain(value: Any, like: Any) -> Any:
    """A message as nested dicts, of the fields that ``like`` has."""
    if isinstance(value, Message):
        return {name: plain(getattr(value, name), inner) for name, inner in like.items()}
    if isinstance(value, list) and like and isinstance(like[0], dict):
        return [plain(one, inner) for one, inner in zip(value, like, strict=True)]
    return value


def read(message: str, version: int, data: bytes) -> Message:
    key, _, kind = message.partition(".")
    match kind:
        case "request":
            return schema.read_request(int(key), version, memoryview(data))
        case "response":
            return schema.read_response(int(key), version, memoryview(data))
    return schema.read_data(message, version, memoryview(data))


def write(message: str, version: int, fields: Any) -> bytes:
    key, _, kind = message.partition(".")
    match kind:
        case "request":
            return schema.write_request(int(key), version, fields)
        case "response":
            return schema.write_response(int(key), version, fields)
    return schema.write_data(message, version, fields)


@pytest.mark.parametrize("message", message_names())
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_our_bytes_are_kios_and_read_back_equal(message: str, seed: int) -> None:
    spec = message_spec(message)
    for version in spec.versions:
        theirs, ours = random_pair(kio_type(message, spec.name, version), Random(seed))
        expected = kio_bytes(theirs)
        assert write(message, version, ours) == expected, (version, ours)
        back = read(message, version, expected)
        assert plain(back, ours) == ours, version
        assert write(message, version, back) == expected, "a message that was read can be written as it is"


@pytest.mark.parametrize("message", message_names())
def test_what_is_not_given_is_written_as_kio_would(message: str) -> None:
    spec = message_spec(message)
    for version in spec.versions:
        entity = kio_type(message, spec.name, version)
        made, ours = random_pair(entity, Random(version))
        required = {field.name for field in fields(entity) if field.default is MISSING}
        expected = kio_bytes(entity(**{name: getattr(made, name) for name in required}))
        assert write(message, version, {name: ours[name] for name in required}) == expected, version


def test_headers_know_what_the_table_knows() -> None:
    from_table = {
        int(name.partition(".")[0]): message_spec(name).flexible_from
        for name in message_names()
        if name.endswith(".request")
    }
    assert {key: first for key, first in from_table.items() if first is not None} == FIRST_FLEXIBLE


def test_a_request_and_its_response_have_the_same_versions() -> None:
    for name in message_names():
        if name.endswith(".request"):
            request, response = message_spec(name), message_spec(name.replace("request", "response"))
            assert (request.versions, request.flexible_from) == (response.versions, response.flexible_from), name


def test_the_table_is_what_the_generator_writes() -> None:
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "gen_kafka_schemas.py", "--check"], check=True)
