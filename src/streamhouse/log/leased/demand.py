"""What waits for a flush, all partitions of a log together, kept up to date batch by batch. No IO.

A log may have ten thousand partitions, so the flush loop cannot look at each of them for every batch that arrives.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamhouse.log.flush_policy import WINDOW_REQUESTS, Waiting
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.pending import PendingBatch


class Demand:
    __slots__ = ("_newest_ms", "_oldest_ms", "_sending", "_unlimited", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        """The size of all batches that are in no flush yet."""
        self._oldest_ms: int | None = None
        self._newest_ms = 0
        self._sending: set[tuple[PartitionLog, int]] = set()
        """The producers that wait and may send more, by partition and producer id."""
        self._unlimited = False
        """A client waits that may have any number of batches under way."""

    def add(self, partition: PartitionLog, batch: PendingBatch) -> None:
        self.size_bytes += len(batch.data)
        if not batch.waits_for_commit or batch.done is None:
            return
        self._newest_ms = batch.appended_ms
        if self._oldest_ms is None:
            self._oldest_ms = batch.appended_ms
        if not batch.header.has_producer:
            self._unlimited = True
        elif partition.producers.uncommitted(batch.header.producer_id) < WINDOW_REQUESTS:
            self._sending.add((partition, batch.header.producer_id))
        else:
            self._sending.discard((partition, batch.header.producer_id))

    @property
    def is_waiting(self) -> bool:
        return self._oldest_ms is not None

    @property
    def windows_full(self) -> bool:
        return self._oldest_ms is not None and not self._unlimited and not self._sending

    def took(self, size_bytes: int, left: Iterable[PartitionLog]) -> None:
        """A flush has taken so many bytes. ``left``: the partitions that still have something to flush."""
        self.size_bytes -= size_bytes
        self._sending.clear()
        waiting = [partition.oldest_pending_ms for partition in left if partition.wanted]
        self._oldest_ms = min(waiting, default=None)
        self._unlimited = bool(waiting)  # what is left is too much for one flush: windows do not matter

    def gone(self, partition: PartitionLog) -> None:
        """The partition is not flushed any more, whatever it holds."""
        self.size_bytes -= partition.pending_bytes
        self._sending = {each for each in self._sending if each[0] is not partition}

    def waiting(self) -> Waiting:
        return Waiting(
            size_bytes=self.size_bytes,
            oldest_ms=self._oldest_ms,
            newest_ms=self._newest_ms,
            windows_full=self.windows_full,
        )
