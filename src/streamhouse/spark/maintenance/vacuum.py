"""Vacuum on Spark: the driver purges, raises the horizon and lists; tasks ask for references and delete.

The order of one process stands, and with it R6, R7 and R24: the driver raises the horizon before it lists the first
page. A task that starts late, or again, asks the metadata at that moment what its page's objects are referred by. Every
object of a page is stamped below the raised horizon, so none of them can get a reference any more. To delete an object
twice is harmless.

The driver lists, 1,000 objects a request, because a listing cannot be cut into parts whose number is known before. It
holds as many pages as works are sent side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from streamhouse.maintenance.vacuum.candidates import Garbage, SortedPage
from streamhouse.maintenance.vacuum.deletion import KEYS_PER_REQUEST, MAX_FAILURES
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.summary import Tally, VacuumSummary
from streamhouse.maintenance.vacuum.vacuum import OnProgress, Vacuum
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.spark.maintenance.jobs import SparkTasks
from streamhouse.spark.maintenance.tasks import TaskStores, Work

_RECORDS_PER_TASK: Final = 2 * KEYS_PER_REQUEST


@dataclass(slots=True, kw_only=True)
class Deleted:
    """What a task has deleted and what it could not delete."""

    summary: VacuumSummary
    forgotten: set[str] = field(default_factory=set)
    """The objects whose records are dropped."""


class SparkVacuum(Vacuum):
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        options: VacuumOptions,
        tasks: SparkTasks,
        on_progress: OnProgress | None = None,
    ) -> None:
        super().__init__(metadata=metadata, objects=objects, options=options, on_progress=on_progress)
        self._tasks = tasks

    async def _forget(self, found: list[Garbage]) -> set[str]:
        parts = [tuple(found[at : at + _RECORDS_PER_TASK]) for at in range(0, len(found), _RECORDS_PER_TASK)]
        gone: set[str] = set()
        for deleted in await self._tasks.run_all([DeleteDereferenced(found=part) for part in parts]):
            gone |= deleted.forgotten
            self._add(deleted)
        return gone

    async def _delete_unreferenced(self) -> None:
        running: set[asyncio.Task[Deleted]] = set()
        try:
            async for page in self._pages():
                if page.suspects or page.leftovers:
                    running.add(asyncio.create_task(self._tasks.run(DeletePage(page=page))))
                if len(running) >= self._tasks.at_a_time:
                    running = await self._add_finished(running)
                if self.summary.gave_up:
                    break
            while running:
                running = await self._add_finished(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _add_finished(self, running: set[asyncio.Task[Deleted]]) -> set[asyncio.Task[Deleted]]:
        """Wait for one page at least. Returns those that are still under way."""
        finished, pending = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            self._add(task.result())
        return pending

    def _add(self, deleted: Deleted) -> None:
        mine, more = self.summary, deleted.summary
        for place, tally in more.garbage.items():
            mine.garbage[place] = mine.garbage.get(place, Tally()).plus(tally.objects, tally.size_bytes)
        mine.failed += more.failed
        for problem in more.problems:
            mine.tell(problem)
        mine.gave_up |= more.gave_up or mine.failed >= MAX_FAILURES
        self._tell_progress()


# In a task.


class _PageVacuum(Vacuum):
    """The last step of a vacuum, over one page that was listed elsewhere."""

    def __init__(self, stores: TaskStores, page: SortedPage | None = None) -> None:
        super().__init__(metadata=stores.metadata, objects=stores.objects, options=VacuumOptions())
        self._page = page

    async def _pages(self) -> AsyncIterator[SortedPage]:
        if self._page is not None:
            yield self._page

    async def delete_page(self) -> Deleted:
        await self._delete_unreferenced()
        return Deleted(summary=self.summary)

    async def delete_dereferenced(self, found: list[Garbage]) -> Deleted:
        gone = await self._forget(found)
        return Deleted(summary=self.summary, forgotten=gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePage(Work[Deleted]):
    doing = "deleting unreferenced objects"
    page: SortedPage

    async def run(self, stores: TaskStores) -> Deleted:
        return await _PageVacuum(stores, self.page).delete_page()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDereferenced(Work[Deleted]):
    doing = "deleting dereferenced objects"
    found: tuple[Garbage, ...]

    async def run(self, stores: TaskStores) -> Deleted:
        return await _PageVacuum(stores).delete_dereferenced(list(self.found))
