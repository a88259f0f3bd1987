"""The hand-written codecs against kio, in every version: they read what it writes and write what it would."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio_oracle import kio_bytes, kio_type, random_pair

from streamhouse.core.errors import MalformedRequest
from streamhouse.gateway.kafka.hot import fetch, list_offsets, produce
from streamhouse.gateway.kafka.hot.leaders import CurrentLeader, NodeEndpoint
from streamhouse.gateway.kafka.wire.schema import write_request

SEEDS = st.integers(0, 2**32)
NO_TIME = timedelta(0)
LEADERS = [
    CurrentLeader(leader_epoch=7, endpoint=NodeEndpoint(node_id=3, host="broker-3", port=9092, rack="zone-a")),
    CurrentLeader(leader_epoch=2**31 - 1, endpoint=NodeEndpoint(node_id=2**31 - 1, host="ü" * 200, port=1, rack=None)),
]


def part_of(response: Any, *names: str) -> list[Any]:
    """The dataclasses that a version's response is made of; None for those it lacks."""
    home = __import__(response.__module__, fromlist=["*"])
    return [getattr(home, name, None) for name in names]


def fields_of(entity: Any) -> set[str]:
    return set(entity.__dataclass_fields__)


def some(entity: Any, **fields: Any) -> Any:
    """An instance with those of ``fields`` that its version has."""
    return entity(**{name: value for name, value in fields.items() if name in fields_of(entity)})


def topic_name(entity: Any, topic: str | UUID) -> dict[str, Any]:
    return {next(iter(fields_of(entity) & {"name", "topic", "topic_id"})): topic}


def endpoints(entity: Any, leaders: list[CurrentLeader]) -> tuple[Any, ...]:
    nodes = {leader.endpoint.node_id: leader.endpoint for leader in leaders}
    return tuple(
        entity(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack) for node in nodes.values()
    )


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


CODECS = [
    *((produce.read_request, "produce", version) for version in (3, 8, 9, 13)),
    *((fetch.read_request, "fetch", version) for version in (4, 5, 7, 9, 11, 12, 13, 15, 18)),
    *((list_offsets.read_request, "list_offsets", version) for version in (1, 2, 4, 6, 10)),
]


@pytest.mark.parametrize(("read", "api", "version"), CODECS, ids=lambda each: getattr(each, "__module__", each))
@given(seed=SEEDS)
@settings(max_examples=40, deadline=None)
def test_damaged_requests_are_refused_or_read_and_never_crash(read: Any, api: str, version: int, seed: int) -> None:
    rng = Random(seed)
    theirs, _ = random_pair(kio_type(f"{api}.request", api, version), rng)
    body = bytearray(kio_bytes(theirs))
    for cut in {0, len(body) - 1, rng.randrange(len(body))}:
        with pytest.raises(MalformedRequest):
            read(version, memoryview(bytes(body[:cut])))
    assert read(version, memoryview(bytes(body) + b"\0")) == read(version, memoryview(bytes(body)))
    for _ in range(10):
        body[rng.randrange(len(body))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        with suppress(MalformedRequest):
            read(version, memoryview(bytes(body)))


def usual_produce(version: int, rng: Random) -> dict[str, Any]:
    topic = {"topic_id": UUID(int=rng.getrandbits(128))} if version >= 13 else {"name": "t" * rng.randrange(1, 126)}
    records = rng.randbytes(rng.choice((0, 1, 125, 126, 127, 128, 16_382, 16_383, 16_384, 2_097_151)))
    partition = {"index": rng.randrange(100), "records": records}
    return {"acks": -1, "timeout": 30_000, "topic_data": [{**topic, "partition_data": [partition]}]}


def usual_fetch(version: int, rng: Random) -> dict[str, Any]:
    topic = {"topic_id": UUID(int=rng.getrandbits(128))} if version >= 13 else {"topic": "t" * rng.randrange(1, 126)}
    partitions = [
        {"partition": number, "fetch_offset": rng.getrandbits(62), "partition_max_bytes": 1 << 20}
        for number in range(rng.choice((1, 1, 3, 126)))
    ]
    fields: dict[str, Any] = {"max_wait": 500, "min_bytes": 1, "topics": [{**topic, "partitions": partitions}]}
    return fields if version >= 15 else {"replica_id": -1, **fields}


@pytest.mark.parametrize(
    ("codec", "api_key", "version"),
    [*((produce, 0, version) for version in range(9, 14)), *((fetch, 1, version) for version in range(12, 19))],
    ids=str,
)
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_the_short_way_reads_the_usual_request_and_never_differs_from_the_long_one(
    codec: Any, api_key: int, version: int, seed: int
) -> None:
    rng = Random(seed)
    make = usual_produce if codec is produce else usual_fetch
    body = bytearray(write_request(api_key, version, make(version, rng)))
    assert codec._read_usual(version, memoryview(body)) == codec._read_any(version, memoryview(body))
    for _ in range(20):
        damaged = bytearray(body)
        place = rng.choice(
            (rng.randrange(len(body)), rng.randrange(min(len(body), 60)), len(body) - rng.randrange(1, 9))
        )
        damaged[place] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        del damaged[rng.choice((len(damaged), len(damaged), rng.randrange(len(damaged)))) :]
        short = codec._read_usual(version, memoryview(damaged))
        if short is not None:
            assert short == codec._read_any(version, memoryview(damaged))
