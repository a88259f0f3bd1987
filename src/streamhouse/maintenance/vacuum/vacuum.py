"""One vacuum, from start to end: the calls, in their order, with bounded memory. candidates.py decides.

    1. purge      drop the entries of deleted topics, in small steps; their objects are dereferenced by it
    2. raise      raise the GC horizon in every partition: no commit can name an older object from here on (R6)
    3. delete     what is dereferenced, old enough for readers and for pins (R7), oldest first; then forget its record
    4. list       the object store, page by page, and delete of each page what the metadata has no reference of (R24)

The contract of the metadata lists first and raises the horizon afterwards. Here the horizon is raised once, before all
pages: what counts is that references are read after it was raised, and that only what is stamped below it is deleted.

At any time one page of the listing, or one batch of records, is in memory. A kill between any two calls leaves objects
and records that the next vacuum finds again: step 3 deletes the object first and its record afterwards, so no object
is lost sight of. Several vacuums at once find the same garbage, and to delete it twice is harmless.

The caller opens both stores as an agent does (app/stores.py): the checks there refuse the object store of another
cluster, and metadata that is an older copy. To vacuum with either would delete live objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from streamhouse.core.limits import MAX_ROWS_PER_SWEEP
from streamhouse.maintenance.vacuum.candidates import (
    Garbage,
    SortedPage,
    dereferenced,
    horizon_of,
    listings,
    never_referenced,
    sort_page,
)
from streamhouse.maintenance.vacuum.deletion import Deletion
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.summary import VacuumPhase, VacuumSummary
from streamhouse.metadata.contract import DereferencedObject, MetadataStore, WaitingObjects
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.objects import ObjectInfo

OBJECTS_PER_PAGE: Final = 1_000  # one question to the metadata: 200 KB of keys; sorted in one step, some 4 ms
JUDGED_AT_ONCE: Final = 500  # keys parsed in one step of the event loop, some 2 ms: a write may be waiting for it
RECORDS_PER_BATCH: Final = (
    2_000  # forgotten in one transaction, some 20 ms; each listing walks over young records again
)
MAX_LEFT: Final = 10_000  # records that were tried and left, 150 bytes each; each batch lists them again

OnProgress = Callable[[VacuumSummary], None]
"""Called after every step with the summary so far."""


class Vacuum:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        options: VacuumOptions,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.summary = VacuumSummary()
        """The summary of the last run or plan; also of one that has raised an error."""
        self._metadata = metadata
        self._objects = objects
        self._options = options
        self._on_progress = on_progress
        self._deletion = Deletion(objects)

    async def run(self) -> VacuumSummary:
        """Delete all garbage there is. Raises a StoreError or a MetadataError when a store cannot be read: then the
        next run does the rest. A delete that fails is only counted and told."""
        self.summary, self._deletion = VacuumSummary(), Deletion(self._objects)
        await self._purge()
        self._enter(VacuumPhase.RAISING)
        now_ms = await self._metadata.now_ms()
        horizon_ms = horizon_of(now_ms, self._options.writer_grace_ms, await self._metadata.list_pins())
        # Another vacuum with a shorter grace may have raised it higher. Mine counts: I promised to wait for that long.
        self.summary.horizon_ms = min(horizon_ms, await self._metadata.raise_gc_horizon(horizon_ms))
        self._enter(VacuumPhase.DEREFERENCED)
        await self._delete_dereferenced(before_ms=now_ms - self._options.reader_grace_ms)
        if not self.summary.gave_up:
            self._enter(VacuumPhase.LISTING)
            await self._delete_unreferenced()
        self._enter(VacuumPhase.DONE)
        return self.summary

    async def plan(self) -> VacuumSummary:
        """Say what a run would delete. Deletes no object and no row, and raises no horizon.

        It reads the same listing and asks the same questions. The metadata answers them only for objects below the
        horizon that stands, because above it the answer may change at any moment. So ``garbage`` is what a run would
        delete for certain. ``undecided`` counts the objects between that horizon and the one that a run would raise,
        referenced or not: a run deletes some, none or all of them. Before the first vacuum of a cluster that is every
        object that is old enough; afterwards, what was uploaded since the last vacuum. A plan does not know how many
        entries of deleted topics a run would purge, and counts 100,000 dereferenced objects at most.
        """
        self.summary = VacuumSummary(plan_only=True)
        self._enter(VacuumPhase.RAISING)
        now_ms = await self._metadata.now_ms()
        pins = await self._metadata.list_pins()
        self.summary.horizon_ms = horizon_of(now_ms, self._options.writer_grace_ms, pins)
        standing_ms = (await self._metadata.cluster_info()).gc_horizon_ms
        self._enter(VacuumPhase.DEREFERENCED)
        grace_ms = self._options.reader_grace_ms
        records = await self._metadata.list_dereferenced(grace_ms=grace_ms, limit=MAX_ROWS_PER_SWEEP)
        self.summary.count_garbage(dereferenced(records, before_ms=now_ms - grace_ms, left=frozenset()))
        if len(records) == MAX_ROWS_PER_SWEEP:
            self.summary.tell(f"there are more than {MAX_ROWS_PER_SWEEP} dereferenced objects; these are counted")
        self._enter(VacuumPhase.LISTING)
        async for page in self._pages():
            self.summary.count_garbage([*page.leftovers, *await self._ask(page)])
            open_bytes = [each.size_bytes for each in page.suspects if each.created_ms >= standing_ms]
            self.summary.undecided = self.summary.undecided.plus(len(open_bytes), sum(open_bytes))
            self._tell_progress()
        self._enter(VacuumPhase.DONE)
        return self.summary

    async def waiting(self) -> WaitingObjects:
        """What is dereferenced and has to stay for now; 100,000 objects are counted at most. Changes nothing."""
        return await self._metadata.sum_waiting_objects(
            writer_grace_ms=self._options.writer_grace_ms,
            reader_grace_ms=self._options.reader_grace_ms,
            limit=MAX_ROWS_PER_SWEEP,
        )

    async def _purge(self) -> None:
        """Commits to a deleted topic are refused, so its entries only become fewer, and this comes to an end."""
        self._enter(VacuumPhase.PURGING)
        while count := await self._metadata.purge_deleted_topics(limit=self._options.purge_rows):
            self.summary.entries_purged += count
            self._tell_progress()
            await asyncio.sleep(self._options.pause_ms / 1000)

    async def _delete_dereferenced(self, *, before_ms: int) -> None:
        left: set[str] = set()
        while not self.summary.gave_up:
            records = await self._metadata.list_dereferenced(
                grace_ms=self._options.reader_grace_ms, limit=RECORDS_PER_BATCH + len(left)
            )
            left.intersection_update(record.key for record in records)  # another vacuum may have forgotten some
            self.summary.records_left = len(left)
            found = [
                each async for part in _in_steps(records) for each in dereferenced(part, before_ms=before_ms, left=left)
            ]
            gone = await self._forget(found)
            tried = {record.key for record in records if record.dereferenced_at_ms < before_ms} - left
            if not tried:
                return
            left |= tried - gone
            self.summary.records_left = len(left)
            self._tell_progress()
            if len(left) > MAX_LEFT:
                self.summary.tell(f"more than {MAX_LEFT} records of dereferenced objects could not be dropped")
                return

    async def _forget(self, found: list[Garbage]) -> set[str]:
        """Delete the objects and then their records. Returns the keys whose records this vacuum has dropped."""
        if not found:
            return set()
        failed = await self._delete(found)
        gone = await self._metadata.forget_objects([each.key for each in found if each.key not in failed])
        self.summary.count_garbage(each for each in found if each.key in gone)
        return gone

    async def _delete_unreferenced(self) -> None:
        async for page in self._pages():
            found = [*page.leftovers, *await self._ask(page)]
            failed = await self._delete(found)
            self.summary.count_garbage(each for each in found if each.key not in failed)
            self._tell_progress()
            if self.summary.gave_up:
                return

    async def _pages(self) -> AsyncIterator[SortedPage]:
        horizon_ms = self.summary.horizon_ms
        for range_ in listings(horizon_ms):
            listing = self._objects.list(range_.prefix, start_after=range_.start_after, stop_before=range_.stop_before)
            async for part in _parts(listing):
                page = sort_page(part, horizon_ms=horizon_ms)
                self.summary.count_page(page)
                yield page

    async def _ask(self, page: SortedPage) -> list[Garbage]:
        if not page.suspects:
            return []
        stamps = {each.key: each.created_ms for each in page.suspects}
        return never_referenced(page.suspects, await self._metadata.find_unreferenced(stamps))

    async def _delete(self, found: list[Garbage]) -> dict[str, Exception]:
        failed = await self._deletion.delete([each.key for each in found])
        self.summary.count_failures(failed)
        self.summary.gave_up = self._deletion.is_hopeless
        return failed

    def _enter(self, phase: VacuumPhase) -> None:
        self.summary.phase = phase
        self._tell_progress()

    def _tell_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.summary)


async def _in_steps(records: Sequence[DereferencedObject]) -> AsyncIterator[Sequence[DereferencedObject]]:
    """The records in parts, with other work of the event loop in between."""
    for start in range(0, len(records), JUDGED_AT_ONCE):
        yield records[start : start + JUDGED_AT_ONCE]
        await asyncio.sleep(0)


async def _parts(listing: AsyncIterator[ObjectInfo]) -> AsyncIterator[list[ObjectInfo]]:
    part: list[ObjectInfo] = []
    async for info in listing:
        part.append(info)
        if len(part) == OBJECTS_PER_PAGE:
            yield part
            part = []
    if part:
        yield part
