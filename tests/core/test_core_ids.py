"""Names and ids: Kafka's rules, Kafka's spelling."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamhouse.core.errors import InvalidRequest, InvalidTopicName
from streamhouse.core.ids import PartitionKey, TopicId, check_topic_name, parse_topic_id, topic_id_text

TOPIC_IDS = st.uuids().map(TopicId)


@given(TOPIC_IDS)
def test_a_topic_id_survives_its_spelling(topic_id: TopicId) -> None:
    text = topic_id_text(topic_id)
    assert len(text) == 22
    assert parse_topic_id(text) == topic_id


@given(st.text(max_size=30))
def test_any_other_text_is_refused(text: str) -> None:
    refused = False
    try:
        accepted = topic_id_text(parse_topic_id(text))
    except InvalidRequest:
        refused = True
    assert refused or accepted == text


@pytest.mark.parametrize("text", ["", "A" * 21, "A" * 23, "A" * 21 + "B", "A" * 21 + "=", "!" * 22, "é" * 22])
def test_near_misses_of_a_topic_id_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a topic id"):
        parse_topic_id(text)


def test_a_known_topic_id() -> None:
    assert topic_id_text(TopicId(uuid.UUID(int=0))) == "A" * 22


@pytest.mark.parametrize("name", ["orders", "a", "A.b_c-9", "...", "x" * 249])
def test_topic_names_that_kafka_allows(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "a\n", "x" * 250, "x" * 100_000])
def test_s2_37_topic_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicName) as caught:
        check_topic_name(name)
    assert len(str(caught.value)) < 500


@given(st.lists(st.builds(PartitionKey, topic_id=TOPIC_IDS, partition=st.integers(0, 9))))
def test_r10_partition_keys_sort_by_topic_id_then_partition(keys: list[PartitionKey]) -> None:
    assert sorted(keys) == sorted(keys, key=lambda key: (key.topic_id.bytes, key.partition))


def test_a_partition_key_prints_as_topic_id_and_partition() -> None:
    assert str(PartitionKey(TopicId(uuid.UUID(int=0)), 3)) == "A" * 22 + ":3"
