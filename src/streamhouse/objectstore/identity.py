"""Find out whether the object under a key is the one that this writer meant to write (R11).

A put that succeeded late answers "taken" for ever after. On a key that no other writer can have, equal length and
CRC-32C say that the object is ours. Reads the object in pieces; decides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from crc32c import crc32c

from streamhouse.core.errors import ObjectNotFound
from streamhouse.core.limits import MULTIPART_PART_BYTES
from streamhouse.objectstore.objects import ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Length and checksum of some bytes; grows as they come."""

    size_bytes: int = 0
    crc: int = 0

    @classmethod
    def of(cls, views: Iterable[memoryview]) -> Self:
        return cls().grown(views)

    def grown(self, views: Iterable[memoryview]) -> Self:
        size_bytes, crc = self.size_bytes, self.crc
        for view in views:
            size_bytes += len(view)
            crc = crc32c(view, crc)
        return type(self)(size_bytes=size_bytes, crc=crc)


class Readable(Protocol):
    async def head(self, key: str) -> ObjectInfo: ...

    async def get_range(self, key: str, offset: int, length: int) -> memoryview: ...


async def holds(store: Readable, key: str, expected: Fingerprint) -> bool:
    """False also when the object has gone in the meantime: then it cannot be said that it was ours."""
    try:
        if (await store.head(key)).size_bytes != expected.size_bytes:
            return False
        crc = 0
        for offset in range(0, expected.size_bytes, MULTIPART_PART_BYTES):
            length = min(MULTIPART_PART_BYTES, expected.size_bytes - offset)
            crc = crc32c(await store.get_range(key, offset, length), crc)
    except ObjectNotFound:
        return False
    return crc == expected.crc
