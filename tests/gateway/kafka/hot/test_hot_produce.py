"""The hand-written codec of Produce against kio in every version: it reads what kio writes, writes what it would."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

import pytest
from codec_checks import (
    LEADERS,
    NO_TIME,
    SEEDS,
    check_damage,
    check_short_way,
    endpoints,
    part_of,
    some,
    topic_name,
)
from hypothesis import given, settings
from kio.schema.errors import ErrorCode
from kio_oracle import kio_bytes, kio_type, random_pair

from streamhouse.gateway.kafka.hot import fetch, produce
from streamhouse.gateway.kafka.wire.schema import write_request


@pytest.mark.parametrize("version", range(3, 14))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_produce_request(version: int, seed: int) -> None:
    theirs, ours = random_pair(kio_type("produce.request", "produce", version), Random(seed))
    body = kio_bytes(theirs)
    request = produce.read_request(version, memoryview(body))
    assert request.transactional_id == ours["transactional_id"]
    assert (request.acks, request.timeout_ms) == (ours["acks"], ours["timeout"])
    assert len(request.topics) == len(ours["topic_data"])
    for found, wanted in zip(request.topics, ours["topic_data"], strict=True):
        assert found.name == wanted.get("name")
        assert found.topic_id == wanted.get("topic_id")
        assert found.raw in body
        assert [(index, None if data is None else bytes(data)) for index, data in found.partitions] == [
            (each["index"], each["records"]) for each in wanted["partition_data"]
        ]


@pytest.mark.parametrize("version", range(3, 14))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_produce_response(version: int, seed: int) -> None:
    rng = Random(seed)
    response = kio_type("produce.response", "produce", version)
    topic_type, partition_type, leader_type, node_type = part_of(
        response, "TopicProduceResponse", "PartitionProduceResponse", "LeaderIdAndEpoch", "NodeEndpoint"
    )
    wanted_topics, our_topics, used = [], [], []
    for number in range(rng.choice((0, 1, 1, 2, 130))):
        topic: str | UUID = UUID(int=number + 1) if version >= 13 else f"topic-{number}"
        wanted_partitions, our_partitions = [], []
        for index in range(rng.choice((0, 1, 1, 3))):
            fields: dict[str, Any] = {"index": index, "record_errors": (), "error_message": None}
            if rng.random() < 0.5:
                base, start = rng.getrandbits(62), rng.getrandbits(62)
                append_ms = rng.choice((-1, 1_700_000_000_000))
                fields |= {"error_code": ErrorCode.none, "base_offset": base, "log_start_offset": start}
                fields["log_append_time"] = None if append_ms < 0 else datetime.fromtimestamp(append_ms / 1000, UTC)
                our_partitions.append(produce.partition_ok(version, index, base, append_ms, start))
            else:
                message = rng.choice((None, "", "what went wrong", "ö" * 300))
                leader = rng.choice((None, *LEADERS))
                fields |= {
                    "error_code": ErrorCode.not_leader_or_follower,
                    "base_offset": -1,
                    "log_append_time": None,
                    "log_start_offset": -1,
                    "error_message": message,
                }
                if leader is not None and leader_type is not None:
                    used.append(leader)
                    fields["current_leader"] = leader_type(
                        leader_id=leader.endpoint.node_id, leader_epoch=leader.leader_epoch
                    )
                our_partitions.append(produce.partition_error(version, index, 6, message, leader))
            wanted_partitions.append(some(partition_type, **fields))
        raw = topic.bytes if isinstance(topic, UUID) else fetch.topic_bytes(12 if version >= 9 else 11, topic)
        our_topics.append((raw, our_partitions))
        wanted_topics.append(topic_type(**topic_name(topic_type, topic), partition_responses=tuple(wanted_partitions)))
    fields = {"responses": tuple(wanted_topics), "throttle_time": NO_TIME}
    if node_type is not None:
        fields["node_endpoints"] = endpoints(node_type, used)
    assert produce.write_response(version, our_topics, used) == kio_bytes(some(response, **fields))


def usual_produce(version: int, rng: Random) -> dict[str, Any]:
    topic = {"topic_id": UUID(int=rng.getrandbits(128))} if version >= 13 else {"name": "t" * rng.randrange(1, 126)}
    records = rng.randbytes(rng.choice((1, 125, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151)))
    partition = {"index": rng.randrange(100), "records": records}
    return {"acks": -1, "timeout": 30_000, "topic_data": [{**topic, "partition_data": [partition]}]}


@pytest.mark.parametrize("version", [3, 8, 9, 13])
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_damaged_requests_are_refused_or_read_and_never_crash(version: int, seed: int) -> None:
    check_damage(produce.read_request, "produce", version, seed)


@pytest.mark.parametrize("version", range(9, 14))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_short_way_reads_the_usual_request_and_never_differs_from_the_long_one(version: int, seed: int) -> None:
    rng = Random(seed)
    body = bytearray(write_request(0, version, usual_produce(version, rng)))
    check_short_way(produce, version, body, rng)
