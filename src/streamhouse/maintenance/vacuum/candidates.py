"""Which objects may be garbage. Pure: it knows a page of a listing, a horizon, and what the metadata has answered.

A listed object is sorted by its key alone, because nothing else of an object is trusted:

    no key of ours                      foreign: never touched. That is true of the cluster-id mark and the marks of
                                        the metadata's progress as well: ``keys.parse`` knows neither.
    stamped at or above the horizon     young: a writer may still commit it. A stamp in the future is young as well.
    a staging key or a probe's key      garbage: nothing ever names it.
    any other key                       a suspect: the metadata decides.

Stamps of data are the metadata store's time, and the horizon is that too. An agent's machine stamps staging and probe
keys with its own clock, and no commit protects them. Therefore the object store's time of the object has to be below
the horizon as well: a machine whose clock is slow keeps its uploads.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamhouse.metadata.contract import DereferencedObject, Pin
from streamhouse.objectstore.keys import (
    PROBE_PREFIX,
    SHARED_BLOB_PREFIX,
    STAGING_PREFIX,
    TOPICS_PREFIX,
    CompactedKey,
    KeyRange,
    ObjectKey,
    ProbeKey,
    SegmentKey,
    SharedBlobKey,
    StagingKey,
    created_between,
    parse,
)
from streamhouse.objectstore.objects import ObjectInfo


class ObjectKind(StrEnum):
    SHARED_BLOB = "shared blob"
    SEGMENT = "segment"
    COMPACTED = "compacted segment"
    STAGING = "unpublished upload"
    PROBE = "start-up check"


class GarbageCause(StrEnum):
    """How an object became garbage; the package's docstring explains the three."""

    NEVER_REFERENCED = "never referenced"
    DEREFERENCED = "dereferenced"
    LEFT_BEHIND = "left behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """An object that may be deleted."""

    key: str
    kind: ObjectKind
    cause: GarbageCause
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """An object that is old enough to be garbage. It is garbage if no entry, compaction or intent names it."""

    key: str
    kind: ObjectKind
    created_ms: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedPage:
    """A page of a listing, sorted."""

    suspects: tuple[Suspect, ...]
    leftovers: tuple[Garbage, ...]
    young: int
    """The number of objects that a writer may still commit."""
    foreign: int
    """The number of objects that are not ours."""


def horizon_of(now_ms: int, writer_grace_ms: int, pins: Iterable[Pin]) -> int:
    """The horizon of a vacuum that begins at this time of the metadata store's clock.

    It never passes the creation of a live pin: who uploads for long holds one, and can commit until the pin ends.
    ``pins`` are listed after the time was read, so that one that comes meanwhile is not older than the horizon.
    """
    return max(0, min([now_ms - writer_grace_ms, *(pin.created_at_ms for pin in pins)]))


def listings(horizon_ms: int) -> list[KeyRange]:
    """What to list. Where keys sort by their stamp, the young ones are not listed at all."""
    return [
        *(
            created_between(prefix, before_ms=horizon_ms)
            for prefix in (STAGING_PREFIX, PROBE_PREFIX, SHARED_BLOB_PREFIX)
        ),
        KeyRange(prefix=TOPICS_PREFIX),
    ]


def sort_page(page: Iterable[ObjectInfo], *, horizon_ms: int) -> SortedPage:
    suspects: list[Suspect] = []
    leftovers: list[Garbage] = []
    young = foreign = 0
    for info in page:
        key = parse(info.key)
        if key is None:
            foreign += 1
        elif key.created_ms >= horizon_ms:
            young += 1
        elif not isinstance(key, StagingKey | ProbeKey):
            suspects.append(
                Suspect(key=info.key, kind=_kind_of(key), created_ms=key.created_ms, size_bytes=info.size_bytes)
            )
        elif info.modified_ms >= horizon_ms:
            young += 1
        else:
            leftovers.append(
                Garbage(key=info.key, kind=_kind_of(key), cause=GarbageCause.LEFT_BEHIND, size_bytes=info.size_bytes)
            )
    return SortedPage(suspects=tuple(suspects), leftovers=tuple(leftovers), young=young, foreign=foreign)


def never_referenced(suspects: Iterable[Suspect], unreferenced: Container[str]) -> list[Garbage]:
    """The suspects that the metadata knows no reference of."""
    return [
        Garbage(key=suspect.key, kind=suspect.kind, cause=GarbageCause.NEVER_REFERENCED, size_bytes=suspect.size_bytes)
        for suspect in suspects
        if suspect.key in unreferenced
    ]


def dereferenced(listed: Sequence[DereferencedObject], *, before_ms: int, left: Container[str]) -> list[Garbage]:
    """Those of the listed objects that this vacuum has to delete.

    ``before_ms``: what was dereferenced later is left to the next vacuum, so that this one comes to an end beside
    writers that never stop. ``left``: what this vacuum has tried and left. A record that names no key of ours is not
    for this version to delete.
    """
    return [
        Garbage(key=each.key, kind=_kind_of(key), cause=GarbageCause.DEREFERENCED, size_bytes=each.size_bytes)
        for each in listed
        if each.dereferenced_at_ms < before_ms and each.key not in left and (key := parse(each.key)) is not None
    ]


def _kind_of(key: ObjectKey) -> ObjectKind:
    match key:
        case SharedBlobKey():
            return ObjectKind.SHARED_BLOB
        case SegmentKey():
            return ObjectKind.SEGMENT
        case CompactedKey():
            return ObjectKind.COMPACTED
        case StagingKey():
            return ObjectKind.STAGING
        case ProbeKey():
            return ObjectKind.PROBE
