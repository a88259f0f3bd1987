"""The hand-written codec of Fetch against kio in every version: it reads what kio writes, writes what it would."""

from __future__ import annotations

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

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.hot import fetch
from streamhouse.gateway.kafka.wire.schema import read_response, write_request


@pytest.mark.parametrize("version", range(4, 19))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_fetch_request(version: int, seed: int) -> None:
    theirs, ours = random_pair(kio_type("fetch.request", "fetch", version), Random(seed))
    request = fetch.read_request(version, memoryview(kio_bytes(theirs)))
    replica = ours["replica_state"]["replica_id"] if version >= 15 else ours["replica_id"]
    assert request.replica_id == replica
    assert (request.max_wait_ms, request.min_bytes) == (ours["max_wait"], ours["min_bytes"])
    assert (request.max_bytes, request.isolation_level) == (ours["max_bytes"], ours["isolation_level"])
    assert (request.session_id, request.session_epoch) == (ours.get("session_id", 0), ours.get("session_epoch", -1))
    assert request.rack_id == ours.get("rack_id", "")
    name = "topic_id" if version >= 13 else "topic"
    assert [topic for topic, _ in request.topics] == [each[name] for each in ours["topics"]]
    for (_, partitions), wanted in zip(request.topics, ours["topics"], strict=True):
        assert [each._asdict() for each in partitions] == [
            {
                "partition": each["partition"],
                "current_leader_epoch": each.get("current_leader_epoch", -1),
                "fetch_offset": each["fetch_offset"],
                "last_fetched_epoch": each.get("last_fetched_epoch", -1),
                "log_start_offset": each.get("log_start_offset", -1),
                "max_bytes": each["partition_max_bytes"],
            }
            for each in wanted["partitions"]
        ]
    assert request.forgotten == [(each[name], each["partitions"]) for each in ours.get("forgotten_topics_data", ())]


@pytest.mark.parametrize("version", range(4, 19))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_fetch_response(version: int, seed: int) -> None:
    rng = Random(seed)
    response = kio_type("fetch.response", "fetch", version)
    topic_type, partition_type, leader_type, node_type, epoch_type = part_of(
        response, "FetchableTopicResponse", "PartitionData", "LeaderIdAndEpoch", "NodeEndpoint", "EpochEndOffset"
    )
    listed = rng.random() < 0.5
    wanted_topics, our_topics, used = [], [], []
    for number in range(rng.choice((0, 1, 1, 2, 130))):
        topic: str | UUID = UUID(int=number + 1) if version >= 13 else f"topic-{number}"
        wanted_partitions, our_partitions = [], []
        for index in range(rng.choice((0, 1, 1, 3))):
            batches = [rng.randbytes(rng.choice((1, 100, 5000))) for _ in range(rng.choice((0, 1, 4)))]
            code = rng.choice((0, 0, 6))
            leader = rng.choice((None, *LEADERS)) if code else None
            diverging = rng.choice((None, (3, 2**40)))
            watermark, stable, start = rng.getrandbits(62), rng.getrandbits(62), rng.getrandbits(62)
            fields: dict[str, Any] = {
                "partition_index": index,
                "error_code": ErrorCode(code),
                "high_watermark": watermark,
                "last_stable_offset": stable,
                "log_start_offset": start,
                "aborted_transactions": () if listed else None,
                "preferred_read_replica": -1,
                "records": b"".join(batches),
            }
            if version >= 12 and diverging is not None:
                fields["diverging_epoch"] = epoch_type(epoch=diverging[0], end_offset=diverging[1])
            if version >= 12 and leader is not None:
                used.append(leader)
                fields["current_leader"] = leader_type(
                    leader_id=leader.endpoint.node_id, leader_epoch=leader.leader_epoch
                )
            wanted_partitions.append(some(partition_type, **fields))
            our_partitions.append(
                fetch.PartitionAnswer(
                    index,
                    code,
                    watermark,
                    stable,
                    start,
                    [memoryview(batch) for batch in batches],
                    sum(map(len, batches)),
                    leader,
                    diverging,
                )
            )
        our_topics.append((fetch.topic_bytes(version, topic), our_partitions))
        wanted_topics.append(topic_type(**topic_name(topic_type, topic), partitions=tuple(wanted_partitions)))
    fields = {
        "throttle_time": NO_TIME,
        "error_code": ErrorCode.fetch_session_id_not_found,
        "session_id": 2**31 - 1,
        "responses": tuple(wanted_topics),
    }
    if node_type is not None:
        fields["node_endpoints"] = endpoints(node_type, used)
    buffers = fetch.write_response(
        version,
        error_code=70,
        session_id=2**31 - 1,
        topics=our_topics,
        aborted_listed=listed,
        leaders=used,
    )
    assert b"".join(buffers) == kio_bytes(some(response, **fields))


