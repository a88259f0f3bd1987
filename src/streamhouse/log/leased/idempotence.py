"""Which batches of idempotent producers a partition has seen, and what it says to a repeat (R9). No IO, no awaits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from streamhouse.core.errors import BackPressureRejected, DuplicateSequence, OutOfOrderSequence, StaleProducer
from streamhouse.core.limits import MAX_PRODUCERS_PER_PARTITION
from streamhouse.log.leased.pending import Pending
from streamhouse.log.leased.runs import run_of
from streamhouse.log.leased.windows import ProducerWindows
from streamhouse.metadata.contract import BatchVerdict, ProducerState
from streamhouse.metadata.dedup import SEQUENCE_MODULUS, ProducerWindow
from streamhouse.wire.batch import BatchHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """Where a repeated batch stands already."""

    base_offset: int
    pending: Pending | None
    """The batch itself while it is not committed."""


class Idempotence:
    __slots__ = ("_by_offset", "_by_producer", "has_forgotten", "windows")

    def __init__(self) -> None:
        self.windows = ProducerWindows()
        """By producer id, those it would recognise; the one that wrote last comes last."""
        self.has_forgotten = False
        """True when a producer that is not in ``windows`` may have written here: it expired, or was one too many."""
        self._by_offset: dict[int, Pending] = {}
        self._by_producer: dict[int, deque[Pending]] = {}
        """Both of the uncommitted: a producer has more of them than its window holds, while flushes are slow."""

    def know(self, producers: Iterable[ProducerState], *, forgotten: bool = False) -> None:
        """One page of what they have committed so far, newest first; all pages come before anything is taken.

        ``forgotten``: there were others.
        """
        self.windows.load(producers)
        self.has_forgotten = self.has_forgotten or forgotten

    def judge(self, header: BatchHeader, partition: object) -> Original | None:
        """None for the producer's next batch; where it stands already for a repeat. Raises for what cannot be taken."""
        window = self.windows.get(header.producer_id)
        if window is None:
            return None
        outcome = window.judge(run_of(header))
        if outcome is None:
            return None
        what = f"producer {header.producer_id} on {partition}: sequence {header.base_sequence}"
        match outcome.verdict:
            case BatchVerdict.DUPLICATE:
                return Original(base_offset=outcome.base_offset, pending=self._by_offset.get(outcome.base_offset))
            case BatchVerdict.STALE_PRODUCER:
                raise StaleProducer(f"{what} comes with epoch {header.producer_epoch}, a newer one has written")
            case BatchVerdict.DUPLICATE_TOO_OLD:
                return self._beyond_the_window(header, what)
        raise OutOfOrderSequence(f"{what} does not follow the last one")

    def took(self, batch: Pending) -> None:
        """A batch of an idempotent producer has its offsets."""
        producer_id = batch.header.producer_id
        self._by_offset[batch.base_offset] = batch
        self._by_producer.setdefault(producer_id, deque()).append(batch)
        window = self.windows.pop(producer_id, None) or ProducerWindow()
        window.record(run_of(batch.header), batch.base_offset)
        self.windows[producer_id] = window  # at the end: the dictionary is in order of use
        if len(self.windows) > MAX_PRODUCERS_PER_PARTITION:
            del self.windows[next(iter(self.windows))]
            self.has_forgotten = True

    def committed(self, batches: Iterable[Pending]) -> None:
        """In the order in which they were taken."""
        if not self._by_offset:
            return
        for batch in batches:
            if batch.header.has_producer:
                del self._by_offset[batch.base_offset]
                behind = self._by_producer[batch.header.producer_id]
                behind.popleft()
                if not behind:
                    del self._by_producer[batch.header.producer_id]

    def drop(self) -> None:
        """The leadership is over; nothing that is uncommitted will be."""
        self._by_offset.clear()
        self._by_producer.clear()

    def _beyond_the_window(self, header: BatchHeader, what: str) -> Original:
        """Clients take 46 for "written": it may be said only of what is committed."""
        behind = [
            batch
            for batch in self._by_producer.get(header.producer_id, ())
            if batch.header.producer_epoch == header.producer_epoch
        ]
        for batch in behind:
            same = batch.header.base_sequence == header.base_sequence
            if same and batch.header.record_count == header.record_count:
                return Original(base_offset=batch.base_offset, pending=batch)
        if behind and not _ends_before(header, behind[0].header):
            raise BackPressureRejected(f"{what} is among what waits for its commit; send it again")
        raise DuplicateSequence(f"{what} was written long ago")


def _ends_before(header: BatchHeader, later: BatchHeader) -> bool:
    """Whether all its sequences come before the other's; half the sequence space behind is the past."""
    gap = (later.base_sequence - header.base_sequence - header.record_count) % SEQUENCE_MODULUS
    return gap < SEQUENCE_MODULUS // 2
