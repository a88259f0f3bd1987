"""Idempotent producers: judging a batch against what a producer wrote last. Pure; no IO.

A window holds the last PRODUCER_WINDOW batches of one producer epoch on one partition. Sequences wrap at 2³¹-1.

    the producer is unknown         sequence 0 is appended; any other is UNKNOWN_PRODUCER, unless it may be forgotten
    a new epoch                     sequence 0 is appended; any other is OUT_OF_ORDER
    the next sequence               is appended
    a batch of the window again     DUPLICATE, with the original's offset: a retry after a lost reply is harmless
    wholly before the window        DUPLICATE_TOO_OLD: it is known to be written
    anything else                   OUT_OF_ORDER: a gap, or a batch that is only partly known

Why an unknown producer must start at 0 (R21): clients send five batches at once. If batch 0 is refused and batch 1 were
accepted, the retry of batch 0 would lie before the window and be answered "duplicate", which clients count as written.
Its records would be lost. With this rule each epoch's sequences are complete from 0 on, so everything before the window
is written. "Before" means less than half the sequence space before, because further away lies what comes after the
wrap, and it does not look back across the wrap, because a fresh epoch that starts at 0 looks the same.

A producer that was idle for so long that the log forgot it goes on with its next sequence. It has to be accepted, as
Kafka does: on any error some clients fail for good (docs/idempotence.md). Then sequences are not complete from 0 on, so
nothing before the window of such a producer is called DUPLICATE_TOO_OLD.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamhouse.core.limits import PRODUCER_WINDOW
from streamhouse.metadata.contract.log import BatchOutcome, BatchRun, BatchVerdict, ProducerBatch

SEQUENCE_MODULUS = 2**31


def lies_before(base_sequence: int, record_count: int, later_sequence: int) -> bool:
    """Whether all these sequences come before the later one; the module's header says what "before" means."""
    return record_count <= later_sequence - base_sequence < SEQUENCE_MODULUS // 2


class ProducerWindow:
    """One producer on one partition. Mutable; ``judge`` looks, ``record`` moves it on."""

    __slots__ = ("batches", "producer_epoch")

    def __init__(self, producer_epoch: int = -1, batches: Sequence[ProducerBatch] = ()) -> None:
        self.producer_epoch = producer_epoch
        self.batches = list(batches)

    def judge(self, batch: BatchRun, *, may_be_forgotten: bool = False) -> BatchOutcome | None:
        """None when the batch is the next one and may be appended; otherwise what to answer instead.

        ``may_be_forgotten``: the log has forgotten producers, and cannot rule out that this one is among them.
        """
        if batch.producer_epoch < self.producer_epoch:
            return BatchOutcome(verdict=BatchVerdict.STALE_PRODUCER)
        if not self.batches:
            if batch.base_sequence == 0 or may_be_forgotten:
                return None
            return BatchOutcome(verdict=BatchVerdict.UNKNOWN_PRODUCER)
        if batch.producer_epoch > self.producer_epoch:
            return None if batch.base_sequence == 0 else BatchOutcome(verdict=BatchVerdict.OUT_OF_ORDER)
        for known in self.batches:
            if known.base_sequence == batch.base_sequence and known.record_count == batch.record_count:
                return BatchOutcome(verdict=BatchVerdict.DUPLICATE, base_offset=known.base_offset)
        first = self.batches[0]
        if batch.base_sequence == self.next_sequence(batch.producer_epoch):
            return None
        before = lies_before(batch.base_sequence, batch.record_count, first.base_sequence)
        too_old = before and not may_be_forgotten
        return BatchOutcome(verdict=BatchVerdict.DUPLICATE_TOO_OLD if too_old else BatchVerdict.OUT_OF_ORDER)

    def next_sequence(self, producer_epoch: int) -> int:
        """The first sequence of the batch that this epoch of the producer has to send next."""
        if not self.batches or producer_epoch != self.producer_epoch:
            return 0
        last = self.batches[-1]
        return (last.base_sequence + last.record_count) % SEQUENCE_MODULUS

    def record(self, batch: BatchRun, base_offset: int) -> None:
        """Note an appended batch. Its sequence is not checked: ``judge`` or the leader has done that."""
        if batch.producer_epoch != self.producer_epoch:
            self.producer_epoch = batch.producer_epoch
            self.batches.clear()
        self.batches.append(
            ProducerBatch(base_sequence=batch.base_sequence, record_count=batch.record_count, base_offset=base_offset)
        )
        del self.batches[:-PRODUCER_WINDOW]
