"""The plan of a read of many ranges: every byte asked for, in few requests, within bounds."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import LimitExceeded
from streamhouse.core.limits import MAX_RANGES_PER_READ, MAX_REQUEST_BODY_BYTES, MIB, READ_COALESCE_GAP_BYTES
from streamhouse.objectstore.checks import plan_reads

RANGES = st.lists(st.tuples(st.integers(0, 20 * MIB), st.integers(1, 3 * MIB)), max_size=40)


@given(RANGES)
def test_a_plan_serves_every_range_once_and_whole(ranges: list[tuple[int, int]]) -> None:
    served = []
    for read in plan_reads("k", ranges):
        for place, start in read.serves:
            offset, length = ranges[place]
            assert read.offset + start == offset
            assert start + length <= read.length
            served.append(place)
    assert sorted(served) == list(range(len(ranges)))


@given(RANGES)
def test_reads_of_a_plan_lie_apart_by_more_than_a_request_is_worth(ranges: list[tuple[int, int]]) -> None:
    reads = plan_reads("k", ranges)
    for before, after in itertools.pairwise(reads):
        assert after.offset > before.offset + before.length + READ_COALESCE_GAP_BYTES


def test_near_ranges_share_a_request_up_to_its_limit() -> None:
    assert len(plan_reads("k", [(0, 10), (MIB, 10), (2 * MIB, 10)])) == 1
    assert len(plan_reads("k", [(0, 10), (MIB + 11, 10)])) == 2
    half = MAX_REQUEST_BODY_BYTES // 2
    assert [read.length for read in plan_reads("k", [(0, half), (half, half)])] == [2 * half]
    assert [read.length for read in plan_reads("k", [(0, half), (half + 5, half)])] == [half, half]


def test_a_plan_is_bounded() -> None:
    with pytest.raises(LimitExceeded):
        plan_reads("k", [(0, 1)] * (MAX_RANGES_PER_READ + 1))
    with pytest.raises(LimitExceeded):
        plan_reads("k", [(0, MAX_REQUEST_BODY_BYTES), (MAX_REQUEST_BODY_BYTES + 2 * MIB, 1)])
    with pytest.raises(LimitExceeded):
        plan_reads("k", [(n * MIB, 1) for n in range(1000)])  # single bytes, but what lies between is read too
