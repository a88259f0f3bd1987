"""Deletes dereferenced objects before their grace is over, where a size limit has to bound a disk (a single node).

A vacuum waits for an hour before it deletes what retention has dereferenced. On one machine that hour can be many times
the disk: a topic may keep 200 MB and write as much in two seconds. So as soon as more than ``keep_bytes`` of objects
are dereferenced, the oldest of them go at once. The rules of vacuum hold:

R6, R24  The horizon is raised first. It stays below the oldest object that the log here has uploaded and not
         committed, and below every live pin. Others who upload on this machine hold a pin (Spark's sinks,
         compaction), or find their commit refused and upload again.
R7       What was dereferenced after the creation of a live pin stays. A reader without a pin that has just resolved an
         entry finds its object missing, asks the metadata again, and learns that the log begins later or that the
         entry was replaced.

Needs the leader's own knowledge of its uploads, so it is not for a fleet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from streamhouse.core.limits import MAX_ROWS_PER_SWEEP
from streamhouse.core.units import format_size
from streamhouse.maintenance.vacuum.candidates import horizon_of
from streamhouse.maintenance.vacuum.deletion import Deletion
from streamhouse.metadata.contract import DereferencedObject, MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import parse

_OBJECTS_AT_ONCE: Final = 500
_OBJECTS_PER_LISTING: Final = 5_000
"""To list so many and to add them up takes some 5 ms of the event loop, in which no write gets on."""

_log = logging.getLogger(__name__)


class DiskSpace:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        keep_bytes: int,
        oldest_stamp_ms: Callable[[], int | None],
    ) -> None:
        """``oldest_stamp_ms``: the oldest stamp of an object that the log has uploaded and may still commit."""
        self.deleted_objects = 0
        self.deleted_bytes = 0
        self._metadata = metadata
        self._objects = objects
        self._keep_bytes = keep_bytes
        self._oldest_stamp_ms = oldest_stamp_ms

    async def free(self) -> None:
        """Delete the oldest of the dereferenced objects until at most ``keep_bytes`` of them are left."""
        await self._raise_horizon()
        deletion, limit = Deletion(self._objects), _OBJECTS_PER_LISTING
        while True:
            records = await self._metadata.list_dereferenced(grace_ms=0, limit=limit)
            surplus = surplus_of(records, keep_bytes=self._keep_bytes)
            is_any_deleted = False
            while some := list(islice(surplus, _OBJECTS_AT_ONCE)):
                if not await self._delete(deletion, some):
                    return  # the next vacuum tells of it
                is_any_deleted = True
            if is_any_deleted:
                continue
            if len(records) < limit or limit == MAX_ROWS_PER_SWEEP:
                return
            limit = MAX_ROWS_PER_SWEEP  # very small objects: so many of them are not too much yet

    async def _raise_horizon(self) -> None:
        """Pins and stamps are read after the time, so a pin or an object that comes meanwhile is not older."""
        now_ms = await self._metadata.now_ms()
        horizon_ms = horizon_of(now_ms, 0, await self._metadata.list_pins())
        if (oldest_ms := self._oldest_stamp_ms()) is not None:
            horizon_ms = min(horizon_ms, oldest_ms)
        await self._metadata.raise_gc_horizon(horizon_ms)

    async def _delete(self, deletion: Deletion, surplus: Sequence[DereferencedObject]) -> bool:
        """Returns False when nothing could be deleted."""
        failed = await deletion.delete([each.key for each in surplus])
        gone = await self._metadata.forget_objects([each.key for each in surplus if each.key not in failed])
        sizes = [each.size_bytes for each in surplus if each.key in gone]
        self.deleted_objects += len(sizes)
        self.deleted_bytes += sum(sizes)
        _log.debug("deleted %d dereferenced objects early: %s", len(sizes), format_size(sum(sizes)))
        return bool(sizes)


def surplus_of(records: Sequence[DereferencedObject], *, keep_bytes: int) -> Iterator[DereferencedObject]:
    """Those of the records, oldest first, without which at most ``keep_bytes`` are left. Pure.

    A record that names no key of ours is not for this version to delete.
    """
    over_bytes = sum(each.size_bytes for each in records) - keep_bytes
    for each in records:
        if over_bytes <= 0:
            return
        if parse(each.key) is not None:
            yield each
            over_bytes -= each.size_bytes