def test_large_batches_go_into_the_response_as_they_are_and_small_ones_are_joined() -> None:
    large, small = memoryview(bytes(5000)), memoryview(bytes(100))
    answer = fetch.PartitionAnswer(0, 0, 9, 9, 0, [small, small, large, small], 5300)
    buffers = fetch.write_response(
        12, error_code=0, session_id=0, topics=[(fetch.topic_bytes(12, "t"), [answer])], aborted_listed=False
    )
    assert [len(each) for each in buffers].count(5000) == 1
    assert len(buffers) == 3
    assert any(each is large for each in buffers)


def usual_fetch(version: int, rng: Random) -> dict[str, Any]:
    topic = {"topic_id": UUID(int=rng.getrandbits(128))} if version >= 13 else {"topic": "t" * rng.randrange(1, 126)}
    partitions = [
        {"partition": number, "fetch_offset": rng.getrandbits(62), "partition_max_bytes": 1 << 20}
        for number in range(rng.choice((1, 1, 3, 126)))
    ]
    fields: dict[str, Any] = {"max_wait": 500, "min_bytes": 1, "topics": [{**topic, "partitions": partitions}]}
    return fields if version >= 15 else {"replica_id": -1, **fields}


@pytest.mark.parametrize("version", [4, 5, 7, 9, 11, 12, 13, 15, 18])
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_damaged_requests_are_refused_or_read_and_never_crash(version: int, seed: int) -> None:
    check_damage(fetch.read_request, "fetch", version, seed)


@pytest.mark.parametrize("version", range(12, 19))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_short_way_reads_the_usual_request_and_never_differs_from_the_long_one(version: int, seed: int) -> None:
    rng = Random(seed)
    body = bytearray(write_request(1, version, usual_fetch(version, rng)))
    check_short_way(fetch, version, body, rng)


def test_a_replica_state_that_is_too_short_to_hold_an_id_is_refused() -> None:
    body = write_request(1, 15, {"max_wait": 0, "min_bytes": 0, "topics": []})
    short_state = body[:-1] + b"\x01\x01\x03\0\0\0"
    with pytest.raises(MalformedRequest, match=r"replica state at byte .* has 3 bytes"):
        fetch.read_request(15, memoryview(short_state))


def test_before_sessions_and_ids_a_request_is_one_without_a_session() -> None:
    body = write_request(1, 4, {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "topics": []})
    request = fetch.read_request(4, memoryview(body))
    assert (request.session_id, request.session_epoch, request.forgotten, request.rack_id) == (0, -1, [], "")


@pytest.mark.parametrize(
    ("version", "topic", "raw"),
    [(11, "top", b"\0\x03top"), (12, "top", b"\x04top"), (13, UUID(int=1), b"\0" * 15 + b"\x01")],
)
def test_a_response_names_a_topic_as_its_version_does(version: int, topic: str | UUID, raw: bytes) -> None:
    assert fetch.topic_bytes(version, topic) == raw


def test_the_real_leader_and_its_address_are_told_once_however_many_partitions_moved() -> None:
    moved = [fetch.PartitionAnswer(index, 6, -1, -1, -1, leader=LEADERS[0]) for index in range(3)]
    (answer,) = fetch.write_response(
        16,
        error_code=0,
        session_id=0,
        topics=[(UUID(int=1).bytes, moved)],
        aborted_listed=False,
        leaders=[one.leader for one in moved if one.leader is not None],
    )
    told = read_response(1, 16, memoryview(answer))
    assert [node.host for node in told.node_endpoints] == ["broker-3"]
    assert [part.current_leader.leader_id for part in told.responses[0].partitions] == [3, 3, 3]
