"""Rows to partitions: named, by key as every Kafka client does it, spread evenly."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidPartitions
from streamhouse.spark.partitioning import place_rows
from streamhouse.wire.murmur2 import partition_for_key


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.integers(0, 6)), max_size=60),
    st.integers(0, 1000),
)
def test_named_before_key_before_spread(rows: list[tuple[bytes | None, int | None]], turn: int) -> None:
    placed = place_rows(
        len(rows),
        key=pa.chunked_array([[key for key, _ in rows]], pa.binary()),
        named=pa.chunked_array([[named for _, named in rows]], pa.int32()),
        partition_count=7,
        turn=turn,
        topic="orders",
    )
    assert placed.type == pa.int32()
    assert placed.null_count == 0
    for (key, named), place in zip(rows, placed.to_pylist(), strict=True):
        if named is not None:
            assert place == named
        elif key is not None:
            assert place == partition_for_key(key, 7)
        else:
            assert 0 <= place < 7


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 40), st.integers(0, 100))
def test_rows_without_a_key_are_spread_evenly_and_stay_together(rows: int, partitions: int, turn: int) -> None:
    placed = place_rows(rows, key=None, named=None, partition_count=partitions, turn=turn, topic="orders").to_pylist()
    assert len(placed) == rows
    assert max(Counter(placed).values(), default=0) <= -(-rows // partitions)
    runs = 1 + sum(before != after for before, after in pairwise(placed))
    assert runs <= partitions


def test_turns_spread_single_rows_too() -> None:
    places = [
        place_rows(1, key=None, named=None, partition_count=3, turn=turn, topic="orders").to_pylist()[0]
        for turn in range(6)
    ]
    assert places == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_is_not_there_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidPartitions, match=f"partition {wrong} of orders, which has 0 to 2"):
        place_rows(1, key=None, named=pa.array([wrong], pa.int32()), partition_count=3, turn=0, topic="orders")
