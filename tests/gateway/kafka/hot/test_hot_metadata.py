"""Metadata responses written by hand are the bytes that the schema says, in every version."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from streamhouse.gateway.kafka.hot.metadata import (
    NO_OPERATIONS,
    WITHOUT_LEADER,
    BrokerRow,
    TopicBlocks,
    TopicRow,
    encode_response,
    encode_topic,
)
from streamhouse.gateway.kafka.wire.schema import read_response, write_response

BROKERS = [
    BrokerRow(node_id=1, host="127.0.0.1", port=9092, rack="zone-a"),
    BrokerRow(node_id=300_000, host="a-long-host-name." * 10, port=65_535, rack=None),
]
TOPICS = [
    TopicRow(name="orders", topic_id=UUID(int=7), operations=3576, partitions=[(1, 0), WITHOUT_LEADER, (300_000, 12)]),
    TopicRow(name="many", topic_id=UUID(int=8), partitions=[(1, 5)] * 200),
    TopicRow(name="unknown", topic_id=UUID(int=0), error=3),
]


def by_schema(version: int, topics: list[TopicRow]) -> bytes:
    fields: dict[str, Any] = {
        "brokers": [{"node_id": row.node_id, "host": row.host, "port": row.port, "rack": row.rack} for row in BROKERS],
        "cluster_id": "a-cluster",
        "controller_id": 1,
        "topics": [
            {
                "error_code": topic.error,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "error_code": 5 if leader == -1 else 0,
                        "partition_index": index,
                        "leader_id": leader,
                        "leader_epoch": epoch,
                        "replica_nodes": [] if leader == -1 else [leader],
                        "isr_nodes": [] if leader == -1 else [leader],
                    }
                    for index, (leader, epoch) in enumerate(topic.partitions)
                ],
                "topic_authorized_operations": topic.operations,
            }
            for topic in topics
        ],
        "cluster_authorized_operations": 8096,
    }
    return write_response(3, version, fields)


def by_hand(version: int, topics: list[TopicRow]) -> bytes:
    return b"".join(
        encode_response(
            version,
            brokers=BROKERS,
            cluster_id="a-cluster",
            controller_id=1,
            topics=[encode_topic(version, topic) for topic in topics],
            cluster_operations=8096,
        )
    )


@pytest.mark.parametrize("version", range(14))
def test_the_bytes_are_those_of_the_schema(version: int) -> None:
    assert by_hand(version, TOPICS) == by_schema(version, TOPICS)


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_known_by_its_id_alone_has_no_name(version: int) -> None:
    unknown = [TopicRow(name=None, topic_id=UUID(int=9), error=100)]
    assert by_hand(version, unknown) == by_schema(version, unknown)


def test_a_leader_is_a_replica_in_sync_and_a_partition_without_one_has_none() -> None:
    (topic,) = read_response(3, 13, memoryview(by_hand(13, TOPICS[:1]))).topics
    led, leaderless, _ = topic.partitions
    assert (led.error_code, led.leader_id, led.replica_nodes, led.isr_nodes) == (0, 1, [1], [1])
    assert (leaderless.error_code, leaderless.leader_id, leaderless.replica_nodes) == (5, -1, [])


def test_blocks_are_kept_for_one_generation_and_within_a_bound() -> None:
    blocks = TopicBlocks(max_bytes=100)
    key, other = (UUID(int=1), 13, NO_OPERATIONS), (UUID(int=2), 13, NO_OPERATIONS)
    blocks.put(key, (1, 1), b"x" * 60)
    assert blocks.get(key, (1, 1)) == b"x" * 60
    assert blocks.get(key, (1, 2)) is None
    blocks.put(key, (1, 2), b"y" * 60)
    assert blocks.get(key, (1, 2)) == b"y" * 60
    blocks.put(other, (1, 1), b"z" * 60)
    assert blocks.get(key, (1, 2)) is None
    assert blocks.get(other, (1, 1)) == b"z" * 60
