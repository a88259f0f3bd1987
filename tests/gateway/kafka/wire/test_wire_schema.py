"""Messages read and written by the table: what is refused, what is left out, and which bounds hold."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from kio_oracle import kio_bytes, kio_type, random_pair

from streamhouse.core.errors import LimitExceeded, MalformedRequest
from streamhouse.core.limits import MAX_ANSWER_BYTES, MAX_REQUEST_ITEMS
from streamhouse.gateway.kafka.wire import schema
from streamhouse.gateway.kafka.wire.primitives import put_uvarint
from streamhouse.gateway.kafka.wire.table import message_names, message_spec

REQUESTS = [name for name in message_names() if name.endswith(".request")]


def test_unknown_tags_are_stepped_over() -> None:
    body = schema.write_request(3, 12, {"topics": [{"name": "t"}]})
    assert body.endswith(b"\x00")
    with_tags = body[:-1] + b"\x02\x63\x03abc\x64\x00"
    assert schema.read_request(3, 12, memoryview(with_tags)).topics[0].name == "t"


def test_a_known_tag_must_fill_its_size() -> None:
    body = schema.write_request(1, 15, {"cluster_id": "abc"})
    at = body.index(b"\x00\x04\x04abc")
    lying = body[: at + 1] + b"\x05\x04abc\x00" + body[at + 6 :]
    with pytest.raises(MalformedRequest, match="1 bytes are left over"):
        schema.read_request(1, 15, memoryview(lying))


def test_bytes_after_the_last_field_are_left_alone_as_kafka_does() -> None:
    body = schema.write_request(12, 4, {"group_id": "g"})
    assert schema.read_request(12, 4, memoryview(body + b"\0")).group_id == "g"


def test_many_small_items_are_refused_before_they_take_memory() -> None:
    count = MAX_REQUEST_ITEMS + 1
    body = bytearray()
    put_uvarint(body, count + 1)
    body += b"\x01" * count + b"\0\0"
    tracemalloc.start()
    with pytest.raises(MalformedRequest, match="too many items"):
        schema.read_request(42, 2, memoryview(body))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_an_answer_ends_before_it_fills_the_memory() -> None:
    fat = {"group_id": "g", "members": [{"member_id": "m", "member_metadata": bytes(MAX_ANSWER_BYTES // 10)}]}
    assert len(schema.write_response(15, 5, {"groups": [fat] * 9})) < MAX_ANSWER_BYTES
    with pytest.raises(LimitExceeded, match="more than 100000000 bytes"):
        schema.write_response(15, 5, {"groups": [fat] * 1000})


@pytest.mark.parametrize("message", REQUESTS)
def test_a_request_cut_anywhere_is_refused(message: str) -> None:
    spec = message_spec(message)
    key = int(message.partition(".")[0])
    for version in spec.versions:
        theirs, _ = random_pair(kio_type(message, spec.name, version), Random(version))
        body = kio_bytes(theirs)
        for end in range(len(body)):
            with pytest.raises(MalformedRequest):
                schema.read_request(key, version, memoryview(body)[:end])


@pytest.mark.parametrize("message", REQUESTS)
def test_a_damaged_request_is_read_or_refused_and_nothing_else(message: str) -> None:
    spec = message_spec(message)
    key = int(message.partition(".")[0])
    rng = Random(key)
    for version in spec.versions:
        theirs, _ = random_pair(kio_type(message, spec.name, version), rng)
        good = kio_bytes(theirs)
        for _ in range(50):
            body = bytearray(good)
            for _ in range(min(len(body), rng.randint(1, 4))):
                body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            try:
                schema.read_request(key, version, memoryview(body))
            except MalformedRequest:
                continue


def test_an_unknown_field_name_is_a_bug() -> None:
    with pytest.raises(ValueError, match="unknown fields"):
        schema.write_response(12, 4, {"errorcode": 3})


def test_a_value_that_does_not_fit_names_its_field() -> None:
    with pytest.raises(ValueError, match="error_code"):
        schema.write_response(12, 4, {"error_code": "three"})
    with pytest.raises(ValueError, match="members"):
        schema.write_response(13, 5, {"members": None})


def test_fields_a_version_lacks_are_left_out_and_read_as_their_default() -> None:
    assert schema.write_response(12, 0, {"error_code": 3, "throttle_time": 7}) == b"\0\3"
    commit = schema.read_request(8, 2, memoryview(schema.write_request(8, 2, {"group_id": "g"})))
    assert commit.group_instance_id is None
    assert commit.retention_time == -1
    with pytest.raises(AttributeError, match="no field 'nonsense'"):
        _ = commit.nonsense
