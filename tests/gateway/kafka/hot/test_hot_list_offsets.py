"""The hand-written codec of ListOffsets against kio in every version: reads what kio writes, writes what it would."""

from __future__ import annotations

from random import Random

import pytest
from codec_checks import (
    NO_TIME,
    SEEDS,
    check_damage,
    part_of,
    some,
)
from hypothesis import given, settings
from kio.schema.errors import ErrorCode
from kio_oracle import kio_bytes, kio_type, random_pair

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.hot import fetch, list_offsets
from streamhouse.gateway.kafka.wire.schema import read_response, write_request


@pytest.mark.parametrize("version", range(1, 12))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_list_offsets_request(version: int, seed: int) -> None:
    theirs, ours = random_pair(kio_type("list_offsets.request", "list_offsets", version), Random(seed))
    request = list_offsets.read_request(version, memoryview(kio_bytes(theirs)))
    assert request.replica_id == ours["replica_id"]
    assert request.isolation_level == ours.get("isolation_level", 0)
    assert request.timeout_ms == ours.get("timeout", 0)
    assert [topic.name for topic in request.topics] == [each["name"] for each in ours["topics"]]
    for topic, wanted in zip(request.topics, ours["topics"], strict=True):
        assert list(topic.partitions) == [
            (each["partition_index"], each.get("current_leader_epoch", -1), each["timestamp"])
            for each in wanted["partitions"]
        ]


@pytest.mark.parametrize("version", range(1, 12))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_list_offsets_response(version: int, seed: int) -> None:
    rng = Random(seed)
    response = kio_type("list_offsets.response", "list_offsets", version)
    topic_type, partition_type = part_of(response, "ListOffsetsTopicResponse", "ListOffsetsPartitionResponse")
    wanted_topics, our_topics = [], []
    for number in range(rng.choice((0, 1, 2))):
        answers = [
            list_offsets.OffsetAnswer(index, rng.choice((0, 6)), rng.getrandbits(60), rng.getrandbits(60), index)
            for index in range(rng.choice((0, 1, 3)))
        ]
        our_topics.append((fetch.topic_bytes(12 if version >= 6 else 11, f"t{number}"), answers))
        wanted_topics.append(
            topic_type(
                name=f"t{number}",
                partitions=tuple(
                    some(
                        partition_type,
                        partition_index=answer.partition,
                        error_code=ErrorCode(answer.error_code),
                        timestamp=answer.timestamp,
                        offset=answer.offset,
                        leader_epoch=answer.leader_epoch,
                    )
                    for answer in answers
                ),
            )
        )
    wanted = some(response, throttle_time=NO_TIME, topics=tuple(wanted_topics))
    assert list_offsets.write_response(version, our_topics) == kio_bytes(wanted)


@pytest.mark.parametrize("version", [1, 2, 4, 6, 10])
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_damaged_requests_are_refused_or_read_and_never_crash(version: int, seed: int) -> None:
    check_damage(list_offsets.read_request, "list_offsets", version, seed)


def test_a_response_names_a_topic_with_the_bytes_that_asked_for_it() -> None:
    question = {"name": "größe", "partitions": [{"partition_index": 2, "timestamp": -1}]}
    for version in (1, 6):
        body = write_request(2, version, {"replica_id": -1, "topics": [question]})
        (topic,) = list_offsets.read_request(version, memoryview(body)).topics
        answer = list_offsets.write_response(version, [(topic.raw, [list_offsets.OffsetAnswer(2, 0, -1, 7, 0)])])
        (told,) = read_response(2, version, memoryview(answer)).topics
        assert (told.name, told.partitions[0].offset) == ("größe", 7)


def test_before_leader_epochs_a_question_has_none() -> None:
    question = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -2}]}
    body = write_request(2, 3, {"replica_id": -1, "topics": [question]})
    request = list_offsets.read_request(3, memoryview(body))
    assert request.topics[0].partitions == [list_offsets.PartitionQuestion(0, -1, -2)]
    assert request.timeout_ms == 0


def test_more_partitions_than_the_bytes_can_hold_are_refused() -> None:
    lying = b"\xff\xff\xff\xff\0" + b"\0\0\0\x01" + b"\0\x01t" + b"\0\0\0\x08" + bytes(12)
    with pytest.raises(MalformedRequest, match="an array of 8 items"):
        list_offsets.read_request(2, memoryview(lying))
