"""Idempotent producers, judged: R9 and R14 without a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.limits import PRODUCER_WINDOW
from streamhouse.metadata.contract import BatchRun, BatchVerdict, ProducerBatch
from streamhouse.metadata.dedup import SEQUENCE_MODULUS, ProducerWindow


def batch(sequence: int, count: int = 1, epoch: int = 0) -> BatchRun:
    return BatchRun(
        record_count=count,
        byte_length=10,
        min_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=1,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def window_of(*batches: tuple[int, int], epoch: int = 0) -> ProducerWindow:
    """A window that has taken these (sequence, count) batches, at offsets from 0 on."""
    window = ProducerWindow()
    offset = 0
    for sequence, count in batches:
        window.record(batch(sequence, count, epoch), offset)
        offset += count
    return window


def verdict(window: ProducerWindow, probe: BatchRun) -> BatchVerdict | None:
    outcome = window.judge(probe)
    return outcome.verdict if outcome else None


def test_r21_an_unknown_producer_starts_at_sequence_0() -> None:
    assert ProducerWindow().judge(batch(0)) is None


@pytest.mark.parametrize("sequence", [1, 7, SEQUENCE_MODULUS - 1])
def test_r21_any_other_first_sequence_is_told_apart_from_a_gap(sequence: int) -> None:
    assert verdict(ProducerWindow(), batch(sequence)) is BatchVerdict.UNKNOWN_PRODUCER


def test_r21_a_producer_that_may_be_forgotten_goes_on_anywhere_and_nothing_before_is_called_written() -> None:
    window = ProducerWindow()
    assert window.judge(batch(70), may_be_forgotten=True) is None
    for sequence in range(70, 80):
        window.record(batch(sequence), sequence)
    outcome = window.judge(batch(69), may_be_forgotten=True)
    assert outcome is not None
    assert outcome.verdict is BatchVerdict.OUT_OF_ORDER


def test_r21_a_batch_before_the_first_of_an_epoch_is_not_called_written() -> None:
    """2³¹-1 comes before 0 only after a wrap; this epoch has just begun."""
    window = window_of((0, 1))
    assert verdict(window, batch(SEQUENCE_MODULUS - 1)) is BatchVerdict.OUT_OF_ORDER


@pytest.mark.parametrize(("sequence", "count"), [(1, 1), (1, 2), (2, 5), (9, 3), (0, 12), (4, 1)])
def test_r21_a_batch_that_is_only_partly_known_is_not_called_written(sequence: int, count: int) -> None:
    """It shares sequences with known batches and is none of them: its records may be others, or partly new."""
    window = window_of(*[(first, 2) for first in range(0, 10, 2)])
    assert verdict(window, batch(sequence, count)) is BatchVerdict.OUT_OF_ORDER


def test_r21_a_batch_that_reaches_from_before_the_window_into_it_is_not_called_written() -> None:
    window = window_of(*[(index, 1) for index in range(PRODUCER_WINDOW + 2)])
    assert verdict(window, batch(0, 2)) is BatchVerdict.DUPLICATE_TOO_OLD
    assert verdict(window, batch(0, 3)) is BatchVerdict.OUT_OF_ORDER


def test_the_next_sequence_is_appended() -> None:
    assert window_of((0, 3), (3, 2)).judge(batch(5, 4)) is None


def test_r14_a_repeat_gets_the_original_s_offset() -> None:
    outcome = window_of((0, 3), (3, 2)).judge(batch(3, 2))
    assert outcome is not None
    assert (outcome.verdict, outcome.base_offset) == (BatchVerdict.DUPLICATE, 3)


def test_r9_a_gap_after_a_known_sequence_is_out_of_order() -> None:
    window = window_of((0, 3))
    assert verdict(window, batch(4)) is BatchVerdict.OUT_OF_ORDER
    assert verdict(window, batch(1000)) is BatchVerdict.OUT_OF_ORDER


def test_r9_an_older_producer_epoch_is_stale() -> None:
    assert verdict(window_of((0, 1), epoch=3), batch(1, epoch=2)) is BatchVerdict.STALE_PRODUCER


def test_a_new_epoch_starts_at_0_and_forgets_the_old_batches() -> None:
    window = window_of((0, 1), (1, 1), epoch=3)
    assert verdict(window, batch(2, epoch=4)) is BatchVerdict.OUT_OF_ORDER
    assert window.judge(batch(0, epoch=4)) is None
    window.record(batch(0, epoch=4), 50)
    assert window.batches == [ProducerBatch(base_sequence=0, record_count=1, base_offset=50)]
    assert verdict(window, batch(1, epoch=3)) is BatchVerdict.STALE_PRODUCER


def test_the_window_holds_five_and_what_fell_out_is_too_old() -> None:
    window = window_of(*[(index, 1) for index in range(PRODUCER_WINDOW + 2)])
    assert [one.base_sequence for one in window.batches] == [2, 3, 4, 5, 6]
    assert verdict(window, batch(2)) is BatchVerdict.DUPLICATE
    assert verdict(window, batch(1)) is BatchVerdict.DUPLICATE_TOO_OLD


def test_a_known_sequence_with_another_count_is_no_duplicate() -> None:
    """Answering it with the original's offsets would acknowledge records that are not in the log."""
    assert verdict(window_of((0, 3)), batch(0, 2)) is BatchVerdict.OUT_OF_ORDER


def test_sequences_wrap_after_2_31_less_1() -> None:
    window = window_of((SEQUENCE_MODULUS - 2, 2))
    assert window.judge(batch(0)) is None
    assert verdict(window, batch(1)) is BatchVerdict.OUT_OF_ORDER
    assert verdict(window, batch(SEQUENCE_MODULUS - 2, 2)) is BatchVerdict.DUPLICATE
    assert verdict(window, batch(SEQUENCE_MODULUS - 3, 1)) is BatchVerdict.DUPLICATE_TOO_OLD
    window.record(batch(0), 2)
    assert verdict(window, batch(SEQUENCE_MODULUS - 2, 2)) is BatchVerdict.DUPLICATE


def test_a_batch_may_wrap_in_its_middle() -> None:
    assert window_of((SEQUENCE_MODULUS - 1, 3)).judge(batch(2)) is None


@given(
    counts=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
    retries=st.lists(st.integers(0, 20), max_size=8),
)
def test_r9_a_producer_that_retries_anything_is_appended_exactly_once(counts: list[int], retries: list[int]) -> None:
    window, offset, sequence = ProducerWindow(), 0, 0
    taken: list[tuple[BatchRun, int]] = []
    for count in counts:
        probe = batch(sequence, count)
        assert window.judge(probe) is None
        window.record(probe, offset)
        taken.append((probe, offset))
        sequence, offset = (sequence + count) % SEQUENCE_MODULUS, offset + count
    for retry in retries:
        again, original = taken[retry % len(taken)]
        outcome = window.judge(again)
        assert outcome is not None
        if (again, original) in taken[-PRODUCER_WINDOW:]:
            assert (outcome.verdict, outcome.base_offset) == (BatchVerdict.DUPLICATE, original)
        else:
            assert outcome.verdict is BatchVerdict.DUPLICATE_TOO_OLD
