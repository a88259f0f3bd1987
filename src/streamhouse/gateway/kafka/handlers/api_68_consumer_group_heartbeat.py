"""ConsumerGroupHeartbeat (68), versions 0–1: the only request of a member of the consumer protocol (KIP-848).

Assignment null: unchanged. Regular expressions (version 1) are those of RE2 and match whole names. A classic group with
members becomes a consumer group when such a member joins; if it cannot, the answer is 69. A member that the group does
not have gets 25 and joins again, also when the group has become a classic group; Kafka answers 69 then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamhouse.broker.groups.contract import ConsumerHeartbeat
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.refusals import FINE, refused
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(68, (0, 1))
async def consumer_group_heartbeat(call: Call, request: Message) -> Fields:
    try:
        result = await call.broker.groups.members.consumer_heartbeat(
            _heartbeat(call, request), may_be_named=call.version == 0, caller=call.client.caller
        )
    except StreamHouseError as error:
        return {**refused(error), "member_id": None, "member_epoch": 0, "heartbeat_interval": 0, "assignment": None}
    assignment = None if result.assignment is None else {"topic_partitions": topic_partitions(result.assignment)}
    return {
        **FINE,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "assignment": assignment,
    }


def _heartbeat(call: Call, request: Message) -> ConsumerHeartbeat:
    owned = request.topic_partitions
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if request.rebalance_timeout == -1 else request.rebalance_timeout,
        topic_names=None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
        topic_pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else _keys(owned),
        client_id=call.client.client_id,
        client_host=f"/{call.client.host}",
    )


def _keys(topics: Iterable[Message]) -> frozenset[PartitionKey]:
    return frozenset(
        PartitionKey(TopicId(topic.topic_id), partition) for topic in topics for partition in topic.partitions
    )


def topic_partitions(keys: Iterable[PartitionKey]) -> list[dict[str, Any]]:
    by_topic: dict[TopicId, list[int]] = {}
    for key in sorted(keys):
        by_topic.setdefault(key.topic_id, []).append(key.partition)
    return [{"topic_id": topic_id, "partitions": partitions} for topic_id, partitions in by_topic.items()]
