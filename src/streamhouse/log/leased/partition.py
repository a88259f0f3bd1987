"""One partition under its leader: offsets, buffer, idempotent producers, and who waits for what. No IO, no awaits.

    next_offset ──► what the next batch gets
         │   pending    appended, not yet part of a flush
         │   frozen     chunks of flushes under way, oldest first
    high_watermark      committed in the metadata

``synced_end`` runs between the two: up to there the WAL holds everything. What readers may see is ``visible_end``: the
synced end where the WAL is the durability, else the watermark. Batches leave the buffer only by a commit, in order, or
all at once when the leadership ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from streamhouse.core.errors import (
    BackPressureRejected,
    DuplicateSequence,
    NotLeader,
    OutOfOrderSequence,
    StaleProducer,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_PRODUCERS_PER_PARTITION
from streamhouse.core.topic_config import TopicConfig
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.log.leased.seams import LeaseGuard
from streamhouse.log.leased.waiters import Waiters, fail
from streamhouse.metadata.contract import BatchRun, BatchVerdict, ProducerState
from streamhouse.metadata.dedup import SEQUENCE_MODULUS, ProducerWindow
from streamhouse.wire.batch import NO_PRODUCER_ID, BatchHeader


class Phase(StrEnum):
    OPENING = "opening"
    OPEN = "open"
    ADOPTING = "adopting"
    """Behind a barrier: what comes next in the log is not known yet, so no write is taken (R13)."""
    CLOSING = "closing"
    """Takes no more writes; what is buffered still goes out."""
    DROPPED = "dropped"


_DROPPED: Final = Phase.DROPPED  # looked up for every batch, which takes longer than the comparison


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """A batch that has its offsets and is not committed yet."""

    base_offset: int
    next_offset: int
    data: bytearray | memoryview
    """The batch with offset and epoch patched in; nobody changes it from here on."""
    header: BatchHeader
    lsn: int
    acks: int
    appended_ms: int
    timestamp_ms: int
    waits_for_commit: bool
    done: asyncio.Future[None] | None
    """None for a replayed batch: nobody waits."""
    acknowledged: bool = False
    refused: bool = False
    """Its producer was told that it was not written: now, or, of a replayed batch, by an earlier leadership."""
    repeats: list[asyncio.Future[None]] = field(default_factory=list)
    """Who sent it again meanwhile."""

    def repeat(self) -> asyncio.Future[None]:
        """For one who sent it again: done with the batch, whatever becomes of those who waited before."""
        future = asyncio.get_running_loop().create_future()
        if self.acknowledged:
            future.set_result(None)
        else:
            self.repeats = [each for each in self.repeats if not each.done()]
            self.repeats.append(future)
        return future

    def acknowledge(self) -> None:
        self.acknowledged = True
        if not self.repeats:
            if self.done is not None and not self.done.done():
                self.done.set_result(None)
            return
        for future in self._waiting():
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        if self.acknowledged:
            return
        self.refused = self.refused or self.done is not None
        for future in self._waiting():
            fail(future, error)

    def _waiting(self) -> list[asyncio.Future[None]]:
        repeats, self.repeats = self.repeats, []
        return repeats if self.done is None else [self.done, *repeats]


@dataclass(slots=True, kw_only=True, eq=False)
class Chunk:
    """What one flush takes of one partition: consecutive batches."""

    partition: PartitionLog
    batches: list[Pending]
    size_bytes: int

    @property
    def base_offset(self) -> int:
        return self.batches[0].base_offset

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """Where a repeated batch stands already."""

    base_offset: int
    pending: Pending | None
    """The batch itself while it is not committed."""


class PartitionLog:
    def __init__(
        self,
        *,
        key: PartitionKey,
        topic: str,
        config: TopicConfig,
        epoch: int,
        high_watermark: int,
        guard: LeaseGuard,
        visible_when_synced: bool,
    ) -> None:
        self.key = key
        self.topic = topic
        self.config = config
        self.epoch = epoch
        self.guard = guard
        self.phase = Phase.OPENING
        self.next_offset = high_watermark
        self.high_watermark = high_watermark
        self.synced_end = high_watermark
        self.pending: deque[Pending] = deque()
        self.pending_bytes = 0
        self.dirty = False
        """The flusher has it on its list."""
        self.frozen: deque[Chunk] = deque()
        self.wanted = False
        """Somebody waits for a commit of what is pending."""
        self.urgent = False
        """… and must not wait for the flush interval either."""
        self.barrier_over: asyncio.Future[None] | None = None
        """While there is a barrier: done at its end."""
        self._visible_when_synced = visible_when_synced
        self._windows: dict[int, ProducerWindow] = {}
        self._uncommitted: dict[int, Pending] = {}
        self._producing: dict[int, deque[Pending]] = {}
        """By producer id, of the uncommitted: more than its window holds, while flushes are slow."""
        self._visible_waiters = Waiters()
        self._commit_waiters = Waiters()

    def __str__(self) -> str:
        return f"{self.topic}/{self.key.partition}"

    @property
    def visible_end(self) -> int:
        return max(self.synced_end, self.high_watermark) if self._visible_when_synced else self.high_watermark

    @property
    def oldest_pending_ms(self) -> int:
        return self.pending[0].appended_ms

    @property
    def readers_waiting(self) -> bool:
        return bool(self._visible_waiters.waiting)

    def not_leader(self) -> NotLeader:
        return NotLeader(str(self), current_leader=None)

    def not_open(self) -> NotLeader | BackPressureRejected:
        """Why it takes no write."""
        if self.phase is Phase.ADOPTING and self.guard.valid():
            return BackPressureRejected(f"{self}: uploaded batches are being put into its log; send again")
        return self.not_leader()

    def know_producers(self, producers: Iterable[ProducerState]) -> None:
        """What they have committed so far; before anything is taken (R9)."""
        self._windows = {state.producer_id: ProducerWindow(state.producer_epoch, state.batches) for state in producers}

    def producers(self) -> Iterable[tuple[int, ProducerWindow]]:
        """Those it would recognise, by producer id; the one that wrote last comes last."""
        return self._windows.items()

    def judge(self, header: BatchHeader) -> Original | None:
        """None for the producer's next batch; where it stands already for a repeat. Raises for what cannot be taken."""
        window = self._windows.get(header.producer_id)
        if window is None:
            return None
        outcome = window.judge(_sequence_of(header))
        if outcome is None:
            return None
        what = f"producer {header.producer_id} on {self}: sequence {header.base_sequence}"
        match outcome.verdict:
            case BatchVerdict.DUPLICATE:
                return Original(base_offset=outcome.base_offset, pending=self._uncommitted.get(outcome.base_offset))
            case BatchVerdict.STALE_PRODUCER:
                raise StaleProducer(f"{what} comes with epoch {header.producer_epoch}, a newer one has written")
            case BatchVerdict.DUPLICATE_TOO_OLD:
                return self._beyond_the_window(header, what)
        raise OutOfOrderSequence(f"{what} does not follow the last one")

    def _beyond_the_window(self, header: BatchHeader, what: str) -> Original:
        """Clients take 46 for "written": it may be said only of what is committed (R9)."""
        behind = [
            batch
            for batch in self._producing.get(header.producer_id, ())
            if batch.header.producer_epoch == header.producer_epoch
        ]
        for batch in behind:
            same = batch.header.base_sequence == header.base_sequence
            if same and batch.header.record_count == header.record_count:
                return Original(base_offset=batch.base_offset, pending=batch)
        if behind and not _ends_before(header, behind[0].header):
            raise BackPressureRejected(f"{what} is among what waits for its commit; send it again")
        raise DuplicateSequence(f"{what} was written long ago")

    def take(self, batch: Pending) -> None:
        """The one place where the log grows. Everything that could refuse it has been asked before (R11)."""
        assert batch.base_offset == self.next_offset
        self.next_offset = batch.next_offset
        self.pending.append(batch)
        self.pending_bytes += len(batch.data)
        if batch.header.producer_id > NO_PRODUCER_ID:
            self._uncommitted[batch.base_offset] = batch
            self._remember(batch)
        if batch.waits_for_commit or self._visible_waiters.waiting:
            self.wanted = True

    def synced(self, batch: Pending) -> None:
        """The WAL holds it. Called in the order of appends."""
        if self.phase is _DROPPED:
            return
        if batch.next_offset > self.synced_end:
            self.synced_end = batch.next_offset
        if not batch.waits_for_commit:
            batch.acknowledge()
        if self._visible_when_synced and self._visible_waiters.waiting:
            self._visible_waiters.wake(self.visible_end)

    def freeze(self, max_bytes: int) -> Chunk:
        """Move pending batches, at least one and up to ``max_bytes``, into a chunk."""
        if self.pending_bytes <= max_bytes:
            taken, size = list(self.pending), self.pending_bytes
            self.pending.clear()
        else:
            taken = [self.pending.popleft()]
            size = taken[0].header.size
            while self.pending and size + self.pending[0].header.size <= max_bytes:
                taken.append(self.pending.popleft())
                size += taken[-1].header.size
        self.pending_bytes -= size
        if not self.pending:
            self.wanted = self.urgent = False
        chunk = Chunk(partition=self, batches=taken, size_bytes=size)
        self.frozen.append(chunk)
        return chunk

    def committed(self, chunk: Chunk) -> None:
        """The metadata holds it. Chunks are committed in the order in which they were frozen."""
        first = self.frozen.popleft()
        assert first is chunk
        self.high_watermark = chunk.next_offset
        if self._producing:
            self._no_longer_producing(chunk.batches)
        for batch in chunk.batches:
            if batch.header.has_producer:
                del self._uncommitted[batch.base_offset]
            if not batch.acknowledged:
                batch.acknowledge()
        self._commit_waiters.wake(self.high_watermark)
        self._visible_waiters.wake(self.visible_end)

    def grew_outside(self, next_offset: int) -> None:
        """Records that were never in the buffer, which is empty, were committed at the end of the log."""
        assert self.next_offset == self.high_watermark <= next_offset
        self.next_offset = self.high_watermark = self.synced_end = next_offset
        self._commit_waiters.wake(next_offset)
        self._visible_waiters.wake(next_offset)

    def drop(self, error: Exception) -> list[Pending]:
        """End this leadership at once: every waiter fails, in order. Returns what was not committed."""
        self.phase = Phase.DROPPED
        left = self.uncommitted()
        self.frozen.clear()
        self.pending.clear()
        self.pending_bytes = 0
        self._uncommitted.clear()
        self._producing.clear()
        for batch in left:
            batch.fail(error)
        self._commit_waiters.fail(error)
        self._visible_waiters.fail(error)
        return left

    def uncommitted(self) -> list[Pending]:
        """What has its offsets and is not in the log yet, in order."""
        return [batch for chunk in self.frozen for batch in chunk.batches] + list(self.pending)

    def buffered_from(self, offset: int) -> Iterator[Pending]:
        """What readers may see and the metadata does not have yet, from the batch that holds ``offset`` on."""
        end = self.visible_end
        for source in (*(chunk.batches for chunk in self.frozen), self.pending):
            for batch in source:
                if batch.next_offset > end:
                    return
                if batch.next_offset > offset:
                    yield batch

    def wait_visible(self, beyond_offset: int) -> asyncio.Future[None]:
        """Done once a record at ``beyond_offset`` can be read."""
        future = self._wait(self._visible_waiters, beyond_offset + 1, self.visible_end)
        if not future.done() and self.pending:
            self.wanted = True
        return future

    def wait_committed(self, end_offset: int) -> asyncio.Future[None]:
        return self._wait(self._commit_waiters, end_offset, self.high_watermark)

    def forget_waiter(self, future: asyncio.Future[None]) -> None:
        self._visible_waiters.waiting.pop(future, None)
        self._commit_waiters.waiting.pop(future, None)

    def _wait(self, waiters: Waiters, offset: int, reached: int) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()
        if self.phase is Phase.DROPPED:
            fail(future, self.not_leader())
        elif offset <= reached:
            future.set_result(None)
        else:
            waiters.waiting[future] = offset
        return future

    def _remember(self, batch: Pending) -> None:
        self._producing.setdefault(batch.header.producer_id, deque()).append(batch)
        window = self._windows.pop(batch.header.producer_id, None) or ProducerWindow()
        window.record(_sequence_of(batch.header), batch.base_offset)
        self._windows[batch.header.producer_id] = window  # at the end: the dictionary is in order of use
        if len(self._windows) > MAX_PRODUCERS_PER_PARTITION:
            del self._windows[next(iter(self._windows))]

    def _no_longer_producing(self, batches: Iterable[Pending]) -> None:
        for batch in batches:
            if batch.header.has_producer:
                behind = self._producing[batch.header.producer_id]
                behind.popleft()
                if not behind:
                    del self._producing[batch.header.producer_id]


