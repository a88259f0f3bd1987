"""The records that every client writes and every other reads: each kind of key, value and header there is."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from typing import Any, Final

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
STEP_MS: Final = 1000
_SMALL_RECORDS = 20


def noise(size: int, seed: str) -> bytes:
    """Bytes that no codec shortens, the same in every run."""
    blocks = (hashlib.sha256(f"{seed}/{number}".encode()).digest() for number in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def records_for(codec: str, cannot: Collection[str], base_ms: int) -> list[dict[str, Any]]:
    """What a client that cannot do some things writes with this codec, a second apart."""
    records = [
        _record("text", b"key", "välue".encode()),
        _record("bytes", b"\xff\xfe\x80", bytes(range(256))),
        _record("null-key", None, b"a value without a key"),
        _record("null-value", b"tombstone", None),
        _record("empty-value", b"empty value", b""),
        _record("empty-key", b"", b"empty key"),
        _record("headers", b"h", b"v", [("one", b"1"), ("twice", b"a"), ("twice", b"b"), ("empty", b"")]),
        _record("headers", b"h", b"v", [("bytes", b"\xff\x80"), ("ключ", "значение".encode())]),
        _record("null-header", b"h", b"v", [("null", None)]),
        _record("large", b"compressible", b"0123456789abcdef" * 12_800),
        _record("large", b"incompressible", noise(60_000, codec)),
    ]
    records += [_record("small", b"%d" % number, b"value %d" % number) for number in range(_SMALL_RECORDS)]
    chosen = [record for record in records if record.pop("kind") not in cannot]
    if "timestamp" not in cannot:
        for number, record in enumerate(chosen):
            record["timestamp"] = base_ms + number * STEP_MS
    return chosen


def _record(
    kind: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None = None
) -> dict[str, Any]:
    packed = [[name, _pack(content)] for name, content in headers or []]
    return {"kind": kind, "key": _pack(key), "value": _pack(value), "headers": packed}


def _pack(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def difference(wanted: list[dict[str, Any]], read: list[dict[str, Any]]) -> str | None:
    """What the first record that is not as written differs in; none when all are the same."""
    for number, record in enumerate(wanted):
        if number >= len(read):
            return f"{len(read)} of {len(wanted)} records read"
        for part in ("key", "value", "headers", "timestamp"):
            if part == "timestamp" and record.get("timestamp") is None:
                continue
            if record[part] != read[number][part]:
                return f"record {number}: {part} is {_short(read[number])} instead of {_short(record)}"
        if number != read[number]["offset"]:
            return f"record {number} is at offset {read[number]['offset']}"
    return f"{len(read)} records read, {len(wanted)} written" if len(read) > len(wanted) else None


def _short(record: Mapping[str, Any]) -> str:
    return str({part: str(record.get(part))[:40] for part in ("key", "value", "headers", "timestamp")})
