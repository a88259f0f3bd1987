"""What the admin port takes for a request, and how it answers."""

from __future__ import annotations

import json
from http import HTTPStatus

import pytest

from streamhouse.gateway.admin.http import BadRequest, Request, as_json, encode, parse_head, refusal


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("GET /readyz HTTP/1.1", Request(method="GET", path="/readyz")),
        ("GET /metrics?name=x HTTP/1.1", Request(method="GET", path="/metrics")),
        ("HEAD / HTTP/1.0", Request(method="HEAD", path="/")),
    ],
)
def test_a_request_is_its_method_and_its_path(line: str, request_: Request) -> None:
    assert parse_head(f"{line}\r\nHost: a\r\nContent-Length: 0\r\n\r\n".encode()) == request_


def test_http_1_0_needs_no_host() -> None:
    assert parse_head(b"GET /livez HTTP/1.0\r\n\r\n").path == "/livez"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"G\tT / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n: no name\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
    ],
)
def test_anything_else_is_refused_with_a_status_and_a_reason(head: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_head(head)
    assert refused.value.status == status
    assert json.loads(refusal(refused.value).body) == {"error": refused.value.message}


def test_an_answer_has_its_length_and_closes_the_connection() -> None:
    head, _, body = encode(as_json(HTTPStatus.OK, {"ü": 1})).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 200 OK"
    assert f"Content-Length: {len(body)}" in lines
    assert "Connection: close" in lines
    assert json.loads(body) == {"ü": 1}
    assert encode(as_json(HTTPStatus.OK, {"ü": 1}), head_only=True) == head + b"\r\n\r\n"
    not_allowed = encode(refusal(BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "no")))
    assert b"\r\nAllow: GET, HEAD\r\n" in not_allowed