class Runs:
    """What the commit lists: each producer's batches one by one, what lies between them summed up, because a flush may
    hold thousands of small ones.
    """

    __slots__ = ("_done", "byte_length", "max_ms", "min_ms", "record_count")

    def __init__(self) -> None:
        self._done: list[BatchRun] = []
        self.record_count = self.byte_length = self.min_ms = self.max_ms = 0

    def add(self, header: BatchHeader) -> None:
        if header.has_producer:
            self._close()
            self._done.append(_sequence_of(header))
            return
        smallest_ms, largest_ms = declared_times_ms(header)
        if self.record_count:
            smallest_ms, largest_ms = min(smallest_ms, self.min_ms), max(largest_ms, self.max_ms)
        self.min_ms, self.max_ms = smallest_ms, largest_ms
        self.record_count += header.record_count
        self.byte_length += header.size

    def finish(self) -> tuple[BatchRun, ...]:
        self._close()
        return tuple(self._done)

    def _close(self) -> None:
        if self.record_count:
            self._done.append(
                BatchRun(
                    record_count=self.record_count,
                    byte_length=self.byte_length,
                    min_timestamp_ms=self.min_ms,
                    max_timestamp_ms=self.max_ms,
                )
            )
            self.record_count = self.byte_length = 0


def _ends_before(header: BatchHeader, later: BatchHeader) -> bool:
    """Whether all its sequences come before the other's; half the sequence space behind is the past."""
    gap = (later.base_sequence - header.base_sequence - header.record_count) % SEQUENCE_MODULUS
    return gap < SEQUENCE_MODULUS // 2


def _sequence_of(header: BatchHeader) -> BatchRun:
    smallest_ms, largest_ms = declared_times_ms(header)
    return BatchRun(
        record_count=header.record_count,
        byte_length=header.size,
        min_timestamp_ms=smallest_ms,
        max_timestamp_ms=largest_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def lsns_of(batches: Sequence[Pending]) -> list[int]:
    return [batch.lsn for batch in batches]
