"""Offsets in a checkpoint: what must survive a restart, and what is refused."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidRequest
from streamhouse.core.ids import TopicId
from streamhouse.spark.offsets import INITIAL, StreamOffset, TopicPartition, read_stream_offset

PARTITIONS = st.builds(TopicPartition, st.sampled_from(["orders", "a.b-c_D"]), st.integers(0, 99_999))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 2**63 - 1))
STREAM_OFFSETS = st.builds(
    StreamOffset,
    offsets=OFFSETS,
    topic_ids=st.dictionaries(st.sampled_from(["orders", "a.b-c_D"]), st.uuids().map(TopicId)),
    query=st.just("3f0c"),
    began_at=st.none() | OFFSETS,
)


@given(STREAM_OFFSETS)
def test_an_offset_comes_back_from_its_checkpoint(offset: StreamOffset) -> None:
    assert read_stream_offset(json.loads(json.dumps(offset.to_json()))) == offset


def test_equal_offsets_are_the_same_text() -> None:
    """Spark compares them as text: "nothing new" must be seen, however the offset came about."""
    ids = {"b": TopicId(uuid.UUID(int=2)), "a": TopicId(uuid.UUID(int=1))}
    one = {TopicPartition("b", 10): 1, TopicPartition("b", 9): 2, TopicPartition("a", 0): 3}
    two = dict(reversed(one.items()))
    texts = {
        json.dumps(StreamOffset(offsets=offsets, topic_ids=topic_ids, query="q").to_json())
        for offsets, topic_ids in [(one, ids), (two, dict(reversed(ids.items())))]
    }
    assert len(texts) == 1


def test_a_query_begins_at_a_constant() -> None:
    """What "latest" meant is in the first batch's end; Spark asks for the beginning again and again and keeps none."""
    assert read_stream_offset(json.loads(json.dumps(dict(INITIAL)))) is None


@pytest.mark.parametrize(
    "document",
    [
        {"orders": {"0": 5}},
        {"orders": {"0": 5}, "$topics": {"orders": "short"}, "$query": "q"},
        {"orders": {"0": -1}, "$topics": {}, "$query": "q"},
        {"orders": 7, "$topics": {}, "$query": "q"},
        {"$initial": 2},
    ],
)
def test_a_foreign_checkpoint_is_refused_with_a_way_out(document: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=r"not of this source.*new checkpointLocation"):
        read_stream_offset(document)
