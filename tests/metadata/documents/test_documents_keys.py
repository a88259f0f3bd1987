"""Keys of the documents: as the source spells them, in the order of their numbers, and nothing that breaks it."""

from __future__ import annotations

from uuid import UUID

import pytest
from document_samples import (
    INT64_MAX,
)
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptDocument, InvalidRequest
from streamhouse.core.ids import AppendId
from streamhouse.metadata import documents


def test_s2_34_keys_are_the_source_document_s() -> None:
    assert documents.index_key("orders", 0, 2) == "llog/orders/partitions/0/index/00000000000000000002"
    assert documents.control_key("orders", 0) == "llog/orders/partitions/0/meta/control"
    assert documents.cursor_key("orders", 0) == "llog/orders/partitions/0/meta/compaction-cursor"
    assert documents.compaction_key("orders", 0) == "llog/orders/partitions/0/meta/compaction"
    assert documents.claim_key("orders", 0) == "llog/orders/partitions/0/meta/compactor-claim"
    assert documents.routing_key("orders", 0) == "orders:0"
    assert documents.producer_key("o", 1, 5) == "llog/o/partitions/1/producers/00000000000000000005"
    assert documents.append_key("o", 1, AppendId(UUID(int=2))).endswith("/appends/00000000-0000-0000-0000-000000000002")


def test_s2_37_an_index_scan_ends_before_every_other_kind_of_key() -> None:
    first, last = documents.index_range("orders", 0)
    assert (first, last) == ("llog/orders/partitions/0/index/", "llog/orders/partitions/0/index//")


@given(st.integers(0, 99_999), st.lists(st.integers(0, INT64_MAX), min_size=2, max_size=2))
def test_index_keys_parse_back_and_sort_as_numbers(partition: int, ends: list[int]) -> None:
    keys = [documents.index_key("orders", partition, end) for end in ends]
    assert [documents.parse_index_key(key) for key in keys] == [("orders", partition, end) for end in ends]
    assert (keys[0] < keys[1]) == (ends[0] < ends[1])


def test_discovery_tells_a_control_key_from_every_other() -> None:
    assert documents.parse_control_key("llog/orders/partitions/12/meta/control") == ("orders", 12)
    for other in ("llog/a/b/partitions/0/meta/control", "llog/a/partitions/01/meta/control", "x", ""):
        assert documents.parse_control_key(other) is None


@pytest.mark.parametrize(
    "key",
    [
        "llog/orders/partitions/0/index/2",
        "llog/orders/partitions/0/index/0000000000000000000x",
        "llog/orders/partitions/0/index/99999999999999999999",
        "llog/orders/partitions/-1/index/00000000000000000002",
        "llog/orders/partitions/0/meta/control",
        "",
    ],
)
def test_a_key_that_is_no_index_key_is_refused(key: str) -> None:
    with pytest.raises(CorruptDocument, match="not the key of an index entry"):
        documents.parse_index_key(key)


@pytest.mark.parametrize(("topic", "partition"), [("", 0), ("a/b", 0), ("a", -1)])
def test_what_cannot_stand_in_a_key_is_refused(topic: str, partition: int) -> None:
    with pytest.raises(InvalidRequest, match="cannot stand in a key"):
        documents.control_key(topic, partition)


@pytest.mark.parametrize("number", [-1, 2**63])
def test_numbers_that_would_break_the_order_of_keys_are_refused(number: int) -> None:
    with pytest.raises(InvalidRequest):
        documents.index_key("a", 0, number)
    with pytest.raises(InvalidRequest):
        documents.producer_key("a", 0, number)
