"""ApiVersions (18), versions 0–4: what this server speaks, from the registry of handlers.

A client asks this before anything else, in the newest version it knows: one we do not know is answered in version 0
with error 35 and the ranges, so that it can ask again. From version 3 on the client says which software it is; names
that Kafka refuses are refused with 42. There are no features to finalize. Written by hand: the first connection after a
start then waits for nothing.
Deviation: with error 35 Kafka lists only its own range of ApiVersions, we list all; clients read the one they need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct
from typing import Final

from streamhouse.gateway.kafka.api import Api, Buffers, Call, apis, hot_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.primitives import Reader, uvarint_bytes

_FIRST_FLEXIBLE: Final = 3
_RANGE: Final = Struct(">hhh")
_RANGE_FLEXIBLE: Final = Struct(">hhhB")
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")

_bodies: dict[tuple[int, int], bytes] = {}


@hot_api(18, (0, 4))
def api_versions(call: Call, body: memoryview) -> Buffers:
    reader = Reader(body)
    if call.version < _FIRST_FLEXIBLE:
        return (_ranges(call.version),)
    name, version = reader.string(True), reader.string(True)
    reader.skip_tags()
    if _SOFTWARE.fullmatch(name) is None or _SOFTWARE.fullmatch(version) is None:
        return (encode(call.version, ErrorCode.INVALID_REQUEST, ()),)
    call.client.software_name, call.client.software_version = name, version
    return (_ranges(call.version),)


def unsupported_version() -> bytes:
    """The body for a client that asked in a version newer than ours."""
    return encode(0, ErrorCode.UNSUPPORTED_VERSION, apis().values())


def _ranges(version: int) -> bytes:
    known = (version, len(apis()))
    if known not in _bodies:
        _bodies[known] = encode(version, ErrorCode.NONE, apis().values())
    return _bodies[known]


def encode(version: int, error: ErrorCode, served: Iterable[Api]) -> bytes:
    rows = sorted((api.key, api.advertised_min_version, api.max_version) for api in served)
    code = int(error).to_bytes(2, "big", signed=True)
    if version >= _FIRST_FLEXIBLE:
        ranges = b"".join(_RANGE_FLEXIBLE.pack(*row, 0) for row in rows)
        return code + uvarint_bytes(len(rows) + 1) + ranges + bytes(4) + b"\0"
    ranges = b"".join(_RANGE.pack(*row) for row in rows)
    throttle_time = bytes(4) if version >= 1 else b""
    return code + len(rows).to_bytes(4, "big") + ranges + throttle_time
