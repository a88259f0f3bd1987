"""What a commit says of its batches. Pure."""

from __future__ import annotations

from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.metadata.contract import BatchRun
from streamhouse.wire.batch import BatchHeader


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
