"""Request and response headers: where they end, which versions have tagged fields, and what is refused."""

from __future__ import annotations

import pytest

from streamhouse.core.errors import MalformedRequest
from streamhouse.core.limits import MAX_REQUEST_ITEMS
from streamhouse.gateway.kafka.wire import schema
from streamhouse.gateway.kafka.wire.headers import (
    API_VERSIONS_KEY,
    has_flexible_response,
    is_flexible,
    peek_header,
    read_header,
    request_frame,
    response_head,
)
from streamhouse.gateway.kafka.wire.primitives import put_uvarint


def test_many_small_tagged_fields_are_refused_before_they_take_time() -> None:
    count = MAX_REQUEST_ITEMS + 1
    tags = bytearray()
    put_uvarint(tags, count)
    tags += b"\x63\0" * count
    frame = memoryview(b"\0\x12\0\x03\0\0\0\x01\xff\xff" + tags)  # ApiVersions 3: its header may have them, too
    with pytest.raises(MalformedRequest, match="too many items"):
        read_header(frame)
    body = schema.write_request(18, 3, {"client_software_name": "a", "client_software_version": "1"})
    with pytest.raises(MalformedRequest, match="too many items"):
        schema.read_request(18, 3, memoryview(body[:-1] + tags))


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "größe"])
@pytest.mark.parametrize(("key", "version"), [(3, 8), (3, 9), (18, 3), (47, 0)])
def test_a_header_comes_back(client_id: str | None, key: int, version: int) -> None:
    frame = memoryview(request_frame(key, version, -5, client_id, b"body"))[4:]
    header = read_header(frame)
    assert header[:4] == (key, version, -5, client_id)
    assert bytes(frame[header.body_start :]) == b"body"


@pytest.mark.parametrize("frame", [b"", b"\0\3\0\0\0\0\0\1", b"\0\3\0\0\0\0\0\1\0\5abc", b"\0\3\0\x0c\0\0\0\1\xff\xff"])
def test_a_header_that_is_cut_off_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_header(memoryview(frame))


def test_a_client_id_that_is_no_text_or_has_a_length_that_cannot_be_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="not UTF-8"):
        read_header(memoryview(b"\0\3\0\0\0\0\0\1\0\2\xff\xfe"))
    with pytest.raises(MalformedRequest, match="client id of -2 bytes"):
        read_header(memoryview(b"\0\3\0\0\0\0\0\1\xff\xfe"))


def test_tagged_fields_of_a_header_are_stepped_over() -> None:
    frame = b"\0\3\0\x09\0\0\0\1\0\1c" + b"\x01\x63\x02xy" + b"body"
    assert frame[read_header(memoryview(frame)).body_start :] == b"body"


def test_key_version_and_correlation_id_are_read_whatever_follows_them() -> None:
    assert peek_header(memoryview(b"\x03\xe7\x7f\xff\xff\xff\xff\xff")) == (999, 32767, -1)
    with pytest.raises(MalformedRequest, match="7 bytes has no header"):
        peek_header(memoryview(bytes(7)))


def test_an_api_versions_answer_never_has_tagged_fields_in_its_header() -> None:
    assert is_flexible(API_VERSIONS_KEY, 3)
    assert not has_flexible_response(API_VERSIONS_KEY, 3)
    assert [has_flexible_response(3, version) for version in (8, 9)] == [False, True]
    assert not is_flexible(999, 32767), "an API that is not known has no flexible version"


def test_the_size_of_a_response_counts_its_header_and_its_body() -> None:
    assert response_head(False, 7, 10) == b"\0\0\0\x0e" + b"\0\0\0\x07"
    assert response_head(True, 7, 10) == b"\0\0\0\x0f" + b"\0\0\0\x07" + b"\0"
