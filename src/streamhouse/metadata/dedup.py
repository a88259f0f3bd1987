"""Idempotent producers: judging a batch against what a producer wrote last. Pure; no IO.

Kafka's rules. A window holds the last PRODUCER_WINDOW batches of one producer epoch on one partition. Sequences wrap at
2³¹-1. A known producer must go on exactly where it stopped; a new epoch starts at 0; a producer the log has forgotten
may start anywhere. A repeat of a batch in the window gets the original's offset, so a retry after a lost reply is
harmless.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamhouse.core.limits import PRODUCER_WINDOW
from streamhouse.metadata.contract.log import BatchOutcome, BatchRun, BatchVerdict, ProducerBatch

SEQUENCE_MODULUS = 2**31


class ProducerWindow:
    """One producer on one partition. Mutable; ``judge`` looks, ``record`` moves it on."""

    __slots__ = ("batches", "producer_epoch")

    def __init__(self, producer_epoch: int = -1, batches: Sequence[ProducerBatch] = ()) -> None:
        self.producer_epoch = producer_epoch
        self.batches = list(batches)

    def judge(self, batch: BatchRun) -> BatchOutcome | None:
        """None when the batch is the next one and may be appended; otherwise what to answer instead."""
        if batch.producer_epoch < self.producer_epoch:
            return BatchOutcome(verdict=BatchVerdict.STALE_PRODUCER)
        if not self.batches:
            return None
        if batch.producer_epoch > self.producer_epoch:
            return None if batch.base_sequence == 0 else BatchOutcome(verdict=BatchVerdict.OUT_OF_ORDER)
        for known in self.batches:
            if known.base_sequence == batch.base_sequence and known.record_count == batch.record_count:
                return BatchOutcome(verdict=BatchVerdict.DUPLICATE, base_offset=known.base_offset)
        last = self.batches[-1]
        expected = (last.base_sequence + last.record_count) % SEQUENCE_MODULUS
        if batch.base_sequence == expected:
            return None
        # Half the sequence space behind is the past, half ahead is a gap.
        behind = (expected - batch.base_sequence) % SEQUENCE_MODULUS
        too_old = behind < SEQUENCE_MODULUS // 2
        return BatchOutcome(verdict=BatchVerdict.DUPLICATE_TOO_OLD if too_old else BatchVerdict.OUT_OF_ORDER)

    def record(self, batch: BatchRun, base_offset: int) -> None:
        """Note an appended batch, whatever its sequence: the judge has spoken, or a leader has."""
        if batch.producer_epoch != self.producer_epoch:
            self.producer_epoch = batch.producer_epoch
            self.batches.clear()
        self.batches.append(
            ProducerBatch(base_sequence=batch.base_sequence, record_count=batch.record_count, base_offset=base_offset)
        )
        del self.batches[:-PRODUCER_WINDOW]
