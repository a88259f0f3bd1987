"""The state of one partition at its leader: offsets, buffer, idempotent producers and waiters. No IO, no awaits.

    next_offset ──► what the next batch gets
         │   pending    appended, not yet part of a flush
         │   frozen     chunks of flushes under way, oldest first
    high_watermark      committed in the metadata

``synced_end`` lies between the two: the WAL holds everything below it. Readers see what lies below ``visible_end``: the
synced end where the WAL is the durability, else the watermark. Batches leave the buffer by a commit, in order, or all
at once when the leadership ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from streamhouse.core.errors import BackPressureRejected, NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.core.topic_config import TopicConfig
from streamhouse.log.leased.idempotence import Idempotence
from streamhouse.log.leased.pending import PendingBatch, Waiters, fail
from streamhouse.log.leased.protocols import WriteGuard
from streamhouse.wire.batch import NO_PRODUCER_ID


class Phase(StrEnum):
    OPENING = "opening"
    OPEN = "open"
    ADOPTING = "adopting"
    """Behind a barrier: the next offset is not known yet, so no write is taken (R13)."""
    CLOSING = "closing"
    """Takes no more writes; what is buffered is still flushed."""
    DROPPED = "dropped"


_DROPPED: Final = Phase.DROPPED  # looked up for every batch, which takes longer than the comparison


@dataclass(slots=True, kw_only=True, eq=False)
class Chunk:
    """The consecutive batches of one partition that one flush takes."""

    partition: PartitionLog
    batches: list[PendingBatch]
    size_bytes: int

    @property
    def base_offset(self) -> int:
        return self.batches[0].base_offset

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset


class PartitionLog:
    def __init__(
        self,
        *,
        key: PartitionKey,
        topic: str,
        config: TopicConfig,
        epoch: int,
        high_watermark: int,
        guard: WriteGuard,
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
        self.pending: deque[PendingBatch] = deque()
        self.pending_bytes = 0
        self.dirty = False
        """The flusher has it in its list."""
        self.frozen: deque[Chunk] = deque()
        self.wanted = False
        """A client or reader waits for the commit of what is pending."""
        self.urgent = False
        """It must be flushed at once, without waiting for the flush interval."""
        self.barrier_over: asyncio.Future[None] | None = None
        """During a barrier: a future that is done at its end."""
        self._visible_when_synced = visible_when_synced
        self.producers = Idempotence()
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
        """The error for a write that is not taken."""
        if self.phase is Phase.ADOPTING and self.guard.valid():
            return BackPressureRejected(f"{self}: uploaded batches are being put into its log; send again")
        return self.not_leader()

    def take(self, batch: PendingBatch) -> None:
        """The only place where the log grows. Every check has passed before (R11)."""
        assert batch.base_offset == self.next_offset
        self.next_offset = batch.next_offset
        self.pending.append(batch)
        self.pending_bytes += len(batch.data)
        if batch.header.producer_id > NO_PRODUCER_ID:
            self.producers.took(batch)
        if batch.waits_for_commit or self._visible_waiters.waiting:
            self.wanted = True

    def synced(self, batch: PendingBatch) -> None:
        """The WAL has synced it. Called in the order of appends."""
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
        """The metadata store has committed it. Chunks are committed in the order in which they were frozen."""
        first = self.frozen.popleft()
        assert first is chunk
        self.high_watermark = chunk.next_offset
        self.producers.committed(chunk.batches)
        for batch in chunk.batches:
            if not batch.acknowledged:
                batch.acknowledge()
        self._commit_waiters.wake(self.high_watermark)
        self._visible_waiters.wake(self.visible_end)

    def grew_outside(self, next_offset: int) -> None:
        """Records that were never in the buffer were committed at the end of the log. The buffer is empty."""
        assert self.next_offset == self.high_watermark <= next_offset
        self.next_offset = self.high_watermark = self.synced_end = next_offset
        self._commit_waiters.wake(next_offset)
        self._visible_waiters.wake(next_offset)

    def drop(self, error: Exception) -> list[PendingBatch]:
        """End this leadership at once: every waiter fails, in order. Returns what was not committed."""
        self.phase = Phase.DROPPED
        left = self.uncommitted()
        self.frozen.clear()
        self.pending.clear()
        self.pending_bytes = 0
        self.producers.drop()
        for batch in left:
            batch.fail(error)
        self._commit_waiters.fail(error)
        self._visible_waiters.fail(error)
        return left

    def uncommitted(self) -> list[PendingBatch]:
        """The batches that have their offsets and are not committed, in order."""
        return [batch for chunk in self.frozen for batch in chunk.batches] + list(self.pending)

    def buffered_from(self, offset: int) -> Iterator[PendingBatch]:
        """Batches that readers may see and that are not committed yet, from the one with ``offset`` on."""
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
