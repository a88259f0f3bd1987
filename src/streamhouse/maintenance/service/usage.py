"""What is stored: objects and bytes by the kind of object, from one listing of the object store.

A listing asks once for 1,000 objects. One page is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import (
    METADATA_PROGRESS_PREFIX,
    PROBE_PREFIX,
    SHARED_BLOB_PREFIX,
    STAGING_PREFIX,
    CompactedKey,
    ProbeKey,
    SegmentKey,
    SharedBlobKey,
    StagingKey,
    metadata_progress_of,
    parse,
)
from streamhouse.objectstore.objects import ObjectInfo

SEGMENTS: Final = "topics/*/segments/"
COMPACTED: Final = "topics/*/compacted/"
OTHER: Final = "other"
"""The mark of the object store, and objects that are none of ours."""
PREFIXES: Final = (
    SHARED_BLOB_PREFIX,
    SEGMENTS,
    COMPACTED,
    STAGING_PREFIX,
    PROBE_PREFIX,
    METADATA_PROGRESS_PREFIX,
    OTHER,
)

OnObject = Callable[[ObjectInfo], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixUsage:
    objects: int = 0
    bytes: int = 0

    def plus(self, size_bytes: int) -> PrefixUsage:
        return PrefixUsage(objects=self.objects + 1, bytes=self.bytes + size_bytes)


def unheeded(info: ObjectInfo) -> None:
    """Ignores the object, for a listing that is only counted."""


async def usage_by_prefix(objects: ObjectStore, *, on_object: OnObject = unheeded) -> dict[str, PrefixUsage]:
    """Every prefix with what is below it, also with nothing. ``on_object`` sees each object. Raises StoreError."""
    found = dict.fromkeys(PREFIXES, PrefixUsage())
    async for info in objects.list():
        prefix = prefix_of(info.key)
        found[prefix] = found[prefix].plus(info.size_bytes)
        on_object(info)
    return found


def prefix_of(key: str) -> str:
    """The one of PREFIXES that the key belongs to. Pure."""
    match parse(key):
        case SharedBlobKey():
            return SHARED_BLOB_PREFIX
        case SegmentKey():
            return SEGMENTS
        case CompactedKey():
            return COMPACTED
        case StagingKey():
            return STAGING_PREFIX
        case ProbeKey():
            return PROBE_PREFIX
        case None:
            return OTHER if metadata_progress_of(key) is None else METADATA_PROGRESS_PREFIX
