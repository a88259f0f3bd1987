"""The idempotent producers of one partition: which batches it has taken, and the answer to a repeat (R9, R21).

No IO, no awaits. The rules are metadata/dedup.py's. This adds what a leader knows and the store does not: batches that
have their offsets and are not committed yet. A repeat of such a batch waits for the original. A client counts
"duplicate" (46) as written, so that answer is given only for batches that are committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import (
    BackPressureRejected,
    DuplicateSequence,
    OutOfOrderSequence,
    StaleProducer,
)
from streamhouse.core.limits import MAX_PRODUCERS_PER_PARTITION
from streamhouse.log.leased.pending import PendingBatch, run_of
from streamhouse.log.leased.windows import ProducerWindows
from streamhouse.metadata.contract import BatchVerdict, ProducerState
from streamhouse.metadata.dedup import ProducerWindow, lies_before
from streamhouse.wire.batch import NO_PRODUCER_ID, BatchHeader

_UNKNOWN: Final = ProducerWindow()
"""The window of a producer that has written nothing here. Never changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The place of the original of a repeated batch."""

    base_offset: int
    pending: PendingBatch | None
    """The batch itself while it is not committed."""


class Idempotence:
    __slots__ = ("_boot_ms", "_by_offset", "_by_producer", "_resume_ms", "forgotten_up_to", "windows")

    def __init__(self) -> None:
        self.windows = ProducerWindows()
        """The known windows by producer id; the producer that wrote last comes last."""
        self.forgotten_up_to = NO_PRODUCER_ID
        """The highest producer id that this partition may have known and forgotten. An unknown producer with a higher
        id has never written here, and starts at sequence 0."""
        self._boot_ms: Callable[[], int] = lambda: 0
        self._resume_ms = 0
        """Before this time, by ``_boot_ms``, a forgotten producer cannot go on. 0: no such time."""
        self._by_offset: dict[int, PendingBatch] = {}
        self._by_producer: dict[int, deque[PendingBatch]] = {}
        """Both hold uncommitted batches. A producer may have more of them than its window holds while flushes are
        slow."""

    def know(self, producers: Iterable[ProducerState]) -> None:
        """Add one page of committed windows, newest first. All pages are added before the first batch is taken."""
        self.windows.load(producers)

    def forgot(self, up_to: int) -> None:
        """Producers with ids up to this one may have written here before and are not known any more."""
        self.forgotten_up_to = max(self.forgotten_up_to, up_to)

    def judge(self, header: BatchHeader, partition: object) -> Original | None:
        """None for the producer's next batch; for a repeat, the place of the original. Raises for a wrong sequence.

        Raises StaleProducer, OutOfOrderSequence, DuplicateSequence, BackPressureRejected.
        """
        producer_id = header.producer_id
        window = self.windows.get(producer_id) or _UNKNOWN
        may_be_forgotten = producer_id <= self.forgotten_up_to
        outcome = window.judge(run_of(header), may_be_forgotten=may_be_forgotten)
        if outcome is None:
            if window is _UNKNOWN and header.base_sequence and self._resume_ms and self._boot_ms() < self._resume_ms:
                raise BackPressureRejected(
                    f"producer {producer_id} on {partition}: its sequence {header.base_sequence} is the first that this"
                    " new leader sees; an earlier one may be on its way"
                )
            return None
        what = f"producer {header.producer_id} on {partition}: sequence {header.base_sequence}"
        match outcome.verdict:
            case BatchVerdict.DUPLICATE:
                return Original(base_offset=outcome.base_offset, pending=self._by_offset.get(outcome.base_offset))
            case BatchVerdict.STALE_PRODUCER:
                raise StaleProducer(f"{what} comes with epoch {header.producer_epoch}, a newer one has written")
            case BatchVerdict.UNKNOWN_PRODUCER:
                raise OutOfOrderSequence(
                    f"{what} is this producer's first batch on the partition and does not start at sequence 0"
                )
        waiting = self._uncommitted(header)
        for batch in waiting:
            same = batch.header.base_sequence == header.base_sequence
            if same and batch.header.record_count == header.record_count:
                return Original(base_offset=batch.base_offset, pending=batch)
        if outcome.verdict is BatchVerdict.OUT_OF_ORDER:
            following = window.next_sequence(header.producer_epoch)
            raise OutOfOrderSequence(f"{what} does not follow the last batch; the next sequence is {following}")
        oldest = waiting[0].header.base_sequence if waiting else None
        if oldest is not None and not lies_before(header.base_sequence, header.record_count, oldest):
            raise BackPressureRejected(f"{what} is part of what waits for its commit; send it again")
        raise DuplicateSequence(f"{what} was written before the last five batches")

    def took(self, batch: PendingBatch) -> None:
        """A batch of an idempotent producer has its offsets."""
        producer_id = batch.header.producer_id
        self._by_offset[batch.base_offset] = batch
        self._by_producer.setdefault(producer_id, deque()).append(batch)
        window = self.windows.pop(producer_id, None) or ProducerWindow()
        window.record(run_of(batch.header), batch.base_offset)
        self.windows[producer_id] = window  # at the end: the dictionary is in order of use
        if len(self.windows) > MAX_PRODUCERS_PER_PARTITION:
            self._evict()

    def committed(self, batches: Iterable[PendingBatch]) -> None:
        """Call this in the order in which they were taken."""
        if not self._by_offset:
            return
        for batch in batches:
            if batch.header.has_producer:
                del self._by_offset[batch.base_offset]
                behind = self._by_producer[batch.header.producer_id]
                behind.popleft()
                if not behind:
                    del self._by_producer[batch.header.producer_id]

    def uncommitted(self, producer_id: int) -> int:
        """How many batches of this producer are not committed yet."""
        return len(self._by_producer.get(producer_id, ()))

    def drop(self) -> None:
        """The leadership has ended: its uncommitted batches are gone, so what the windows say of them is not true."""
        self.windows = ProducerWindows()
        self._by_offset.clear()
        self._by_producer.clear()

    def knows_all_before(self, header: BatchHeader) -> bool:
        """Whether the producer's batches before this one are all known to be taken."""
        window = self.windows.get(header.producer_id)
        if window is None:
            return False
        outcome = window.judge(run_of(header), may_be_forgotten=True)
        return outcome is None or outcome.verdict is BatchVerdict.DUPLICATE

    def led_from(self, boot_ms: Callable[[], int], resume_after_ms: int) -> None:
        """A leadership begins now. For a while, a producer that may be forgotten cannot go on with any sequence.

        The Java client sends its next batches to a new leader while earlier ones are still unanswered at the old one.
        It sends those again, and they must be written first (R21).
        """
        self._boot_ms = boot_ms
        self._resume_ms = boot_ms() + resume_after_ms if resume_after_ms else 0

    def _evict(self) -> None:
        """Forget the producer that has been idle longest and has no uncommitted batch."""
        idle = next((producer_id for producer_id in self.windows if producer_id not in self._by_producer), None)
        if idle is not None:
            del self.windows[idle]
            self.forgot(idle)

    def _uncommitted(self, header: BatchHeader) -> list[PendingBatch]:
        """The uncommitted batches of this producer epoch, oldest first; there may be more than a window holds."""
        return [
            batch
            for batch in self._by_producer.get(header.producer_id, ())
            if batch.header.producer_epoch == header.producer_epoch
        ]
