"""DescribeQuorum (55), versions 0–2: so that Kafka's tool works. One voter, the broker that Metadata calls the
controller; the other brokers observe. Offsets are 0: the metadata store is a database of its own and has no log here.

Only __cluster_metadata, partition 0, is known, as in Kafka.
"""

from __future__ import annotations

from typing import Final

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message

_TOPIC: Final = "__cluster_metadata"


@cold_api(55, (0, 2))
async def describe_quorum(call: Call, request: Message) -> Fields:
    controller = call.broker.view.controller()
    if controller is None:
        return {"error_code": ErrorCode.BROKER_NOT_AVAILABLE, "error_message": None, "topics": [], "nodes": []}
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _partition(call, topic.topic_name, each.partition_index, controller.node_id)
                for each in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    endpoint = call.broker.view.endpoint(controller, call.client.listener)
    listener = {"name": "PLAINTEXT", "host": endpoint.host, "port": endpoint.port}
    return {
        "error_message": None,
        "topics": topics,
        "nodes": [{"node_id": controller.node_id, "listeners": [listener]}],
    }


def _partition(call: Call, topic: str, index: int, controller_id: int) -> Fields:
    if topic != _TOPIC or index != 0:
        return {
            "partition_index": index,
            "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": None,
            "current_voters": [],
            "observers": [],
        }
    others = [node.node_id for node in call.broker.view.nodes() if node.node_id != controller_id]
    return {
        "partition_index": index,
        "error_message": None,
        "leader_id": controller_id,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [_replica(call, controller_id)],
        "observers": [_replica(call, node_id) for node_id in others],
    }


def _replica(call: Call, node_id: int) -> Fields:
    now_ms = call.broker.clock.wall_ms()
    return {
        "replica_id": node_id,
        "log_end_offset": 0,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
