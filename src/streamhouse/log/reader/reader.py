"""LogReader: batches by offset, from the nearest place that has them, for any partition of the cluster.

    1  tail cache         what this process published last              no await
    2  leader's buffer    visible, not committed, evicted from 1        no await
    3  entries            which bytes of which object                   in memory, or one call to the metadata
    4  blocks             those bytes                                   in memory, or one ranged GET

Committed data can be read on every agent; 1 and 2 help only where the leader is local. Before the reader says that an
offset is out of range, it reads the partition fresh (R16). A range whose object is missing or damaged is looked up
again. If that does not help, it is an error; it is never skipped (R7).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    DamagedObject,
    MetadataUnavailable,
    NotLeader,
    OffsetOutOfRange,
    StreamHouseError,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.log.offload import InlineOffload, Offload
from streamhouse.log.reader.ahead import ReadAhead
from streamhouse.log.reader.cursor import Allowance, Cursor, ReadRequest, ReadResult
from streamhouse.log.reader.damage import Damages, Report, unheard
from streamhouse.log.reader.entries import EntryFinder
from streamhouse.log.reader.objects import ObjectReader
from streamhouse.log.reader.options import ReaderOptions, ReaderStats
from streamhouse.log.reader.protocols import LedPartition, LedPartitions
from streamhouse.log.reader.times import TimedOffset, TimeSearch
from streamhouse.log.reader.views import PartitionView, Views
from streamhouse.log.reader.waiting import Wakeups
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import Durability, MetadataStore, PartitionState, WriteMode
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.wire.buffers import byte_view

_MAX_REPLACED: Final = 10  # objects that vanish one after another during one read: compaction is not that fast
_MAX_STALLS: Final = 3
_DAMAGE_PACE_S: Final = 0.5
"""How long a read with a damaged partition waits for the others: some clients ask again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOffsets:
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    """The end of what may be read."""


