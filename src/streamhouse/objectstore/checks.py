"""What a key, a body and a range must look like before any store sees them. Pure.

A key is a path of non-empty segments over ``A-Z a-z 0-9 . _ = -``, no segment beginning with a dot: the same name on
every store, no escape from a directory, no character that S3, a file system or a URL would spell differently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.limits import (
    MAX_KEY_SEGMENT_BYTES,
    MAX_OBJECT_KEY_BYTES,
    MAX_RANGES_PER_READ,
    MAX_REQUEST_BODY_BYTES,
    READ_COALESCE_GAP_BYTES,
)
from streamhouse.wire.buffers import BytesLike, byte_view

PutData = BytesLike | Sequence[BytesLike]

_SEGMENT: Final = r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX: Final = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?")


def is_key(key: str) -> bool:
    return (
        len(key) <= MAX_OBJECT_KEY_BYTES
        and _KEY.fullmatch(key) is not None
        and max(map(len, key.split("/"))) <= MAX_KEY_SEGMENT_BYTES
    )


def check_key(key: str) -> str:
    if len(key) > MAX_OBJECT_KEY_BYTES:
        raise InvalidRequest(f"object key {key[:64]!r}… has {len(key)} characters, over {MAX_OBJECT_KEY_BYTES}")
    if not is_key(key):
        raise InvalidRequest(
            f"object key {key[:200]!r} is not allowed",
            hint="use segments of A-Z a-z 0-9 . _ = - that do not begin with a dot, with one / between them",
        )
    return key


def check_prefix(prefix: str) -> str:
    """A prefix is a string, as on S3: any beginning of a key, not only a directory."""
    if len(prefix) > MAX_OBJECT_KEY_BYTES or not _PREFIX.fullmatch(prefix):
        raise InvalidRequest(f"{prefix[:200]!r} is not the beginning of an object key")
    return prefix


def as_views(data: PutData) -> tuple[Sequence[memoryview], int]:
    """The buffers as octets, without a copy and without empty ones, and their size together."""
    buffers = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    views = [view for view in map(byte_view, buffers) if len(view)]
    return views, sum(map(len, views))


def check_body_size(what: str, size_bytes: int) -> None:
    if size_bytes > MAX_REQUEST_BODY_BYTES:
        raise LimitExceeded(
            f"{what} has {size_bytes} bytes, over the {MAX_REQUEST_BODY_BYTES} of one request",
            hint="write it with open_upload, read it by ranges, fewer at a time",
        )


def check_range(key: str, offset: int, length: int) -> None:
    if offset < 0 or length < 1:
        raise InvalidRequest(f"a range of {key} must begin at 0 or later and hold a byte or more: {offset}+{length}")
    check_body_size(f"the range {offset}+{length} of {key}", length)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRead:
    """One request, and for each range it serves: its place in the caller's list and its start inside the read."""

    offset: int
    length: int
    serves: tuple[tuple[int, int], ...]


def plan_reads(key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[PlannedRead]:
    """Ranges that overlap, or lie closer than a request is worth, become one read."""
    if len(ranges) > MAX_RANGES_PER_READ:
        raise LimitExceeded(f"{len(ranges)} ranges of {key} in one call, over {MAX_RANGES_PER_READ}")
    for offset, length in ranges:
        check_range(key, offset, length)
    reads: list[PlannedRead] = []
    start, end, serves = 0, 0, list[tuple[int, int]]()
    for place in sorted(range(len(ranges)), key=ranges.__getitem__):
        offset, length = ranges[place]
        joined = max(end, offset + length)
        if serves and (offset > end + READ_COALESCE_GAP_BYTES or joined - start > MAX_REQUEST_BODY_BYTES):
            reads.append(PlannedRead(offset=start, length=end - start, serves=tuple(serves)))
            serves = []
        if not serves:
            start, joined = offset, offset + length
        end = joined
        serves.append((place, offset - start))
    if serves:
        reads.append(PlannedRead(offset=start, length=end - start, serves=tuple(serves)))
    check_body_size(f"the read of {len(ranges)} ranges of {key}, with what lies between", sum(r.length for r in reads))
    return reads
