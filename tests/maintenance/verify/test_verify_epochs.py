"""Which epoch led at which offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from verify_entries import led

from streamhouse.maintenance.verify.epochs import EpochLine


def test_a_leadership_reaches_to_the_start_of_the_next() -> None:
    line = EpochLine(led((1, 0), (3, 10), (4, 12)))
    assert [line.at(offset) for offset in (0, 9, 10, 11, 12, 1_000)] == [1, 1, 3, 3, 4, 4]
    assert line.between(9, 12) == (1, 4)


def test_a_leadership_that_wrote_nothing_leads_at_no_offset() -> None:
    line = EpochLine(led((1, 0), (2, 5), (3, 5), (4, 5), (5, 9)))
    assert [line.at(offset) for offset in (4, 5, 8, 9)] == [1, 4, 4, 5]


def test_before_the_first_leadership_and_without_any_the_epoch_is_0() -> None:
    assert EpochLine([]).between(0, 10**12) == (0, 0)
    assert EpochLine(led((7, 3))).at(2) == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_every_offset_has_the_epoch_under_which_it_was_written(written: list[int]) -> None:
    """Leadership number n writes so many records."""
    starts, log = [], []
    for epoch, count in enumerate(written, start=1):
        starts.append((epoch, len(log)))
        log += [epoch] * count
    line = EpochLine(reversed(led(*starts)))
    assert [line.at(offset) for offset in range(len(log))] == log
