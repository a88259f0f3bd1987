"""Long polls: readers that wait for a partition to grow. Three sources wake them.

    led here            one task for each partition waits for the leader; a waiting reader also makes the leader flush
    committed anywhere  one subscription to the changes of the metadata store, for the whole process
    neither             a notification may be lost: every recheck interval the partitions with waiters are read again,
                        all in a few calls

A long poll is one future. It is registered with each of its partitions and removed from them without a search. Idle
long polls cost nothing but memory. A wake-up is never an answer, only a reason to look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from streamhouse.core.errors import NotLeader, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.log.reader.protocols import LedPartitions
from streamhouse.log.reader.views import PartitionView, Views, Waiter
from streamhouse.metadata.contract import Change, ChangeKind, MetadataStore

_VIEWS_PER_RECHECK: Final = 2_000  # with more, each recheck takes the next part
_RESUBSCRIBE_PAUSE_S: Final = 1.0


class WaitingRoom:
    """The partitions with waiters. Every step is O(1), except to wake the waiters of a partition."""

    def __init__(self) -> None:
        self._views: dict[PartitionView, None] = {}

    def __len__(self) -> int:
        return len(self._views)

    def views(self) -> list[PartitionView]:
        return list(self._views)

    def next_views(self, count: int) -> list[PartitionView]:
        """The partitions that this call has not returned for the longest time; they go to the end of the queue."""
        views = list(islice(self._views, count))
        if len(views) < len(self._views):
            for view in views:
                del self._views[view]
                self._views[view] = None
        return views

    def add(self, view: PartitionView, waiter: Waiter, offset: int) -> None:
        """``waiter`` waits for a record at ``offset``."""
        if not view.waiters:
            self._views[view] = None
        view.waiters[waiter] = offset

    def remove(self, view: PartitionView, waiter: Waiter) -> None:
        if view.waiters.pop(waiter, None) is not None and not view.waiters:
            del self._views[view]

    def wake(self, view: PartitionView, end_offset: int | None) -> None:
        """Wake the waiters for an offset below ``end_offset``; all of them if it is None."""
        for waiter, offset in view.waiters.items():
            if (end_offset is None or offset < end_offset) and not waiter.done():
                waiter.set_result(True)

    def wake_all(self) -> None:
        for view in self._views:
            self.wake(view, None)


class Wakeups:
    """Runs only while there are waiters. The subscription stays once it was needed."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        views: Views,
        leading: LedPartitions | None,
        end_of: Callable[[PartitionView], int],
        recheck_interval_ms: int,
    ) -> None:
        """``end_of`` returns the known end of a partition."""
        self._metadata = metadata
        self._views = views
        self._leading = leading
        self._end_of = end_of
        self._recheck_interval_s = recheck_interval_ms / 1000
        self._room = WaitingRoom()
        self._watched: dict[PartitionView, bool] = {}
        """Partitions whose leader is watched, and whether they had no waiter at the last recheck."""
        self._listener: asyncio.Task[None] | None = None
        self._rechecker: asyncio.Task[None] | None = None
        self._closed = False
        self.listening = False
        """Whether the subscription works. While it does not, no old state can be trusted."""

    @property
    def partitions_waited_for(self) -> int:
        return len(self._room)

    @property
    def leaders_watched(self) -> int:
        return len(self._watched)

    async def wait(self, wanted: Sequence[tuple[PartitionView, int]], timeout_s: float) -> bool:
        """Returns True when a record at one of these offsets may be there, False when the time is up."""
        if self._closed:
            return False
        for view, offset in wanted:
            if offset < self._end_of(view):
                return True  # it came while the reader was busy with other partitions, and its wake-up is over
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        for view, offset in wanted:
            self._room.add(view, waiter, offset)
            if view.watch is None:
                self._watch(view)
            if self._views.is_outdated(view):
                # Something changed after the look that found nothing had begun, when there was no waiter to wake.
                self._views.refresh_soon(view.key)
        self._start()
        timer = loop.call_later(timeout_s, _give_up, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            for view, _ in wanted:
                self._room.remove(view, waiter)

    def moved(self, view: PartitionView) -> None:
        """A partition grew, was trimmed or is gone: wake all its waiters."""
        self._room.wake(view, None)

    async def close(self) -> None:
        """Wake every waiter, as if its time were up."""
        self._closed = True
        self._room.wake_all()
        watches = [view.watch for view in self._watched]
        tasks = [task for task in (self._listener, self._rechecker, *watches) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="reader-changes")
        if self._rechecker is None:
            self._rechecker = asyncio.create_task(self._recheck(), name="reader-recheck")

    def _watch(self, view: PartitionView) -> None:
        if self._leading is not None and self._is_led(view.key):
            view.watch = asyncio.create_task(self._watch_leader(self._leading, view), name="reader-watch")
            self._watched[view] = False

    async def _watch_leader(self, leading: LedPartitions, view: PartitionView) -> None:
        try:
            while (partition := leading.partition(view.key)) is not None:
                end = partition.visible_end
                self._room.wake(view, end)
                await leading.wait_visible(view.key, end)
        except NotLeader:
            pass
        finally:
            view.watch = None
            del self._watched[view]
            self._room.wake(view, None)  # it is not led here any more: look again

    async def _listen(self) -> None:
        while True:
            try:
                async with self._metadata.subscribe() as changes:
                    self.listening = True
                    self._look_at(self._room.views())  # for changes before the subscription
                    async for change in changes:
                        self._heard(change)
            except StreamHouseError:
                pass  # rechecks go on, and the next subscription starts with a look at everything
            finally:
                self.listening = False
            await asyncio.sleep(_RESUBSCRIBE_PAUSE_S)

    def _heard(self, change: Change) -> None:
        match change.kind:
            case ChangeKind.COMMIT:
                self._noticed(key for key in change.keys if not self._leader_tells(key))
            case ChangeKind.LEASES if change.keys:
                self._noticed(change.keys)
            case ChangeKind.ANY | ChangeKind.TOPICS:
                self._views.notice_all()
                self._look_at(self._room.views())

    def _noticed(self, keys: Iterable[PartitionKey]) -> None:
        self._look_at([view for view in self._views.notice(keys) if view.waiters])

    def _leader_tells(self, key: PartitionKey) -> bool:
        """Where the partition is led here, the commit is mostly our own and needs no look. Rechecks find the rest."""
        if not self._is_led(key):
            return False
        view = self._views.get(key)
        return view is None or not view.waiters or view.watch is not None

    def _is_led(self, key: PartitionKey) -> bool:
        return self._leading is not None and self._leading.partition(key) is not None

    def _look_at(self, views: Sequence[PartitionView]) -> None:
        for view in views:
            self._views.refresh_soon(view.key)

    async def _recheck(self) -> None:
        try:
            while self._room or self._watched:
                await asyncio.sleep(self._recheck_interval_s)
                for view in self._room.next_views(_VIEWS_PER_RECHECK):
                    self._views.refresh_soon(view.key)
                    if view.watch is None:
                        self._watch(view)  # it may be led here now
                self._stop_idle_watches()
        finally:
            self._rechecker = None

    def _stop_idle_watches(self) -> None:
        """A leader is watched for some time after its last waiter: readers come back, and it may flush meanwhile."""
        for view, was_idle in self._watched.items():
            idle = not view.waiters
            self._watched[view] = idle
            if idle and was_idle and view.watch is not None:
                view.watch.cancel()


def _give_up(waiter: Waiter) -> None:
    if not waiter.done():
        waiter.set_result(False)
