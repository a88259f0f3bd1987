"""HTTP/1.1 as far as the admin port needs it: one GET without a body, one answer, then the connection closes. Pure.

    GET /readyz HTTP/1.1\\r\\n        parse_head   ──► Request, or BadRequest with the status to answer
    Host: …\\r\\n
    \\r\\n

Every answer says ``Connection: close``. A scraper comes every few seconds, so a new connection costs nothing, and there
is no state between requests that could go wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

HEAD_END: Final = b"\r\n\r\n"
_METHODS: Final = frozenset({"GET", "HEAD"})
_TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    method: str
    path: str
    """The path, without the query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"
    allow: str = ""
    """The methods that a path takes, with status 405."""


class BadRequest(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def parse_head(head: bytes) -> Request:
    """Parse a request. ``head`` holds its bytes up to the empty line. Raises BadRequest."""
    try:
        lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    except UnicodeDecodeError:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the request has bytes that are not ASCII") from None
    words = lines[0].split(" ")
    if len(words) != 3 or not words[0] or not set(words[0]) <= _TOKEN:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the first line is not METHOD PATH HTTP/1.1")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this port speaks HTTP/1.1")
    headers = _headers(lines[1:])
    if version == "HTTP/1.1" and "host" not in headers:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the header Host is missing")
    if method not in _METHODS:
        raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "this port takes GET and HEAD")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "this port takes no request bodies")
    if not target.startswith("/"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the path does not begin with /")
    return Request(method=method, path=target.partition("?")[0])


def _headers(lines: list[str]) -> dict[str, str]:
    """Return the headers by their names in lower case."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or not set(name) <= _TOKEN:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header is not NAME: VALUE")
        if name.lower() in found and name.lower() in ("host", "content-length"):
            raise BadRequest(HTTPStatus.BAD_REQUEST, f"the header {name} comes twice")
        found[name.lower()] = value.strip()
    return found


def as_json(status: HTTPStatus, document: object) -> Response:
    return Response(status=status, body=(json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


def refusal(error: BadRequest) -> Response:
    response = as_json(error.status, {"error": error.message})
    if error.status is HTTPStatus.METHOD_NOT_ALLOWED:
        return Response(status=error.status, body=response.body, allow="GET, HEAD")
    return response


def encode(response: Response, *, head_only: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if response.allow:
        lines.append(f"Allow: {response.allow}")
    head = "\r\n".join(lines).encode("ascii") + HEAD_END
    return head if head_only else head + response.body
