"""What stands before every body: which client asks for what, and which request an answer belongs to.

    request    int32 size · int16 key · int16 version · int32 correlation id · string client id · [tagged fields]
    response   int32 size · int32 correlation id · [tagged fields]

The tagged fields exist in flexible versions; the client id keeps the old encoding in all. An ApiVersions response never
has them, because a client asks for it before it knows what the server speaks.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.wire.primitives import Reader

API_VERSIONS_KEY: Final = 18

NEVER: Final = 1 << 15
"""A number above every version of an API."""

# By API key; the same as in the table, where a test compares. Here, so that the first bytes need no table.
FIRST_FLEXIBLE: Final = {
    0: 9,
    1: 12,
    2: 6,
    3: 9,
    8: 8,
    9: 6,
    10: 3,
    11: 6,
    12: 4,
    13: 4,
    14: 4,
    15: 5,
    16: 3,
    18: 3,
    19: 5,
    20: 4,
    21: 2,
    22: 2,
    23: 4,
    24: 3,
    25: 3,
    26: 3,
    27: 1,
    28: 3,
    29: 2,
    30: 2,
    31: 2,
    32: 4,
    33: 2,
    34: 2,
    35: 2,
    36: 2,
    37: 2,
    38: 2,
    39: 2,
    40: 2,
    41: 2,
    42: 2,
    43: 2,
    44: 1,
    45: 0,
    46: 0,
    48: 1,
    49: 1,
    50: 0,
    51: 0,
    55: 0,
    57: 0,
    60: 0,
    61: 0,
    65: 0,
    66: 0,
    68: 0,
    69: 0,
    74: 0,
    75: 0,
}

_PEEK: Final = Struct(">hhi")
_FIXED: Final = Struct(">hhih")
_ANSWER: Final = Struct(">ii")
_ANSWER_FLEXIBLE: Final = Struct(">iiB")


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def is_flexible(api_key: int, version: int) -> bool:
    return version >= FIRST_FLEXIBLE.get(api_key, NEVER)


def peek_header(frame: memoryview) -> tuple[int, int, int]:
    """Key, version and correlation id, which every request has in one place, whatever its version."""
    if len(frame) < 8:
        raise MalformedRequest(f"a request of {len(frame)} bytes has no header")
    api_key, version, correlation_id = _PEEK.unpack_from(frame)
    return api_key, version, correlation_id


def read_header(frame: memoryview) -> RequestHeader:
    """The header of a frame without its size."""
    if len(frame) < _FIXED.size:
        raise MalformedRequest(f"a request of {len(frame)} bytes has no header")
    api_key, version, correlation_id, length = _FIXED.unpack_from(frame)
    end = _FIXED.size
    client_id: str | None = None
    if length >= 0:
        end += length
        if end > len(frame):
            raise MalformedRequest(f"a client id of {length} bytes is announced, {len(frame) - _FIXED.size} are left")
        try:
            client_id = str(frame[_FIXED.size : end], "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("the client id is not UTF-8") from None
    elif length != -1:
        raise MalformedRequest(f"a client id of {length} bytes is announced")
    if version >= FIRST_FLEXIBLE.get(api_key, NEVER):
        if end < len(frame) and not frame[end]:
            end += 1
        else:
            reader = Reader(frame, end)
            reader.skip_tags()
            end = reader.pos
    return RequestHeader(api_key, version, correlation_id, client_id, end)


def request_frame(api_key: int, version: int, correlation_id: int, client_id: str | None, body: bytes) -> bytes:
    """Encode a request as a client sends it, for tests and tools."""
    name = None if client_id is None else client_id.encode()
    head = _FIXED.pack(api_key, version, correlation_id, -1 if name is None else len(name)) + (name or b"")
    if is_flexible(api_key, version):
        head += b"\0"
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def response_head(flexible: bool, correlation_id: int, body_bytes: int) -> bytes:
    """Encode the size and the header of a response. A ``flexible`` header has (empty) tagged fields."""
    if flexible:
        return _ANSWER_FLEXIBLE.pack(body_bytes + 5, correlation_id, 0)
    return _ANSWER.pack(body_bytes + 4, correlation_id)


def has_flexible_response(api_key: int, version: int) -> bool:
    return api_key != API_VERSIONS_KEY and is_flexible(api_key, version)
