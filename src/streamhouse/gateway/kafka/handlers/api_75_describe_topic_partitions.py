"""DescribeTopicPartitions (75), version 0: topics and their partitions, page by page.

Topics in name order; no names: all of them. At most 2,000 partitions a page, as Kafka's default; ``next_cursor`` says
where the next one begins.
"""

from __future__ import annotations

from typing import Final

from streamhouse.broker.topics import Topic
from streamhouse.core.errors import InvalidTopicName
from streamhouse.core.ids import PartitionKey, check_topic_name
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.operations import TOPIC_OPERATIONS
from streamhouse.gateway.kafka.wire.message import Message

_MAX_PARTITIONS: Final = 2_000


@cold_api(75, (0, 0))
async def describe_topic_partitions(call: Call, request: Message) -> Fields:
    room = max(1, min(request.response_partition_limit, _MAX_PARTITIONS))
    first, start = ("", 0) if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)
    topics: list[Fields] = []
    chosen = await _chosen(call, request)
    if request.topics:
        await call.broker.view.find_leaders(topic for _, topic in chosen if topic is not None)
    for name, topic in chosen:
        if name < first:
            continue
        begin = start if name == first else 0
        if topic is None:
            topics.append(_missing(name))
            continue
        if room <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": begin}}
        end = min(topic.partition_count, begin + room)
        topics.append(_topic(call, topic, range(begin, end)))
        room -= end - begin
        if end < topic.partition_count:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
    return {"topics": topics, "next_cursor": None}


async def _chosen(call: Call, request: Message) -> list[tuple[str, Topic | None]]:
    if not request.topics:
        return sorted((topic.name, topic) for topic in await call.broker.topics.all(caller=call.client.caller))
    names = sorted({topic.name for topic in request.topics})
    return [(name, await call.broker.topics.find(name, caller=call.client.caller)) for name in names]


def _missing(name: str) -> Fields:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except InvalidTopicName:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return {"error_code": code, "name": name, "partitions": [], "topic_authorized_operations": TOPIC_OPERATIONS}


def _topic(call: Call, topic: Topic, indexes: range) -> Fields:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": [_partition(call, topic, index) for index in indexes],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }


def _partition(call: Call, topic: Topic, index: int) -> Fields:
    leader = call.broker.view.leader(PartitionKey(topic.topic_id, index))
    if leader is not None and not leader.node.listens:
        leader = None
    nodes = [] if leader is None else [leader.node.node_id]
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if leader is None else ErrorCode.NONE,
        "partition_index": index,
        "leader_id": -1 if leader is None else leader.node.node_id,
        "leader_epoch": -1 if leader is None else leader.epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
        "eligible_leader_replicas": [],
        "last_known_elr": [],
        "offline_replicas": [],
    }