class LogReader:
    """The reader of all partitions. It belongs to one event loop and must be closed."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        tail: TailCache,
        leading: LedPartitions | None,
        clock: Clock,
        options: ReaderOptions,
        offload: Offload | None = None,
        report: Report = unheard,
    ) -> None:
        """``leading`` is None in a process that leads nothing. ``offload`` decompresses blocks; None does it inline.

        ``report`` is called when objects are missing or damaged, and when they can be read again.
        """
        self.stats = ReaderStats()
        self._tail = tail
        self._leading = leading
        self._options = options
        offload = offload or InlineOffload()
        self._views = Views(
            metadata=metadata,
            clock=clock,
            options=options,
            on_moved=lambda view: self._wakeups.moved(view),
            on_new_epoch=lambda key: self._entries.forget(key),
        )
        self._wakeups = Wakeups(
            metadata=metadata,
            views=self._views,
            leading=leading,
            end_of=self._end,
            recheck_interval_ms=options.recheck_interval_ms,
        )
        self._entries = EntryFinder(metadata=metadata, views=self._views, clock=clock, options=options)
        self._objects = ObjectReader(store=store, offload=offload, options=options, stats=self.stats)
        self._damages = Damages(metadata=metadata, objects=self._objects, clock=clock, stats=self.stats, report=report)
        self._ahead = ReadAhead(
            entries=self._entries, objects=self._objects, views=self._views, tail=tail, options=options
        )
        self._times = TimeSearch(
            metadata=metadata,
            entries=self._entries,
            objects=self._objects,
            damages=self._damages,
            leading=leading,
            offload=offload,
        )

    async def read(
        self, key: PartitionKey, offset: int, *, max_bytes: int, min_bytes: int = 1, max_wait_ms: int = 0
    ) -> ReadResult:
        """Whole batches from the one with ``offset``, or the next after it, up to ``max_bytes``.

        The first batch is returned whole even if it is larger. With less than ``min_bytes``, waits up to
        ``max_wait_ms`` for more. At the end of the log the answer may be empty.
        Raises OffsetOutOfRange, PartitionNotFound, NotLeader, DamagedObject, StoreError, MetadataError.
        """
        request = ReadRequest(key=key, offset=offset, max_bytes=max_bytes)
        (outcome,) = await self.read_many([request], max_bytes=max_bytes, min_bytes=min_bytes, max_wait_ms=max_wait_ms)
        if isinstance(outcome, StreamHouseError):
            raise outcome
        return outcome

    async def read_many(
        self,
        requests: Sequence[ReadRequest],
        *,
        max_bytes: int,
        min_bytes: int = 1,
        max_wait_ms: int = 0,
        wait_despite_damage: bool = False,
    ) -> list[ReadResult | StreamHouseError]:
        """Read several partitions as one: bytes are counted over all of them, and one wait serves all.

        Partitions are served in the order of the request. Only the first batch of the whole answer may be larger than
        the limit. An error in one partition does not affect the others, but ends the wait. ``wait_despite_damage``: a
        damaged object ends it only after half a second, because some clients ask for the same again at once.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        deadline_s = begun_s + max_wait_ms / 1000
        self.stats.reads += len(requests)
        allowance = Allowance(min(max_bytes, self._options.max_read_bytes))
        cursors = [Cursor(request, allowance) for request in requests]
        waited = False
        while True:
            await self._fill_all(cursors)
            counted = cursors
            if wait_despite_damage and any(isinstance(cursor.error, DamagedObject) for cursor in cursors):
                counted = [cursor for cursor in cursors if not isinstance(cursor.error, DamagedObject)]
                deadline_s = min(deadline_s, begun_s + _DAMAGE_PACE_S)
            timeout_s = deadline_s - loop.time()
            if timeout_s <= 0 or _is_enough(counted, allowance, min_bytes):
                break
            if not waited:
                self.stats.long_polls += 1
                waited = True
            wanted = [
                (cursor.view, cursor.offset) for cursor in cursors if cursor.view is not None and not cursor.is_done()
            ]
            if not await self._wakeups.wait(wanted, timeout_s):
                break
        return [cursor.error or self._result(cursor) for cursor in cursors]

    def read_now(
        self, requests: Sequence[ReadRequest], *, max_bytes: int, min_bytes: int = 1
    ) -> list[ReadResult] | None:
        """The answer of ``read_many`` if it needs only memory; None if it needs a call, a wait, or fails."""
        allowance = Allowance(min(max_bytes, self._options.max_read_bytes))
        cursors = [Cursor(request, allowance) for request in requests]
        for cursor in cursors:
            if not self._fill_now(cursor):
                return None
        if not _is_enough(cursors, allowance, min_bytes):
            return None
        self.stats.reads += len(requests)
        return [self._result(cursor) for cursor in cursors]

    def known_log_start(self, key: PartitionKey) -> int:
        """The value as last read; -1 for a partition that was never read here."""
        view = self._views.get(key)
        return -1 if view is None else view.state.log_start_offset

    async def offset_for_timestamp(self, key: PartitionKey, timestamp_ms: int) -> TimedOffset | None:
        """The first record with this time or a later one, and its time. None if there is none yet.

        Raises PartitionNotFound, NotLeader, DamagedObject, CorruptData, StoreError, MetadataError.
        """
        found = await self._times.first_at(key, timestamp_ms)
        if found is None:
            self._check_end_is_known(key)
        return found

    async def max_timestamp_offset(self, key: PartitionKey) -> TimedOffset | None:
        """The first record among those with the largest time. None for an empty log. Raises as above."""
        found = await self._times.newest(key)
        self._check_end_is_known(key)
        return found

    async def end_offsets(self, key: PartitionKey) -> EndOffsets:
        """Return both ends of the log, read fresh (R16). Raises PartitionNotFound, NotLeader, MetadataError."""
        view = await self._views.fresh(key)
        self._check_end_is_known(key)
        end = self._end(view)
        return EndOffsets(
            log_start_offset=view.state.log_start_offset,
            last_stable_offset=_stable_end(view.state, end),
            high_watermark=end,
        )

    async def close(self) -> None:
        """Close the reader. Long polls end at once, as if their time were up."""
        await self._wakeups.close()
        await self._ahead.close()
        await self._damages.close()
        await self._objects.close()
        await self._entries.close()
        await self._views.close()

    # Filling a cursor: first everything in memory, without an await; then one awaited step at a time.

    async def _fill_all(self, cursors: Sequence[Cursor]) -> None:
        """Fill the cursors in the order of the request. Partitions that are in memory must not use up the answer before
        an earlier one that must be fetched: a reader of a busy partition and an old one would never get the old one.
        """
        left = list(dropwhile(self._fill_now, cursors))
        if not left:
            return
        await self._look_for(left)
        far = [cursor for cursor in left if not self._is_at_hand(cursor)]
        if len(far) == 1:
            await self._fill(far[0])
        elif far:
            async with asyncio.TaskGroup() as group:
                for cursor in far:
                    group.create_task(self._fill(cursor))
        for cursor in left:
            if not self._fill_now(cursor):
                await self._fill(cursor)

    def _is_at_hand(self, cursor: Cursor) -> bool:
        """Whether it can be served from memory. Takes nothing."""
        led = self._led(cursor.key)
        view = self._view(cursor.key, led)
        if cursor.is_done() or view is None:
            return cursor.is_done()
        if led is not None and led.high_watermark <= cursor.offset <= led.visible_end:
            return True
        start, end = self._tail.start_offset(cursor.key), self._tail.end_offset(cursor.key)
        return start is not None and end is not None and start <= cursor.offset < end

    async def _fill(self, cursor: Cursor) -> None:
        stalls = 0
        try:
            while not self._fill_now(cursor):
                before = (cursor.offset, cursor.confirmed)
                await self._fill_more(cursor)
                stalls = stalls + 1 if (cursor.offset, cursor.confirmed) == before else 0
                if stalls > _MAX_STALLS:
                    raise MetadataUnavailable(
                        f"offset {cursor.offset} of {cursor.key} is visible, but neither buffered nor committed",
                        hint="its leadership may be moving; read again",
                    )
        except StreamHouseError as error:
            cursor.fail(error)

    def _fill_now(self, cursor: Cursor) -> bool:
        """Take what is in memory. False if the cursor also needs the metadata store or objects."""
        if cursor.is_done():
            return True
        led = self._led(cursor.key)
        view = self._view(cursor.key, led)
        if view is None:
            return False
        cursor.view = view
        if cursor.is_crowded_out():
            cursor.full = True
            return True
        if cursor.offset < view.state.log_start_offset:
            return bool(cursor.batches)  # trimmed during the wait: the next read gets the error
        end = _end(view, led)
        while cursor.offset < end and self._take_from_memory(cursor, led):
            if cursor.is_done():
                return True
        if cursor.offset != end:
            return cursor.offset > end and bool(cursor.batches)
        if cursor.batches or cursor.confirmed:
            return True
        recent = self._views.is_recent(view)
        if led is not None and not recent:
            self._views.refresh_soon(cursor.key)  # another agent may have taken over and written
        return led is not None or (recent and self._wakeups.listening)

    def _take_from_memory(self, cursor: Cursor, led: LedPartition | None) -> bool:
        """Return False if there was no batch to take."""
        offset = cursor.offset
        found = self._tail.read(cursor.key, offset, cursor.room)
        if found is not None and found.batches:
            if cursor.take(found.batches, found.size_bytes, found.next_offset):
                self.stats.tail_bytes += found.size_bytes
                self.stats.records += found.next_offset - offset
            return True
        if led is None or not led.high_watermark <= cursor.offset < led.visible_end:
            return False
        return self._take_from_buffer(cursor, led)

    def _take_from_buffer(self, cursor: Cursor, led: LedPartition) -> bool:
        offset = cursor.offset
        for batch in led.buffered_from(offset):
            view = byte_view(batch.data).toreadonly()
            if cursor.take((view,), len(view), batch.next_offset):
                self.stats.buffer_bytes += len(view)
            if cursor.full:
                break
        self.stats.records += cursor.offset - offset
        return cursor.full or cursor.offset != offset

    async def _fill_more(self, cursor: Cursor) -> None:
        view = self._view(cursor.key, self._led(cursor.key))
        if view is None or self._is_unsure(cursor, view):
            await self._look_for([cursor])
        elif self._lies_within(cursor, view):
            await self._step(cursor)
        else:
            raise self._out_of_range(cursor, view)

    async def _look_for(self, cursors: Sequence[Cursor]) -> None:
        """Read fresh, in one call, what must not be answered from memory (R16)."""
        unsure = [
            cursor for cursor in cursors if self._is_unsure(cursor, self._view(cursor.key, self._led(cursor.key)))
        ]
        if not unsure:
            return
        found = await self._views.fresh_many(cursor.key for cursor in unsure)
        for cursor in unsure:
            answer = found[cursor.key]
            if isinstance(answer, StreamHouseError):
                cursor.fail(answer)
            cursor.confirmed = True

    async def _step(self, cursor: Cursor) -> None:
        """Take from one block, or step over a range that key compaction emptied (R18)."""
        suspect: set[str] = set()
        while True:
            entry = await self._entries.find(cursor.key, cursor.offset)
            if entry is None:
                return  # trimmed, or not committed yet: what was learned of the partition tells which
            try:
                stretches = await self._objects.stretches(cursor.key, entry, cursor.offset)
                if not stretches:
                    cursor.offset = entry.end_offset + 1
                    return
                block = await self._objects.block(stretches[0])
            except DamagedObject as error:
                if entry.object_key in suspect or len(suspect) >= _MAX_REPLACED:
                    raise await self._damages.declare(cursor.key, error) from error
                suspect.add(entry.object_key)
                self.stats.resolved_again += 1
                self._entries.forget(cursor.key)  # R7: compaction may have replaced it; the next look is fresh
                self._objects.forget_index(entry.object_key)
                continue
            if self._damages:
                self._damages.read_through(cursor.key, entry.object_key, cursor.offset)
            offset = cursor.offset
            taken = block.take(offset, cursor.room)
            if cursor.take(taken.batches, taken.size_bytes, taken.next_offset):
                self.stats.object_bytes += taken.size_bytes
                self.stats.records += taken.next_offset - offset
                self._ahead.stepped(cursor.key, offset, cursor.offset, taken.size_bytes)
                if cursor.offset > stretches[0].end_offset:
                    self._objects.read_through(stretches[0])
            return

    # What is known.

    @property
    def damaged_ranges(self) -> int:
        """Ranges of objects known to be missing or damaged at this time."""
        return len(self._damages)

    def _view(self, key: PartitionKey, led: LedPartition | None) -> PartitionView | None:
        """What is known of the partition. What was known before this agent began to lead it does not count: the
        metadata store may have lost commits in between (R23)."""
        view = self._views.get(key)
        return None if view is not None and led is not None and view.state.leader_epoch < led.epoch else view

    def _led(self, key: PartitionKey) -> LedPartition | None:
        return None if self._leading is None else self._leading.partition(key)

    def _end(self, view: PartitionView) -> int:
        return _end(view, self._led(view.key))

    def _is_unsure(self, cursor: Cursor, view: PartitionView | None) -> bool:
        return view is None or not (cursor.confirmed or self._lies_within(cursor, view))

    def _lies_within(self, cursor: Cursor, view: PartitionView) -> bool:
        return view.state.log_start_offset <= cursor.offset < self._end(view)

    def _end_is_known(self, key: PartitionKey) -> bool:
        """Where the WAL is the durability, only the leader knows what is visible above the watermark."""
        if self._options.durability is Durability.OBJECT or self._leading is None or self._led(key) is not None:
            return True
        view = self._views.get(key)
        return view is not None and view.state.write_mode is WriteMode.LEADERLESS

    def _check_end_is_known(self, key: PartitionKey) -> None:
        if not self._end_is_known(key):
            raise NotLeader(str(key), current_leader=None, hint="its log is being opened; ask again")

    def _out_of_range(self, cursor: Cursor, view: PartitionView) -> StreamHouseError:
        end = self._end(view)
        if cursor.offset > end and not self._end_is_known(cursor.key):
            return NotLeader(str(cursor.key), current_leader=None, hint="its log is being opened; ask again")
        return OffsetOutOfRange(
            f"the log of {cursor.key}",
            offset=cursor.offset,
            log_start_offset=view.state.log_start_offset,
            end_offset=end,
        )

    def _result(self, cursor: Cursor) -> ReadResult:
        view = cursor.view
        assert view is not None  # else it has an error
        if cursor.batches:
            self._views.refresh_if_old(view)
        end = self._end(view)
        return ReadResult(
            batches=cursor.batches,
            next_offset=cursor.offset,
            high_watermark=end,
            log_start_offset=view.state.log_start_offset,
            last_stable_offset=_stable_end(view.state, end),
        )


def _end(view: PartitionView, led: LedPartition | None) -> int:
    """A leader that is fenced and does not know it yet is behind the metadata store; a healthy one never is."""
    watermark = view.state.high_watermark
    return watermark if led is None else max(led.visible_end, watermark)


def _is_enough(cursors: Sequence[Cursor], allowance: Allowance, min_bytes: int) -> bool:
    return (
        allowance.taken >= min_bytes
        or any(cursor.error is not None for cursor in cursors)
        or (bool(cursors) and all(cursor.full or cursor.is_crowded_out() for cursor in cursors))
    )


def _stable_end(state: PartitionState, end: int) -> int:
    """Without open transactions, everything that may be read is stable."""
    return end if state.last_stable_offset >= state.high_watermark else state.last_stable_offset
