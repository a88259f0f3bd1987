"""Batches that have their offsets and wait for their commit: who waits for them, and what the commit lists of them.

No IO, no awaits. A partition (partition.py) keeps its pending batches in order; a flush (pack.py) takes them away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.metadata.contract import BatchRun
from streamhouse.wire.batch import BatchHeader


@dataclass(slots=True, kw_only=True, eq=False)
class PendingBatch:
    """A batch that has its offsets and is not committed yet."""

    base_offset: int
    next_offset: int
    data: bytearray | memoryview
    """The batch with its offset and epoch; it does not change any more."""
    header: BatchHeader
    lsn: int
    acks: int
    appended_ms: int
    timestamp_ms: int
    waits_for_commit: bool
    done: asyncio.Future[None] | None
    """Done when the batch is acknowledged. None afterwards, and for a replayed batch, which has no waiting client: a
    batch lives until its commit, and without the future it is cheaper for the garbage collector."""
    acknowledged: bool = False
    refused: bool = False
    """Its producer was told that it was not written: by this leadership or, for a replayed batch, by an earlier one."""
    repeats: tuple[asyncio.Future[None], ...] = ()
    """One for each client request that sent the batch again meanwhile."""

    def repeat(self) -> asyncio.Future[None]:
        """A future for a request that sent the batch again. It does not depend on the first request's future."""
        future = asyncio.get_running_loop().create_future()
        if self.acknowledged:
            future.set_result(None)
        else:
            self.repeats = (*(each for each in self.repeats if not each.done()), future)
        return future

    def acknowledge(self) -> None:
        self.acknowledged = True
        done, self.done = self.done, None
        if done is not None and not done.done():
            done.set_result(None)
        if self.repeats:
            repeats, self.repeats = self.repeats, ()
            for future in repeats:
                if not future.done():
                    future.set_result(None)

    def fail(self, error: Exception) -> None:
        if self.acknowledged:
            return
        self.refused = self.refused or self.done is not None
        repeats, self.repeats = self.repeats, ()
        for future in repeats if self.done is None else (self.done, *repeats):
            fail(future, error)


def lsns_of(batches: Sequence[PendingBatch]) -> list[int]:
    return [batch.lsn for batch in batches]


# Waiting for an offset.


@dataclass(slots=True, eq=False)
class Waiters:
    """Futures that wait until a partition has reached an offset. A partition has few of them."""

    waiting: dict[asyncio.Future[None], int] = field(default_factory=dict)

    def wake(self, end_offset: int) -> None:
        for future, offset in list(self.waiting.items()):
            if offset <= end_offset:
                del self.waiting[future]
                if not future.done():
                    future.set_result(None)

    def fail(self, error: Exception) -> None:
        for future in self.waiting:
            fail(future, error)
        self.waiting.clear()


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Also marks the error as retrieved: if the producer went away, asyncio must not log "never retrieved"."""
    if not future.done():
        future.set_exception(error)
        future.exception()


# What the commit lists.


class Runs:
    """What the commit lists of a chunk: each batch of an idempotent producer by itself, and the sum of the others
    between them, because a flush may hold thousands of small batches."""

    __slots__ = ("_done", "byte_length", "max_ms", "min_ms", "record_count")

    def __init__(self) -> None:
        self._done: list[BatchRun] = []
        self.record_count = self.byte_length = self.min_ms = self.max_ms = 0

    def add(self, header: BatchHeader) -> None:
        if header.has_producer:
            self._close()
            self._done.append(run_of(header))
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


def run_of(header: BatchHeader) -> BatchRun:
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
