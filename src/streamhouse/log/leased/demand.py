"""What waits for the next blob, all small partitions of a log together, kept up to date batch by batch. No IO.

A log may have ten thousand partitions, so the flush loop cannot look at each of them for every batch that arrives. It
looks at them after a flush, or when one has left without a flush.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamhouse.log.flush_policy import WINDOW_REQUESTS, Waiting
from streamhouse.log.leased.partition import PartitionLog
from streamhouse.log.leased.pending import PendingBatch


class Demand:
    __slots__ = ("_is_stale", "_newest_ms", "_oldest_ms", "_sending", "_unlimited", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        """The size of all batches that are in no flush yet."""
        self._oldest_ms: int | None = None
        self._newest_ms = 0
        self._sending: dict[PartitionLog, set[int]] = {}
        """The producers that wait and may send more, by partition."""
        self._unlimited = False
        """A client waits that may have any number of batches under way."""
        self._is_stale = False
        """The batch that has waited longest may be gone."""

    def add(self, partition: PartitionLog, batch: PendingBatch) -> None:
        """A batch was added to a partition that is counted here."""
        self.size_bytes += len(batch.data)
        if not batch.waits_for_commit or batch.done is None:
            return
        self._newest_ms = batch.appended_ms
        if self._oldest_ms is None:
            self._oldest_ms = batch.appended_ms
        if not batch.header.has_producer:
            self._unlimited = True
            return
        producer_id = batch.header.producer_id
        if partition.producers.uncommitted(producer_id) < WINDOW_REQUESTS:
            self._sending.setdefault(partition, set()).add(producer_id)
        elif (sending := self._sending.get(partition)) is not None:
            sending.discard(producer_id)
            if not sending:
                del self._sending[partition]

    def put_back(self, partition: PartitionLog) -> None:
        """Count a partition with all that it holds."""
        self.size_bytes += partition.pending_bytes
        self._newest_ms = max(self._newest_ms, partition.pending[-1].appended_ms)
        self._is_stale = True

    def remove(self, partition: PartitionLog, size_bytes: int) -> None:
        """These bytes of a partition wait for no blob any more."""
        self.size_bytes -= size_bytes
        self._sending.pop(partition, None)
        self._is_stale = self.size_bytes > 0
        if not self.size_bytes:
            self._oldest_ms = None
            self._unlimited = False

    @property
    def is_waiting(self) -> bool:
        return self._oldest_ms is not None

    @property
    def windows_full(self) -> bool:
        return self._oldest_ms is not None and not self._unlimited and not self._sending

    def waiting(self, partitions: Iterable[PartitionLog]) -> Waiting:
        """``partitions``: all that are counted here."""
        if self._is_stale:
            self._is_stale = False
            since = [oldest for each in partitions if (oldest := _waits_since_ms(each)) is not None]
            self._oldest_ms = min(since, default=None)
            self._unlimited = bool(since)  # not known: then clients count as sending until they are quiet
        return Waiting(
            size_bytes=self.size_bytes,
            oldest_ms=self._oldest_ms,
            newest_ms=self._newest_ms,
            windows_full=self.windows_full,
        )


def _waits_since_ms(partition: PartitionLog) -> int | None:
    """When the oldest batch arrived that a client waits for."""
    if not partition.wanted:
        return None
    return next((batch.appended_ms for batch in partition.pending if batch.waits_for_commit), None)
